"""The Jupyter servers and the stand-in for the service that the tests of a workspace share."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from workspace_server import ...`

from workspace_server import (
    ATTEMPT,
    LEASE,
    TOKEN,
    FakeService,
    JupyterServer,
    warning_of_idleness,
    workspace_document,
)


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """The folder of a libnvidia-ml.so.1 for simulated GPUs."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed: apt-get install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "nvml_standin.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


@pytest.fixture(scope="session")
def running_service():
    service = FakeService()
    yield service
    service.end()


@pytest.fixture
def service(running_service):
    running_service.reset()
    return running_service


@pytest.fixture
def workspace():
    return workspace_document


@pytest.fixture
def idle_warning():
    return warning_of_idleness


@pytest.fixture(scope="session")
def lab(running_service, tmp_path_factory):
    """JupyterLab in a workspace: with what the spawner puts into its environment."""
    server = JupyterServer(
        tmp_path_factory.mktemp("lab"),
        "jupyterlab",
        arguments=["--no-browser", "--ServerApp.port={port}", "--ServerApp.port_retries=0"],
        GPUSPAWNER_SERVICE_URL=running_service.url,
        GPUSPAWNER_LEASE_ID=LEASE,
        GPUSPAWNER_ATTEMPT=ATTEMPT,
        GPUSPAWNER_WORKSPACE_TOKEN=TOKEN,
    )
    server.wait("api/status")
    yield server
    server.end()


@pytest.fixture(scope="session")
def singleuser(running_service, tmp_path_factory):
    """The same under jupyterhub-singleuser, as JupyterHub starts it for a template that opens SSH."""
    hub = f"http://127.0.0.1:{running_service.port}/hub"
    server = JupyterServer(
        tmp_path_factory.mktemp("singleuser"),
        "jupyterhub.singleuser",
        base_url="/user/alice/",
        JUPYTERHUB_SERVICE_URL="http://127.0.0.1:{port}/user/alice/",
        JUPYTERHUB_SERVICE_PREFIX="/user/alice/",
        JUPYTERHUB_API_URL=f"{hub}/api",
        JUPYTERHUB_API_TOKEN="the-servers-own-token",
        JUPYTERHUB_BASE_URL="/",
        JUPYTERHUB_CLIENT_ID="jupyterhub-user-alice",
        JUPYTERHUB_USER="alice",
        JUPYTERHUB_OAUTH_ACCESS_SCOPES='["access:servers!server=alice/"]',
        GPUSPAWNER_SSH="1",
        GREETING='say "hi" \\ # {{all}} of you',
        GPUSPAWNER_SERVICE_URL=running_service.url,
        GPUSPAWNER_LEASE_ID=LEASE,
        GPUSPAWNER_ATTEMPT=ATTEMPT,
        GPUSPAWNER_WORKSPACE_TOKEN=TOKEN,
    )
    server.wait("api/status")
    yield server
    server.end()


@pytest.fixture(scope="session")
def plain_lab(tmp_path_factory):
    """JupyterLab that no spawner of ours started."""
    arguments = ["--no-browser", "--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    server = JupyterServer(tmp_path_factory.mktemp("plain"), "jupyterlab", arguments=arguments)
    server.wait("api/status")
    yield server
    server.end()


@pytest.fixture
def bare_server(tmp_path_factory):
    """Start a Jupyter server without JupyterLab, with these variables in its environment."""
    started = []

    def start(**variables):
        arguments = ["--no-browser", "--ServerApp.port={port}", "--ServerApp.port_retries=0"]
        server = JupyterServer(tmp_path_factory.mktemp("bare"), "jupyter_server", arguments=arguments, **variables)
        server.wait("api/status")
        started.append(server)
        return server

    yield start
    for server in started:
        server.end()
