"""The browser of the tests."""

from contextlib import contextmanager

from harness.programs import require

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@contextmanager
def chromium():
    """Run Debian's Chromium without a window's parts, at half the work: playwright's own build of it is not needed.

    Playwright's loop makes every asynchronous test of this process fail until it ends.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where a browser is asked for

    path = require("chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
