"""Fixtures that several packages share, hypothesis without a clock, and the order of the test files."""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

import aiohttp
import aiohttp.connector
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from post import ...`

import databases
from chromium import chromium
from databases import Database
from post import Mailbox, Webhook

from tools.install import ROOT
from tools.suite import DURATIONS

# A shell that runs the tests in the background makes them ignore Ctrl-C, and what they start ignores it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each test has an event loop of its own. With aiodns, aiohttp opens a resolver for each, and JupyterHub's client closes
# none: four files each, of the 1,024 that an ordinary user may open.
aiohttp.connector.DefaultResolver = aiohttp.ThreadedResolver

# Tests with many connections need more files than the 1,024 with which a login begins.
now_files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(now_files, min(most_files, 65536)), most_files))

# No test is about time: this machine is noisy. `make test-all` asks for more by --hypothesis-profile=thorough.
for name, examples in (("quick", 25), ("thorough", 100)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark repetitions on PostgreSQL as slow, unless they are part of the store's contract; run the longest file first.

    Otherwise one worker would be left with a long file at the end.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        on_postgresql = "postgresql" in (parameters.get("database"), parameters.get("kept_in"))
        if on_postgresql and item.get_closest_marker("postgresql") is None:
            item.add_marker(pytest.mark.slow)
    noted = ROOT / DURATIONS
    seconds = json.loads(noted.read_text()) if noted.exists() else {}
    items.sort(key=lambda item: -seconds.get(".".join(item.path.relative_to(ROOT).with_suffix("").parts), 0.0))


@pytest.fixture(scope="module")  # asynchronous tests may come after
def browser():
    """Chromium, for the tests of a file."""
    with chromium() as found:
        yield found


@pytest.fixture
def mailbox():
    """A mail server that takes everything."""
    server = Mailbox()
    yield server
    server.close()


@pytest.fixture
def webhook():
    """A webhook that takes everything."""
    server = Webhook()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server, started by the first test that asks."""
    return databases.postgres()


@pytest.fixture(scope="session", autouse=True)
def postgres_ends():
    """With the tests."""
    yield
    if databases.postgres.cache_info().currsize:
        databases.postgres().server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """A database of the test's own, with nothing in it: one of either kind."""
    is_file = request.param == "sqlite"
    found = Database.sqlite(tmp_path / "service.sqlite") if is_file else Database.postgresql()
    yield found
    found.close()
