"""A factory of real hubs: each in its own folder, closed after its test, its log shown where the test fails."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from apart import ...`

from harness.hub import RealHub

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


@pytest.fixture(scope="module")
def kept_hub():
    """The hub that tests share, by its settings: one at a time, as each costs the machine."""
    kept: dict[str, RealHub] = {}
    yield kept
    close_all(kept)


@pytest.fixture
def shared_hub(request, kept_hub, tmp_path_factory):
    """Return a function that gives a hub with RealHub's settings: that of the test before, where its are the same.

    ``prepare`` is called with a hub before it starts. Nothing runs or waits on it; who has a workspace may have had
    others.
    """
    request.node.hubs = []

    def find(prepare=None, **settings) -> RealHub:
        known = repr((prepare and prepare.__qualname__, settings))
        if known not in kept_hub:
            close_all(kept_hub)
            kept_hub[known] = RealHub(tmp_path_factory.mktemp("hub"), **settings)
            request.node.hubs.append(kept_hub[known])
            if prepare is not None:
                prepare(kept_hub[known])
            return kept_hub[known].start()
        request.node.hubs.append(kept_hub[known])
        return kept_hub[known]

    yield find
    for known, hub in [*kept_hub.items()]:
        try:
            hub.clear()
        except (AssertionError, OSError):  # it does not answer, or leftovers remain: its test failed
            del kept_hub[known]
            hub.close()
    if not is_used_later(request, "shared_hub"):
        close_all(kept_hub)


def is_used_later(request, fixture):
    """Return whether a later test of this file uses a fixture. An unused hub costs CPU time all the same."""
    of_file = [item for item in request.session.items if item.path == request.path]
    return any(fixture in item.fixturenames for item in of_file[of_file.index(request.node) + 1 :])


def close_all(hubs):
    while hubs:
        hubs.popitem()[1].close()


@pytest.fixture(params=["hub6", pytest.param("hub5", marks=pytest.mark.slow)], scope="module")
def python(request):
    """The interpreter of each JupyterHub that is supported: the newest here, the oldest where `make test` put it.

    All tests of a file on one of them come before those on the other: they may share a hub.
    `make test` runs a test on the oldest only where it says so: see versions.py.
    """
    if request.param == "hub6":
        return sys.executable
    assert os.environ.get(HUB5), f"{HUB5} must name a Python with JupyterHub 5.5: `make test` sets it"
    return os.environ[HUB5]
