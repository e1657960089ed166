"""The hub's own pages, from the form to why a workspace was stopped."""

from __future__ import annotations

import re

import pytest
from harness.hub import eventually
from playwright.sync_api import expect

START = "button[type=submit]"


def expect_no_warnings(page):
    """Check that a page that has just been opened tells of nothing, once it has asked: then it changes its icon."""
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", re.compile("/services/gpu/static/"))
    expect(page.locator("#gs-warnings")).to_be_empty()


def press(page, selector):
    """Click what the hub's own script listens to, as soon as it does: it loads after the page."""
    listens = (
        "s => requirejs.defined('jquery') && requirejs('jquery')._data(document.querySelector(s), 'events')?.click"
    )
    page.wait_for_function(listens, arg=selector)
    page.click(selector)


def test_from_the_form_to_why_it_was_stopped(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    page.locator("[data-other]").check()
    page.fill("#gs-lifetime", "40s")
    page.click(START)
    page.wait_for_url(f"**/user/{user}/**", timeout=20000)

    page.goto(f"{hub.url}/hub/home?hub")
    expect(page.locator("[aria-label='Your workspaces']")).to_contain_text("Running on 1 simulated A100", timeout=15000)
    expect(page.locator("#gs-warnings")).to_contain_text("Save your work")
    expect(page.locator(".gs-left")).to_have_text(re.compile(r"\d+ s left\."))
    assert_accessible(page, "#gs-banner")

    hub.until_ended(user, "expired", 60)
    expect(page.locator("#gs-warnings")).to_contain_text(
        "Your last workspace ended. It reached the end of its run time", timeout=15000
    )
    page.goto(f"{hub.url}/user/{user}/lab")
    expect(page.locator("#gs-why")).to_contain_text("Your workspace ended at")
    expect(page.locator("#gs-ended")).to_contain_text("Its lifetime was 40 s.")
    assert_accessible(page)

    page.goto(f"{hub.url}/hub/home?hub")  # read once, it is told no more
    expect_no_warnings(page)
    page.goto(f"{hub.url}/user/{user}/lab")
    page.click("text=Start again")
    expect(page.locator("#gs-lifetime")).to_have_value("40s")


def test_messages_inbox_and_state_are_told_on_the_hubs_own_pages(hub, page, user, assert_accessible):
    said = "Maintenance on <i>Friday</i>."
    hub.gpu("/messages", "POST", {"to": f"user:{user}", "text": said, "until": "2h"})
    page.goto(f"{hub.url}/hub/home?hub")
    told = page.locator("#gs-messages")
    expect(told).to_contain_text(said)
    expect(page).to_have_title("(1) Workspaces")
    expect(page.get_by_role("link", name="Inbox 1 unread")).to_be_visible()
    assert_accessible(page, "#gs-banner, nav")
    hub.begin(user, template="lab")
    hub.until(user, "running")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/services/gpu/static/gpu-running.svg")
    told.get_by_role("button", name="Got it").press("Enter")
    expect(told).to_be_empty()
    expect(page).to_have_title("Workspaces")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("link", name="Inbox").click()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    expect(page.get_by_role("link", name="Unread 0")).to_be_visible()
    page.get_by_role("link", name="Start", exact=True).click()
    page.get_by_role("link", name="Workspaces", exact=True).click()
    expect(page.get_by_role("heading", name="Workspaces", level=1)).to_be_visible()


def test_people_land_on_their_workspaces_and_administrators_still_find_the_hubs_home(hub, page, admin):
    for path in ("/", "/hub/home"):
        page.goto(f"{hub.url}{path}")
        expect(page).to_have_url(f"{hub.url}/services/gpu/")
    page.locator(".gs-who").click()
    expect(page.get_by_role("link", name="Log out")).to_be_visible()
    expect(page.get_by_role("link", name="JupyterHub home")).to_have_count(0)
    admin.goto(f"{hub.url}/hub/spawn")
    admin.locator(".gs-who").click()
    admin.get_by_role("link", name="JupyterHub home").click()
    expect(admin.get_by_role("heading", name="Named Servers")).to_be_visible()


def test_why_it_ended_stands_there_without_javascript(hub, plain_page, user):
    hub.begin(user, template="lab", lifetime="2s")
    hub.until_ended(user, "expired")
    plain_page.goto(f"{hub.url}/user/{user}/lab")
    expect(plain_page.locator("#gs-ended")).to_contain_text("Its lifetime was 2 s.")
    plain_page.goto(f"{hub.url}/hub/spawn")
    expect(plain_page.locator("#gs-ended")).to_contain_text(
        "Your last workspace ended. It reached the end of its run time"
    )


def test_an_answer_to_this_was_wrong_is_told_on_every_page_also_of_an_older_end(hub, page, user, assert_accessible):
    hub.begin(user, template="lab", lifetime="2s")
    hub.until_ended(user, "expired")
    wrong = hub.last_end(user)["id"]
    token = hub.api("POST", f"/users/{user}/tokens").json()["token"]
    hub.gpu(f"/workspaces/{wrong}/dispute", "POST", {"sentence": "It had work."}, token)
    page.goto(f"{hub.url}/hub/spawn")
    expect_no_warnings(page)  # who called it wrong has read it
    hub.gpu(f"/workspaces/{wrong}/seen", "POST", token=token)
    hub.begin(user, template="lab", lifetime="2s")
    eventually(lambda: hub.last_end(user)["id"] != wrong, 30)
    hub.gpu(f"/workspaces/{wrong}/answer", "POST", {"sentence": "You get two hours more."})
    page.goto(f"{hub.url}/hub/home?hub")
    note = page.locator("#gs-warnings .gs-note", has_text="answered what you called wrong")
    expect(note).to_contain_text("tests answered what you called wrong. “You get two hours more.”")
    assert_accessible(page, "#gs-banner")
    note.get_by_role("button", name="Got it").click()
    expect(note).to_have_count(0)
    expect(page.locator("#gs-warnings")).to_contain_text(
        "Your last workspace ended. It reached the end of its run time"
    )


def test_each_server_s_end_is_told_until_it_is_read_or_that_server_has_a_workspace_again(hub, page, user):
    for server in ("train", "eval", "twice"):
        hub.begin(user, server, template="lab", gpu="none", lifetime="2s")
    eventually(lambda: sum(one["user"] == user for one in hub.workspaces(ended=50)) == 3, 30)
    eventually(lambda: all(one["user"] != user for one in hub.workspaces()), 60)
    hub.begin(user, "twice", template="lab", gpu="none")
    hub.until(user, "running", server="twice")
    page.goto(f"{hub.url}/hub/home?hub")
    notes = page.locator("#gs-warnings .gs-note")
    expect(notes).to_have_count(2)
    train = notes.filter(has_text="Workspace train ended. It reached the end of its run time")
    expect(train).to_have_count(1)
    notes.filter(has_text="Workspace eval ended.").get_by_role("button", name="Got it").click()
    expect(notes).to_have_count(1)
    page.reload()
    train.get_by_role("button", name="Got it").click()
    expect(notes).to_have_count(0)


def test_an_end_is_told_unless_its_user_stopped_it_on_the_home_page(hub, page, user):
    for server in ("", "theirs"):
        hub.begin(user, server, template="lab", gpu="none")
        hub.until(user, "running", server=server)
    page.goto(f"{hub.url}/hub/home?hub")
    press(page, "#stop")
    eventually(lambda: hub.last_end(user)["end"]["by"] == user, 60)
    hub.stop(user, "theirs")
    for path in ("home?hub", "spawn"):
        if not page.url.endswith(path):
            page.goto(f"{hub.url}/hub/{path}")
        notes = page.locator("#gs-warnings .gs-note")
        told = "Workspace theirs ended. The service tests stopped it"
        expect(notes.filter(has_text=told)).to_have_count(1, timeout=30_000)
        expect(notes).to_have_count(1)


def test_an_open_home_page_tells_of_a_workspace_that_was_started_again_in_place_of_its_end(hub, page, user):
    hub.begin(user, "mv", template="lab", gpu="none")
    old = hub.until(user, "running", server="mv")
    page.goto(f"{hub.url}/hub/home?hub")
    own = page.locator("[aria-label='Your workspaces']")
    expect(own).to_contain_text("mv: Running")
    hub.stop(user, "mv")
    hub.until_ended(user, "stopped")
    expect(own).to_contain_text("mv: Ended")
    hub.begin(user, "mv", template="lab", gpu="none", lifetime="20h")
    new = hub.until(user, "running", server="mv")
    assert new["ends_words"] != old["ends_words"]
    expect(own).to_contain_text("mv: Running")
    expect(own.locator("[data-until]")).to_have_text(f", until {new['ends_words']}")
    expect(own.get_by_role("link", name="Details")).to_have_attribute("href", new["page"])


def test_extend_from_any_page_of_the_hub(hub, page, user):
    hub.begin(user, template="lab", gpu="none", lifetime="5m")
    before = hub.until(user, "running")["ends_at"]
    page.goto(f"{hub.url}/hub/token")
    page.click("text=Extend by 1 h")
    expect(page.locator("#gs-warnings")).to_be_empty()
    assert hub.lease(user)["ends_at"] == pytest.approx(before + 3600, abs=1)


def test_a_place_in_the_queue_is_parked_and_starts_by_itself(hub, page, user, all_taken, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    expect(page.locator("#gs-sentence")).to_contain_text("All 4 simulated A100 are in use. You would be 1st in line")
    page.click(START)
    page.wait_for_url("**/spawn-pending/**")
    expect(page.locator("#gs-line [aria-current]")).to_contain_text("You, 1 simulated A100")
    expect(page.locator("#gs-sentence")).to_contain_text("You are 1st of 1 in line")
    expect(page.locator("#gs-sentence")).not_to_contain_text("You are 1st in line.")
    expect(page.locator("#gs-log")).to_contain_text("You are 1st in line")
    expect(page.locator("#gs-state")).to_have_text("Waiting")
    assert_accessible(page)
    page.goto(f"{hub.url}/hub/home?hub")
    expect(page.locator("[aria-label='Your workspaces']")).to_contain_text("Waiting for 1 simulated A100")
    page.goto(f"{hub.url}/hub/spawn-pending/{user}")
    expect(page.locator("#gs-progress[data-state=stopped]")).to_be_visible(timeout=30000)
    expect(page.get_by_role("heading", level=1)).to_have_text("default workspace Waiting")
    assert_accessible(page)
    all_taken()
    page.wait_for_url(f"**/user/{user}/**", timeout=20000)


def test_withdraw_from_the_queue(hub, page, user, all_taken):
    page.goto(f"{hub.url}/hub/spawn")
    page.click(START)
    page.get_by_role("button", name="Withdraw").click()
    page.get_by_role("dialog", name="Withdraw this request?").get_by_role("button", name="Withdraw request").click()
    expect(page.locator("#gs-ended")).to_contain_text("You withdrew the request at ", timeout=15000)
    expect(page.locator("#gs-why")).to_contain_text("Your start of a workspace ended at")
    expect(page.get_by_role("link", name="Details")).to_be_visible()
    assert hub.last_end(user)["end"]["reason"] == "cancelled"


def test_a_failed_start_says_why(hub, page, user):
    home = hub.folder / "homes" / user
    home.mkdir()
    (home / "fails").touch()
    page.goto(f"{hub.url}/hub/spawn")
    page.check("input[name=gpu][value=none]")
    page.click(START)
    expect(page.locator("body")).to_contain_text("It failed", timeout=30000)


def test_the_progress_page_survives_the_hubs_restart(hub, page, user, all_taken):
    page.goto(f"{hub.url}/hub/spawn")
    page.click(START)
    page.wait_for_url("**/spawn-pending/**")
    expect(page.locator("#gs-sentence")).to_contain_text("You are 1st of 1 in line")
    hub.kill_hub()
    expect(page.locator("#gs-sentence")).to_contain_text("does not answer", timeout=15000)
    hub.start_hub()
    expect(page.locator("#gs-state")).to_have_text("Waiting", timeout=30000)
    expect(page.locator("#gs-sentence")).to_contain_text("You are 1st of 1 in line", timeout=30000)
    hub.until("hoarder", "running", 60)
    all_taken()
    page.wait_for_url(f"**/user/{user}/**", timeout=40000)
