"""One hub with named servers for all tests here that a process runs, pages of it, and axe."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Tests are no package: `from harness.hub import ...`, `from service_pages import ...`.
sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parent))

import requests
from axe_playwright_python.sync_playwright import Axe
from chromium import chromium
from harness.hub import RealHub, eventually
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect

expect.set_options(timeout=15_000)  # pages are told, or look, every 5 s, and this machine may be busy
WIDTHS = {"wide": 1280, "phone": 390}
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


kept = contextlib.ExitStack()
"""What all tests of this folder share: it ends with the last of them that a process runs."""


@cache
def shared_browser() -> Browser:
    return kept.enter_context(chromium())


@cache
def shared_hub() -> RealHub:
    folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="hub-", ignore_cleanup_errors=True))
    real = RealHub(Path(folder), gpus=4, quota=4, warn="30m", wait=12.0)
    kept.callback(real.close)
    return real.start()


def end_what_is_shared() -> None:
    kept.close()
    shared_browser.cache_clear()
    shared_hub.cache_clear()


@pytest.fixture
def browser():
    """Chromium: no test here is asynchronous."""
    return shared_browser()


@pytest.fixture
def hub():
    """A real hub, proxy and service; 4 simulated GPUs, tiny single-user servers.

    What a test changes of it, it changes back: others come after, of other files too.
    """
    return shared_hub()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """End what is shared, where it would go on until the last test of all."""
    try:
        return (yield)
    finally:
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            end_what_is_shared()


@pytest.fixture(scope="session", autouse=True)
def all_ends():
    """Where the tests are broken off, too."""
    yield
    end_what_is_shared()


names = (f"person-{number}" for number in itertools.count(1))


@pytest.fixture
def user(hub):
    """Somebody new, whose workspaces end with the test: their GPUs are free for the next one."""
    name = next(names)
    yield name
    mine = [lease for lease in hub.workspaces() if lease["user"] == name]
    for lease in mine:
        with contextlib.suppress(requests.HTTPError):  # it may end by itself meanwhile
            hub.end(lease["id"])
    eventually(lambda: all(lease["user"] != name for lease in hub.workspaces()), 60, f"{name} has no workspace")


@pytest.fixture
def all_taken(hub):
    """Somebody holds all four GPUs; what is returned stops them."""
    hub.add_user("hoarder")
    hub.begin("hoarder", template="lab", gpu="a100", count=4)
    hub.until("hoarder", "running")
    yield lambda: hub.stop("hoarder")
    hub.stop("hoarder")
    eventually(lambda: hub.server("hoarder") is None, 60, "the hub has stopped it")
    eventually(lambda: all(lease["user"] != "hoarder" for lease in hub.workspaces()), 60, "the GPUs are free")


def sign_in(hub, context: BrowserContext, name: str) -> Page:
    """A page of somebody who has signed in."""
    page = context.new_page()
    page.goto(f"{hub.url}/hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", "x")
    page.click("#login_submit")
    page.wait_for_url("**/hub/**")
    return page


@pytest.fixture
def page(hub, browser: Browser, user: str):
    """Their page, with JavaScript. A script error fails the test."""
    context = browser.new_context(viewport={"width": WIDTHS["wide"], "height": 900})
    signed_in = sign_in(hub, context, user)
    errors: list[str] = []
    signed_in.on("pageerror", lambda error: errors.append(str(error)))
    yield signed_in
    context.close()
    assert errors == []


@pytest.fixture
def admin(hub, browser: Browser):
    """The administrator's page. A script error fails the test."""
    context = browser.new_context(viewport={"width": WIDTHS["wide"], "height": 900})
    signed_in = sign_in(hub, context, "admin")
    errors: list[str] = []
    signed_in.on("pageerror", lambda error: errors.append(str(error)))
    yield signed_in
    context.close()
    assert errors == []


@pytest.fixture
def plain_page(hub, browser: Browser, user: str):
    """The same person's page without JavaScript."""
    context = browser.new_context(java_script_enabled=False, viewport={"width": WIDTHS["wide"], "height": 900})
    yield sign_in(hub, context, user)
    context.close()


@pytest.fixture
def away(hub):
    """The service's process is gone, and none comes before the test says so."""
    mark = hub.folder / "away"
    mark.touch()
    hub.plant(f"import os, time\nwhile os.path.exists({str(mark)!r}): time.sleep(0.1)")
    hub.kill_service()
    yield mark
    mark.unlink(missing_ok=True)
    eventually(lambda: hub.gpu("/"), 60, "the service answers again")


def axe_problems(page: Page, within: str = "body", rules: Any = WCAG) -> list[str]:
    """What axe finds against WCAG 2 A and AA, or these rules, and whether the page is wider than the window."""
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = Axe().run(page, context=within, options=options).response["violations"]
    problems = [f"{v['id']}: {node['target']} {node['failureSummary']}" for v in found for node in v["nodes"]]
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
        problems.append("the page is wider than its window")
    return problems


@pytest.fixture
def assert_accessible():
    """Check a page at both widths, light and dark."""

    held = []

    def stay(route):
        """Let the page stand as it is: some load themselves again, and axe would lose what it looks at."""
        if route.request.is_navigation_request():
            held.append(route.request.url)
            route.abort("aborted")
        else:
            route.continue_()

    def check(page: Page, within: str = "body") -> None:
        problems = []
        page.route("**/*", stay)
        for width in WIDTHS.values():
            page.set_viewport_size({"width": width, "height": 900})
            for theme, rules in (("light", WCAG), ("dark", OF_COLOURS)):  # a scheme changes nothing else
                page.emulate_media(color_scheme=theme)
                page.evaluate("theme => document.documentElement.setAttribute('data-bs-theme', theme)", theme)
                page.wait_for_timeout(250)  # Bootstrap fades its colours
                page.evaluate("scrollTo(0, document.body.scrollHeight)")  # what sticks lies in its place, over nothing
                problems += [f"{width} {theme}: {problem}" for problem in axe_problems(page, within, rules)]
        page.unroute("**/*", stay)
        if held:  # it loads again only now
            try:
                page.goto(held[-1])
            except Error:  # it has just gone there by itself
                page.wait_for_load_state()
            held.clear()
        assert problems == []

    return check
