"""The pages in Debian's Firefox: colours of both schemes, menus, dialogs, and no error of a script."""

from __future__ import annotations

import pytest
from firefox import firefox
from harness.waiting import eventually

PAGES = ("services/gpu/", "services/gpu/quota", "services/gpu/inbox", "services/gpu/tokens")
GROUND = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture(scope="module")
def tab():
    with firefox() as one:
        yield one


def sign_in(tab, hub, name):
    for cookie in hub.login(name).cookies:
        tab.set_cookie(cookie.name, cookie.value, cookie.path)


@pytest.mark.slow
def test_pages_work_in_firefox(hub, user, tab):
    sign_in(tab, hub, user)
    hub.begin(user, template="lab", gpu="a100")
    hub.until(user, "running")
    for path in PAGES:
        tab.open(f"{hub.url}/{path}")
        tab.resize(320, 800)
        assert tab.run("document.documentElement.scrollWidth <= innerWidth"), path
        tab.resize(1280, 800)

    tab.open(f"{hub.url}/services/gpu/")
    light, dark = (
        tab.run(f"(document.documentElement.dataset.bsTheme = {one!r}, {GROUND})") for one in ("light", "dark")
    )
    assert light != dark

    tab.click("document.querySelector('[popovertarget=gs-user]')")
    menu = "document.getElementById('gs-user')"
    assert tab.run(f"{menu}.matches(':popover-open')")
    button, shown = (
        tab.run(f"{one}.getBoundingClientRect().toJSON()") for one in ("document.querySelector('.gs-who')", menu)
    )
    assert 0 <= shown["top"] - button["bottom"] < 20
    assert 0 <= shown["left"] < shown["right"] <= 1280

    tab.click("document.querySelector('.gs-ws [popovertarget]')")
    assert not tab.run(f"{menu}.matches(':popover-open')")
    tab.click("document.querySelector('.gs-menu:popover-open .gs-danger')")
    eventually(
        lambda: tab.run("document.querySelector('dialog[id^=stop-]:modal') !== null"), 10, "the question is open"
    )
    tab.click("document.querySelector('dialog:modal .gs-danger')")
    eventually(lambda: tab.run("!document.querySelector('.gs-ws.gs-running')"), 30, "the workspace stops")
    assert tab.errors == []


@pytest.mark.slow
def test_the_form_follows_the_choices_in_firefox(hub, user, tab):
    sign_in(tab, hub, user)
    tab.resize(1280, 1200)
    tab.open(f"{hub.url}/hub/spawn")
    other = "document.querySelector('[data-other]')"
    field = f"{other}.closest('.gs-chips').querySelector('.gs-inline')"
    tab.run(f"{other}.closest('.gs-chips').querySelector('input:not([data-other])').click()")
    assert tab.run(f"{field}.offsetWidth") == 0
    tab.run(f"{other}.click()")
    assert tab.run(f"{field}.offsetWidth") > 0
    chosen = (
        "getComputedStyle([...document.querySelectorAll('.gs-choice')].find((one) => one.querySelector(':checked')))"
    )
    assert tab.run(f"{chosen}.boxShadow") != "none"
    eventually(
        lambda: "Starts now" in tab.run("document.getElementById('gs-sentence').textContent"), 30, "it is checked"
    )
    assert tab.errors == []
