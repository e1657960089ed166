"""A factory of real hubs: each in its own folder, closed after its test, its log shown where the test fails."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from harness import ...`

from harness import RealHub

LOG_CHARACTERS = 12_000
HUB5 = "GPUSPAWNER_HUB5_PYTHON"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Attach the end of every hub's log to a failure."""
    report = yield
    if report.failed:
        for hub in (one for one in getattr(item, "hubs", []) if one.log.exists()):  # not one that never was to start
            report.sections.append((f"log of the hub in {hub.folder}", hub.log.read_text()[-LOG_CHARACTERS:]))
    return report


@pytest.fixture
def new_hub(request, tmp_path):
    """Return a function that starts a hub with RealHub's settings; ``start=False`` leaves that to the test."""
    request.node.hubs = []

    def make(*, start: bool = True, **settings) -> RealHub:
        folder = tmp_path / f"hub-{len(request.node.hubs)}"
        folder.mkdir()
        hub = RealHub(folder, **settings)
        request.node.hubs.append(hub)
        return hub.start() if start else hub

    yield make
    for hub in request.node.hubs:
        hub.close()


@pytest.fixture(params=["hub6", "hub5"])
def python(request):
    """The interpreter of each JupyterHub that is supported: the newest here, the oldest where `make test` put it.

    A test that is not worth its seconds on both names one: ``parametrize("python", ["hub6"], indirect=True)``.
    """
    if request.param == "hub6":
        return sys.executable
    assert os.environ.get(HUB5), f"{HUB5} must name a Python with JupyterHub 5.5: `make test` sets it"
    return os.environ[HUB5]
