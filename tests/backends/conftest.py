"""Processes with a lease's id, and real captures of nvidia-smi."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: they share modules of this folder

from cluster_objects import a_node
from harness.programs import SHARED_DATA, require_shared_data
from kube_api import KubeApi
from kube_backends import make_backend
from kube_views import make_view

from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.backend import KubernetesBackend

CAPTURES = "nvidia-smi/captures"
CAPTURE_FILES = sorted(SHARED_DATA.glob(f"{CAPTURES}/*.txt"))


@pytest.fixture
def lease_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start(lease_id: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start ``python -c CODE``, which prints a line once it is set up, as a process of the lease."""
    started = []

    def start(code: str, lease: str = lease_id, attempt: str = "1", **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GPUSPAWNER_LEASE_ID": lease, "GPUSPAWNER_ATTEMPT": attempt, **variables}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(params=CAPTURE_FILES, ids=lambda path: path.stem.removeprefix("linux-x86_64__"))
def capture(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """One machine's real outputs: the lines below each heading."""
    return sections(request.param)


@pytest.fixture
def h200() -> dict[str, list[str]]:
    """The capture whose forms the stand-in follows."""
    return sections(require_shared_data(f"{CAPTURES}/*h200__590*")[0])


@pytest.fixture
def rtx4080() -> dict[str, list[str]]:
    """The capture of a GPU whose video encoder works."""
    return sections(require_shared_data(f"{CAPTURES}/*4080*")[0])


def sections(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and " :: " in line:
            title = line[2:]
            found[title] = []
        elif title and not line.startswith(("####", "# $")):
            found[title].append(line)
    return {title: [line for line in lines if line.strip()] for title, lines in found.items()}


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    """An API server of our own, with a node of four A100."""
    api = KubeApi()
    await api.start()
    api.put(a_node("gpu-1", gpus={"nvidia.com/gpu": 4}))
    yield api
    await api.stop()


@pytest.fixture
async def a_backend(api: KubeApi, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[KubernetesBackend]]]:
    """Make a backend that has seen the cluster, with these pods in it."""
    made = []

    async def make(*pods: dict[str, Any], **settings: Any) -> KubernetesBackend:
        for pod in pods:
            api.put(pod)
        backend = make_backend(api.kubeconfig(tmp_path), **{"pause_seconds": 0.0, **settings})
        made.append(backend)
        await backend.fleet()
        return backend

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
async def a_view(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., KubernetesBackend]]:
    """Make a backend that has seen nothing yet, and whose watches lose no time."""
    monkeypatch.setattr(watches, "BACK_OFF_SECONDS", (0.05,))
    monkeypatch.setattr(watches, "MIN_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 0.2)
    made = []

    def make(**settings: Any) -> KubernetesBackend:
        made.append(make_view(api.kubeconfig(tmp_path), **settings))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()
