"""What an administrator does, in a real Chromium: a dialog by keyboard, restrictions, the audit, and axe on each."""

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


def test_a_workspace_is_stopped_by_a_dialog_that_shows_first_what_it_does(browser, world, assert_accessible):
    page = open_page(browser, world, "workspaces/runs")
    opener = page.get_by_role("link", name="Stop with a reason…")
    opener.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop workspaces")
    expect(dialog.get_by_role("heading", name="Stop workspaces")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    opener.press("Enter")
    expect(dialog.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    dialog.get_by_label("Reason").fill("Maintenance on Friday")
    dialog.get_by_role("button", name="See what it does").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("1 workspace would be stopped. Nothing was done.")
    assert world.lease("runs").notice is None
    assert_accessible(page)
    dialog.get_by_role("button", name="Stop", exact=True).press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("alert").first).to_contain_text("admin stops it: Maintenance on Friday.")
    assert world.lease("runs").notice.where == "the console"
    assert page.problems == []


def test_a_node_is_drained_listed_lifted_and_all_of_it_is_in_the_audit(browser, world, assert_accessible):
    page = open_page(browser, world, "console/restrictions")
    page.get_by_role("link", name="Drain a node…").click()
    dialog = page.get_by_role("dialog", name="Drain a node")
    dialog.get_by_role("textbox", name="Node").fill("nowhere")
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing was done.")
    dialog.get_by_role("textbox", name="Node").fill(NODE)
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("status")).to_contain_text("alice: default workspace. It goes on.")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile(f"Nothing new starts on {NODE}"))).to_be_visible()
    page.get_by_text("Lift…").click()
    assert_accessible(page)
    page.get_by_label("Reason").fill("The driver is in")
    page.get_by_role("button", name="Lift it").click()
    expect(page.get_by_text("Nothing is restricted now.")).to_be_visible()
    page = open_page(browser, world, "console/audit?by=people")
    expect(page.get_by_role("row", name=re.compile("Drained a node"))).to_have_count(1)
    expect(page.get_by_role("row", name=re.compile("Lifted a restriction"))).to_have_count(1)
    assert_accessible(page)
    page.get_by_label("Who", exact=True).fill("nobody")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("who=nobody"))
    expect(page.get_by_text("Nothing matches.")).to_be_visible()


def test_without_javascript_the_dialog_is_a_page(browser, world):
    page = open_page(browser, world, "workspaces/runs", java_script_enabled=False)
    page.get_by_role("link", name="Move elsewhere…").click()
    page.get_by_label("Reason").fill("Noise")
    page.get_by_role("button", name="See what it does").click()
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page).to_have_url(re.compile("/workspaces/runs$"))
    assert world.lease("runs").notice.moves


def used_last_week(world, name, user, gpus, percent):
    """A workspace that ran for two hours a week ago, and what was read of it."""
    ended_at = pages.NOW - 8 * 86400
    rate = Rate(Fraction(len(gpus)), Fraction(2 * len(gpus)))
    times = {"minutes": 8 * 1440 + 120, "sampled_at": ended_at - 10, "deadline_at": ended_at + 60}
    lease = pages.running(name, user, gpus, server=name, rate=rate, **times)
    world.save(lease, readings=pages.readings(lease, [percent] * 100, until=ended_at - 10))
    stops = pages.replace(lease, phase=pages.Phase.STOPPING, phase_since=ended_at, reason=pages.Reason.STOPPED)
    world.save(pages.replace(stops, ended_by=user))
    world.save(pages.replace(stops, phase=pages.Phase.ENDED, ended_at=ended_at, ended_by=user))


def test_an_administrator_sees_what_is_wrong_drains_tells_people_and_exports_who_wasted_most(
    browser, world, assert_accessible
):
    used_last_week(world, "worked", "alice", (2,), 90)
    used_last_week(world, "wasted", "bob", (3,), 1)
    page = open_page(browser, world, "")
    page.get_by_role("link", name="Admin", exact=True).click()
    troubles = page.get_by_role("region", name="What does not work")
    expect(troubles).to_contain_text("No GPU matches the kind t4 (match: *T4)")

    page.get_by_role("link", name=f"Drain… {NODE}").click()
    dialog = page.get_by_role("dialog", name="Drain a node")
    expect(dialog.get_by_role("textbox", name="Node")).to_have_value(NODE)
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("status")).to_contain_text("alice: default workspace. It goes on.")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator(".gs-facts")).to_contain_text("Restrictions1")
    expect(page.get_by_role("row", name="A100 80 GB")).to_contain_text("2")
    expect(page.get_by_role("link", name=f"Drain… {NODE}")).to_have_count(0)
    expect(page.get_by_text(f"Nothing new starts on {NODE}: A new driver")).to_be_visible()
    page.locator("summary", has_text="End the drain…").click()
    expect(page.get_by_role("button", name="Lift it")).to_be_visible()
    size = page.viewport_size
    assert_accessible(page)
    page.set_viewport_size(size)

    page.get_by_role("navigation", name="Console").get_by_role("link", name="Workspaces").click()
    page.get_by_role("checkbox", name="All on this page").check()
    page.get_by_role("button", name="Message…").click()
    dialog = page.get_by_role("dialog", name="Send a message")
    dialog.get_by_label("Text").fill("node-1 gets a new driver on Friday.")
    dialog.get_by_label("Until").fill("Friday")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("status")).to_contain_text("It reaches 2 people")
    dialog.get_by_role("button", name="Send it").click()
    expect(dialog).to_be_hidden()

    page.get_by_role("navigation", name="Console").get_by_role("link", name="Use").click()
    page.get_by_role("link", name="Last week").click()
    wasted = page.get_by_role("region", name="Allocated longest without use").get_by_role("listitem")
    expect(wasted.first).to_contain_text(re.compile(r"bob 1\.\d GPU h of 2\.0 allocated"))
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
