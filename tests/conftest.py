"""What tests of several rooms share: the browser, a mail server, a webhook, and hypothesis without a clock."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from post import ...`

import databases
from databases import Database
from post import Mailbox, Webhook

# No test is about time: this machine is noisy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
CHROMIUM += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")  # playwright's loop would make every asynchronous test after it fail
def browser():
    """Debian's Chromium without a window's parts, at half the work: playwright's own build of it is not needed."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where a browser is asked for

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell"), args=CHROMIUM)
        yield chromium
        chromium.close()


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
