"""Administrator pages in a real Chromium: a dialog by keyboard, restrictions, the audit, and axe on each page."""

import csv
import re
from fractions import Fraction

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.core.rules import Rate

NODE = pages.GPUS[0].node


@pytest.fixture
def world(tmp_path, monkeypatch):
    """alice and bob run one each; admin looks."""
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    made.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    made.save(pages.running("runs"))
    made.save(pages.running("other", "bob", gpus=(1,)))
    made.signing_in = "admin"
    yield made
    made.close()


def test_a_workspace_is_stopped_by_a_dialog_that_previews_it(browser, world, assert_accessible):
    page = open_page(browser, world, "workspaces/runs")
    opener = page.get_by_role("link", name="Stop with a reason…")
    opener.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop 1 workspace")
    expect(dialog.get_by_role("heading", name="Stop 1 workspace")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    opener.press("Enter")
    expect(dialog.get_by_role("button", name="Stop 1 workspace")).to_have_count(0)
    dialog.get_by_label("Reason").fill("Maintenance on Friday")
    dialog.get_by_role("button", name="Preview").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("1 workspace would be stopped. Nothing was done.")
    expect(dialog.get_by_role("status")).to_be_focused()
    assert world.lease("runs").notice is None
    assert_accessible(page, ".gs-dialog[open]")
    dialog.get_by_role("button", name="Stop 1 workspace").press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("alert").first).to_contain_text("admin stops it: Maintenance on Friday.")
    assert world.lease("runs").notice.where == "the console, as administrator"
    assert page.problems == []


def test_a_node_is_drained_listed_ended_and_all_of_it_is_in_the_audit_log(browser, world, assert_accessible):
    page = open_page(browser, world, "console/restrictions")
    page.get_by_role("link", name="Drain", exact=True).click()
    dialog = page.get_by_role("dialog", name="Drain a node")
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing was changed.")
    dialog.get_by_label("Node").select_option(NODE)
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("alice / default workspace")
    expect(dialog.get_by_role("status")).to_contain_text("The workspace goes on.")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    row = page.get_by_role("row", name=re.compile(f"{NODE} .* No new workspace starts there"))
    expect(row).to_be_visible()
    row.get_by_role("link", name=f"End: Drain of {NODE}").click()
    dialog = page.get_by_role("dialog", name="End a restriction")
    expect(dialog).to_contain_text(f"No new workspace starts on {NODE}.")
    assert_accessible(page, ".gs-dialog[open]")
    dialog.get_by_label("Reason").fill("The driver is in")
    dialog.get_by_role("button", name="End it").click()
    expect(page.get_by_text("No restriction is in force or coming.")).to_be_visible()
    page = open_page(browser, world, "console/audit?by=people")
    expect(page.get_by_role("row", name=re.compile("Drained a node"))).to_have_count(1)
    expect(page.get_by_role("row", name=re.compile("Lifted a restriction"))).to_have_count(1)
    page.get_by_role("button", name=re.compile("Details: admin, Drained a node")).click()
    expect(page.get_by_role("dialog", name="Drained a node")).to_contain_text("A new driver")
    page.keyboard.press("Escape")
    page.get_by_label("Done by", exact=True).fill("nobody")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("who=nobody"))
    expect(page.get_by_text("Nothing matches these filters.")).to_be_visible()


def test_without_javascript_the_dialog_is_a_page(browser, world):
    page = open_page(browser, world, "workspaces/runs", java_script_enabled=False)
    page.get_by_role("link", name="Move elsewhere…").click()
    page.get_by_label("Reason").fill("Noise")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Move 1 workspace").click()
    expect(page).to_have_url(re.compile("/workspaces/runs$"))
    assert world.lease("runs").notice.moves


def test_the_menu_of_a_node_is_opened_and_closed_by_keyboard(browser, world):
    page = open_page(browser, world, "console/gpus")
    opener = page.get_by_role("button", name=f"Actions for {NODE}")
    opener.press("Enter")
    drain = page.get_by_role("link", name="Drain node…")
    expect(drain).to_be_visible()
    page.keyboard.press("Escape")
    expect(drain).to_be_hidden()
    opener.press("Enter")
    drain.press("Enter")
    expect(page.get_by_role("dialog", name="Drain a node").get_by_label("Node")).to_have_value(NODE)
    assert page.problems == []


def used_last_week(world, name, user, gpus, percent):
    """A workspace that ran for two hours a week ago, and what was read of it."""
    ended_at = pages.NOW - 8 * 86400
    rate = Rate(Fraction(len(gpus)), Fraction(2 * len(gpus)))
    times = {"minutes": 8 * 1440 + 120, "sampled_at": ended_at - 10, "deadline_at": ended_at + 60}
    lease = pages.running(name, user, gpus, server=name, rate=rate, **times)
    world.save(lease, readings=pages.readings(lease, [percent] * 100, until=ended_at - 10))
    stops = pages.replace(lease, phase=pages.Phase.STOPPING, phase_since=ended_at, reason=pages.ExitReason.STOPPED)
    world.save(pages.replace(stops, ended_by=user))
    world.save(pages.replace(stops, phase=pages.Phase.ENDED, ended_at=ended_at, ended_by=user))


def test_an_administrator_sees_a_problem_drains_a_node_messages_users_and_exports_idle_hours(browser, world):
    used_last_week(world, "worked", "alice", (2,), 90)
    used_last_week(world, "wasted", "bob", (3,), 1)
    page = open_page(browser, world, "")
    page.get_by_role("link", name="Admin", exact=True).click()
    expect(page.get_by_role("region", name="Problems")).to_contain_text("No GPU matches the kind t4 (match: *T4)")

    tabs = page.get_by_role("navigation", name="Admin")
    tabs.get_by_role("link", name="GPUs").click()
    page.get_by_role("button", name=f"Actions for {NODE}").click()
    page.get_by_role("link", name="Drain node…").click()
    dialog = page.get_by_role("dialog", name="Drain a node")
    expect(dialog.get_by_label("Node")).to_have_value(NODE)
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("alice / default workspace")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text("Drained by admin: A new driver").first).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text=NODE).get_by_text("Drained", exact=True).first).to_be_visible()
    page.get_by_role("button", name=f"Actions for {NODE}").click()
    expect(page.get_by_role("link", name="End the drain…")).to_be_visible()

    tabs.get_by_role("link", name="Workspaces").click()
    page.get_by_role("checkbox", name="Select all 2 on this page").check()
    page.get_by_role("button", name="Message").click()
    dialog = page.get_by_role("dialog", name="Message the users of 2 workspaces")
    dialog.get_by_label("Text").fill("node-1 gets a new driver on Friday.")
    dialog.get_by_label("Until").fill("Friday")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("2 people will read it")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_be_hidden()

    tabs.get_by_role("link", name="Usage").click()
    page.get_by_role("navigation", name="Period").get_by_role("link", name="Week").click()
    page.get_by_role("link", name=re.compile("^Earlier")).click()
    page.get_by_role("link", name="Idle", exact=True).click()
    expect(page.get_by_role("columnheader", name="Idle", exact=True)).to_have_attribute("aria-sort", "descending")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [row["name"] for row in rows] == ["bob", "alice"]
    assert float(rows[0]["idle"]) > 1 > float(rows[1]["idle"])

    world.signing_in = "bob"
    told = open_page(browser, world, "")
    expect(told.get_by_role("region", name="Announcement from admin")).to_contain_text("gets a new driver on Friday.")
    assert page.problems == told.problems == []
