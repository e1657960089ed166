"""One hub with named servers for all tests here that a process runs, pages of it, and axe."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Tests are no package: `from harness.hub import ...`, `from service_pages import ...`.
sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "backends"))  # `from kube_api import ...`

import requests
from axe_playwright_python.sync_playwright import Axe
from chromium import chromium
from harness.hub import RealHub, eventually
from playwright.sync_api import Browser, Error, Page, Route, expect

expect.set_options(timeout=15_000)  # pages are told, or look, every 5 s, and this machine may be busy
WIDTHS = {"wide": 1280, "phone": 390}
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


kept = contextlib.ExitStack()
"""Resources that all tests of this folder share. They close after the last test of the process."""


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

    A test must undo its changes, because tests of other files use the same hub.
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

    def has_none():
        mine = [lease for lease in hub.workspaces() if lease["user"] == name]
        for lease in mine:  # each time: one that ends may start again
            with contextlib.suppress(requests.HTTPError):  # it may end by itself meanwhile
                hub.end(lease["id"])
        return not mine and not hub.api("GET", f"/users/{name}").json().get("servers")

    eventually(has_none, 60, f"{name} has no workspace")


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


@pytest.fixture(scope="module")
def logins() -> dict[tuple[str, str], list[Any]]:
    """Cookies of a file's signed-in users, by the hub's address and the user's name."""
    return {}


@pytest.fixture
def open_as(hub, browser: Browser, logins):
    """Return a function that opens a page of a signed-in user. A script error fails the test."""
    errors: list[str] = []
    with contextlib.ExitStack() as contexts:

        def open_page(name: str, **options: Any) -> Page:
            context = browser.new_context(viewport={"width": WIDTHS["wide"], "height": 900}, **options)
            contexts.callback(context.close)
            if (hub.url, name) not in logins:  # by HTTP: the hub's page and its form would cost five times as much
                found = [{"name": one.name, "value": one.value, "path": one.path} for one in hub.login(name).cookies]
                logins[hub.url, name] = [{**one, "domain": "127.0.0.1"} for one in found]
            context.add_cookies(logins[hub.url, name])
            opened = context.new_page()
            opened.on("pageerror", lambda error: errors.append(str(error)))
            return opened

        yield open_page
    assert errors == []


@pytest.fixture
def page(open_as, user: str):
    """The user's page, with JavaScript."""
    return open_as(user)


@pytest.fixture
def admin(open_as):
    """The administrator's page."""
    return open_as("admin")


@pytest.fixture
def plain_page(open_as, user: str):
    """The user's page without JavaScript."""
    return open_as(user, java_script_enabled=False)


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
    """Return the violations of WCAG 2 A and AA, or of these rules, that axe finds, and whether the page is too wide."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe().axe_script)
    options = {"runOnly": rules, "resultTypes": ["violations"], "preload": False}  # no page plays audio
    run = "([within, options]) => axe.run(within, options).then(({ violations }) => violations)"
    found = page.evaluate(run, [within, options])
    problems = [f"{v['id']}: {node['target']} {node['failureSummary']}" for v in found for node in v["nodes"]]
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
        problems.append("the page is wider than its window")
    return problems


axe = cache(Axe)


@pytest.fixture
def assert_accessible(request):
    """Return a function that checks a page: light and wide; ``phone=True`` on a phone too.

    With the slow tests, each page is checked at both widths, in the light and in the dark scheme.
    """
    is_whole = "not slow" not in request.config.getoption("markexpr")

    def check(page: Page, within: str = "body", *, phone: bool = False) -> None:
        problems = []
        # A scheme changes nothing but colours.
        schemes = {"light": WCAG, "dark": OF_COLOURS} if is_whole else {"light": WCAG}
        with stays_as_it_is(page):
            for width in WIDTHS.values() if is_whole or phone else [WIDTHS["wide"]]:
                page.set_viewport_size({"width": width, "height": 900})
                for theme, rules in schemes.items():
                    page.emulate_media(color_scheme=theme)
                    page.evaluate(SHOW_THEME, theme)
                    problems += [f"{width} {theme}: {problem}" for problem in axe_problems(page, within, rules)]
        assert problems == []

    return check


SHOW_THEME = """theme => {
    document.documentElement.setAttribute('data-bs-theme', theme);
    // Bootstrap fades its colours, and scrolls smoothly: axe must not look before both are over.
    for (const one of document.getAnimations()) if (one instanceof CSSTransition) one.finish();
    scrollTo({ top: document.body.scrollHeight, behavior: 'instant' }); // what sticks lies in its place, over nothing
}"""


@contextlib.contextmanager
def stays_as_it_is(page: Page) -> Iterator[None]:
    """Hold back what the page loads in place of itself: axe would lose what it looks at."""
    held = []

    def stay(route: Route) -> None:
        if route.request.is_navigation_request():
            held.append(route.request.url)
            route.abort("aborted")
        else:
            route.continue_()

    page.route("**/*", stay)
    try:
        yield
    finally:
        page.unroute("**/*", stay)
    if held:  # it loads again only now
        try:
            page.goto(held[-1])
        except Error:  # it has just gone there by itself
            page.wait_for_load_state()
