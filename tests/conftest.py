"""What tests of several rooms share: the browser, a mail server, a webhook, and hypothesis without a clock."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from post import ...`

import databases
from chromium import chromium
from databases import Database
from post import Mailbox, Webhook

# A shell that runs the tests in the background makes them ignore Ctrl-C, and what they start ignores it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is about time: this machine is noisy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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
