"""The template of docs/how-to/administrators/ray.md: a workspace that is the client of a real Ray head."""

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from editor import SERVER
from harness import pages
from harness.hub import REPO, RealHub, eventually

from demo.ports import pick_free

PAGE = pages.page("how-to/administrators/ray")
INSTALL_SECONDS, START_SECONDS = 600, 240
GPUS, TRIES = 8, 3
"""Ray gives the parts of a head 30 s to start: a busy machine may need more, and then it is started again."""
STARTED = "Ray runtime started"
# A head listens on the machine's own address, but where Ray takes it for a laptop's.
OF_HEAD = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120"}


def block(language, begins):
    """The code of the page that begins so."""
    return next(code for code in pages.blocks(PAGE, language) if code.startswith(begins))


@pytest.fixture
def ports():
    return pick_free(2)


@pytest.fixture
def hub(tmp_path, ports):
    environment = {
        "RAY_ADDRESS": f"ray://127.0.0.1:{ports[1]}",
        "PIP_CACHE_DIR": str(REPO / ".cache" / "pip"),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_") and name != "PIP_CACHE_DIR"},
    }
    hub = RealHub(tmp_path, extra=SERVER.format(environment=environment).replace("editor", "nightly"))
    (template,) = yaml.safe_load(block("yaml", "templates:"))["templates"].values()
    for of_a_cluster in ("image", "profile", "groups"):
        del template[of_a_cluster]
    catalog = yaml.safe_load(hub.catalog.read_text())
    catalog["templates"]["nightly"] = template
    hub.catalog.write_text(yaml.safe_dump(catalog))
    with hub:
        yield hub


@pytest.fixture
def start_head(ports):
    """Return a function that starts a head with GPUs, by the program ``ray`` of this folder."""
    heads = []
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: the paths of its sockets may have 107 letters

        def start(programs):
            command = [programs / "ray", "start", "--head", "--block", "--disable-usage-stats"]
            command += ["--include-dashboard=false", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
            command += [f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"]
            command += ["--num-cpus=1", f"--num-gpus={GPUS}", f"--object-store-memory={100 * 2**20}"]
            log = Path(folder, "head.log")
            for _ in range(TRIES):
                with log.open("w") as file:
                    environment = {**os.environ, **OF_HEAD}
                    heads.append(
                        subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
                    )
                eventually(lambda: STARTED in log.read_text() or heads[-1].poll() is not None, START_SECONDS)
                if heads[-1].poll() is None:
                    return
            pytest.fail(log.read_text())

        yield start
        for head in heads:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGTERM)
            head.wait(START_SECONDS)


def installed(home):
    """The folder of the tool's programs, once its kernel is there; skipped where the package can't be had."""
    folder = home / ".gpuspawner" / "tools" / "nightly"

    def kernel_or_failure():
        specs = list(folder.glob("python*/ray-*/share/jupyter/kernels/ray/kernel.json"))
        return specs or [log for log in folder.glob("python*/ray-*.log") if "ERROR:" in log.read_text()]

    (found,) = eventually(kernel_or_failure, INSTALL_SECONDS, "the tool is installed")
    if found.suffix == ".log":
        pytest.skip(f"Ray can't be had here: {found.read_text().strip().splitlines()[-1]}")
    return next(folder.glob("python*/ray-*/bin"))


@pytest.mark.slow  # it installs Ray
def test_the_example_runs_on_a_ray_head_from_a_workspace_without_a_gpu(hub, start_head, tmp_path):
    hub.add_user("ada")
    hub.begin("ada", template="nightly", tools=["ray"])
    lease = hub.until("ada", "running", START_SECONDS)
    assert lease["gpus"] == []
    programs = installed(tmp_path / "homes" / "ada")
    start_head(programs)
    example = tmp_path / "example.py"
    example.write_text(block("python", "import ray"))
    ran = subprocess.run(
        [programs / "python", example],
        env=hub.environment(lease["id"]),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == [f"GPUs of the cluster: {GPUS}.0", "squares: [0, 1, 4, 9]"]
