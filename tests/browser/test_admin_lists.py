"""The admin pages in a real Chromium: by keyboard, by axe, state in the address, rows that stay where they are."""

import re

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.catalog import load_catalog

PAGES = (
    "", "gpus", "gpus?view=list", "usage", "workspaces", "ended", "queue", "people", "people/bob", "quotas",
    "extra-quota", "restrictions", "audit", "statements?month=2027-01",
)  # fmt: skip
AXE_IN_MAKE_TEST = [
    "",
    "gpus",
    "usage",
    "workspaces",
    "people/bob",
    "quotas",
    "restrictions",
    "audit",
    "statements?month=2027-01",
]
PHONE_IN_MAKE_TEST = ["workspaces"]  # a table is a list there
REST = ("console/act/drain", "console/act/grant", "console/act/announce", "tokens", "stored", "reference", "login-code")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """alice works on two GPUs, bob's is idle, carol waits, and bob's last one was stopped as idle."""
    quotas = {"each-user": {"each": "user", "gpus": {"soft": 1, "hard": 4}, "gpu_hours": {"per": "week", "hard": 40}}}
    made = pages.World(tmp_path, monkeypatch, load_catalog({**pages.CATALOG, "quotas": quotas}))
    made.observe()
    for lease, percent in (
        (pages.running("busy", user="alice", gpus=(0, 1)), 80),
        (pages.running("idles", user="bob", gpus=(2,), streak=pages.idle_streak(30)), 1),
    ):
        made.save(lease, readings=pages.readings(lease, [percent] * 20))
    made.save(pages.waiting("carols", user="carol", count=4))
    made.save(pages.reclaimed("gone", user="bob"), pages.reclaimed_audit(user="bob"))
    made.signing_in = "admin"
    yield made
    made.close()


def grant_and_restrict(world):
    """Two grants and two restrictions, one of each taken back."""
    for number, what in enumerate(("2 GPUs", "+20 GPU h")):
        body = {"user": "bob", "what": what, "until": "3d", "why": "The paper is due"}
        given = pages.api(world, "admin", "quota-grants", "POST", body).json()
        drain = {"what": "quarantine", "gpu": pages.GPUS[3 - number].id, "reason": "ECC errors"}
        shut = pages.api(world, "admin", "admin/restrictions", "POST", drain).json()["restrictions"][0]
    pages.api(world, "admin", f"quota-grants/{given['id']}", "DELETE", {"why": "A mistake"})
    pages.api(world, "admin", f"admin/restrictions/{shut['id']}", "DELETE", {"reason": "It is replaced"})


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param(AXE_IN_MAKE_TEST, id="each kind of page"),
        pytest.param([one for one in PAGES if one not in AXE_IN_MAKE_TEST], id="the others", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_on_any_page(browser, world, assert_accessible, paths):
    grant_and_restrict(world)
    page = open_page(browser, world, "console/")
    for path in paths:
        page.goto(f"{world.home}console/{path}")
        for details in page.locator("main details").all():
            details.locator("summary").click()
        assert_accessible(page, phone=path in PHONE_IN_MAKE_TEST)
    assert page.problems == []


def test_every_page_fits_the_narrowest_and_the_widest_screen(browser, world):
    grant_and_restrict(world)
    page = open_page(browser, world, "console/")
    for path in (*(f"console/{one}" for one in PAGES), *REST):
        page.goto(world.home + path)
        for width in (320, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            assert (path, page.evaluate("document.documentElement.scrollWidth") <= width) == (path, True)


def test_a_list_is_found_filtered_sorted_and_left_by_keyboard(browser, world):
    page = open_page(browser, world, "")
    page.get_by_role("link", name="Admin", exact=True).press("Enter")
    navigation = page.get_by_role("navigation", name="Admin")
    expect(navigation.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
    navigation.get_by_role("link", name="Workspaces").press("Enter")
    expect(page.locator("[data-rows] tr")).to_have_count(2)
    page.get_by_label("User, workspace or node").fill("bob")
    page.get_by_label("User, workspace or node").press("Enter")
    expect(page).to_have_url(re.compile(r"/console/workspaces\?find=bob&"))
    expect(page.locator("[data-rows] tr")).to_have_count(1)
    page.reload()
    expect(page.get_by_label("User, workspace or node")).to_have_value("bob")
    page.get_by_role("link", name="Clear").press("Enter")
    page.get_by_role("link", name="User", exact=True).press("Enter")
    expect(page).to_have_url(re.compile(r"\?sort=user$"))
    expect(page.get_by_role("columnheader", name="User")).to_have_attribute("aria-sort", "ascending")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").press("Enter")
    assert download.value.suggested_filename == "workspaces.csv"
    page.go_back()
    expect(page).to_have_url(re.compile(r"/console/workspaces$"))


def test_rows_are_renewed_in_place_and_new_ones_are_only_counted(browser, world):
    page = open_page(browser, world, "console/workspaces")
    users = page.locator("[data-rows] td[data-label=User]")
    expect(users).to_have_text(["bob", "alice"])
    ended = pages.running("busy", user="alice", gpus=(0, 1), phase=pages.Phase.ENDED, ended_at=pages.NOW)
    world.save(pages.replace(ended, reason=pages.ExitReason.STOPPED))
    late = pages.running("late", user="dave", gpus=(3,), streak=pages.idle_streak(90))
    world.save(late, readings=pages.readings(late, [1] * 3))
    expect(page.get_by_role("status").filter(has_text="1 more row belongs on this page")).to_be_visible()
    expect(users).to_have_text(["bob", "alice"])
    expect(page.locator("tr[data-key=busy]")).to_have_class("gs-gone")
    page.get_by_role("link", name="Show the list as it is now").click()
    expect(users).to_have_text(["dave", "bob"])
    assert page.problems == []


def test_several_are_chosen_by_keyboard_seen_in_a_dry_run_and_then_stopped(browser, world, assert_accessible):
    page = open_page(browser, world, "console/workspaces?sort=user")
    form = page.get_by_role("form", name="Workspaces")
    form.get_by_role("button", name="Stop", exact=True).press("Enter")
    expect(form.get_by_role("status")).to_have_text("Select at least one row first")
    expect(page.get_by_role("checkbox", name="Select alice / default workspace")).to_be_focused()
    page.keyboard.press("Space")
    expect(form.get_by_role("status")).to_have_text("1 selected")
    form.get_by_role("checkbox", name="Select all 2 on this page").press("Space")
    expect(form.get_by_role("status")).to_have_text("2 selected")
    form.get_by_role("button", name="Stop", exact=True).press("Enter")
    dialog = page.get_by_role("dialog", name="Stop 2 workspaces")
    expect(dialog.get_by_role("listitem")).to_have_text(["alice / default workspace", "bob / default workspace"])
    dialog.get_by_label("Reason").fill("Maintenance on Friday")
    dialog.get_by_role("button", name="Preview").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("2 workspaces would be stopped. Nothing was done.")
    assert_accessible(page)
    assert world.lease("busy").notice is None
    dialog.get_by_role("button", name="Stop 2 workspaces").press("Enter")
    expect(dialog).to_be_hidden()
    expect(page).to_have_url(re.compile(r"/console/workspaces\?sort=user$"))
    notices = [world.lease(name).notice for name in ("busy", "idles")]
    assert [(one.why, one.by, one.where) for one in notices] == [
        ("Maintenance on Friday", "admin", "the console, as administrator")
    ] * 2
    assert page.problems == []


def test_without_javascript_the_chosen_are_sent_one_message(browser, world):
    page = open_page(browser, world, "console/workspaces", java_script_enabled=False)
    for name in ("alice", "bob"):
        page.get_by_role("checkbox", name=f"Select {name} / default workspace").check()
    page.get_by_role("button", name="Message").click()
    page.get_by_label("Text").fill("node-1 gets new GPUs")
    page.get_by_label("Until").fill("Friday")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".gs-preview")).to_contain_text("2 people will read it until")
    page.get_by_role("button", name="Send").click()
    expect(page).to_have_url(re.compile(r"/console/workspaces$"))
    (sent,) = world.parts.announcements.all()
    assert (sent.to_words, sent.recipients) == ("bob, alice", {"alice born", "bob born"})
