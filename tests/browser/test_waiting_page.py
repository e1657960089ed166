"""Waiting, away from the page: title and browser tell, the workspace is opened by who looks; and a second one."""

from __future__ import annotations

import re
import time

from harness import eventually
from playwright.sync_api import expect

AWAY = """
window.nobodyLooks = false;
Object.defineProperty(document, 'hidden', { get: () => window.nobodyLooks });
window.look = (looks) => { window.nobodyLooks = !looks; document.dispatchEvent(new Event('visibilitychange')); };
window.notes = [];
if (window.Notification) {
  window.Notification = class extends EventTarget {
    static get permission() { return window.allowed ?? 'default'; }
    static async requestPermission() { return (window.allowed = 'granted'); }
    constructor(title, { body }) { super(); window.notes.push(`${title}: ${body}`); }
    close() {}
  };
}
"""
"""A tab that nobody sees, and a browser that notifies, as this one without a screen has neither."""


def test_who_is_away_is_told_and_the_workspace_opens_once_they_look(hub, page, user, all_taken, assert_accessible):
    page.add_init_script(AWAY)
    page.goto(f"{hub.url}/hub/spawn")
    page.click("button[type=submit]")
    expect(page.locator("#gs-sentence")).to_contain_text("Nothing else tells you when it starts: come back to look.")
    expect(page.locator("#gs-when")).to_contain_text(
        re.compile(r"[Ll]atest start (\w+ \d\d \w+ )?\d\d:\d\d, .* Times are in UTC")
    )
    hub.until(user, "parked")
    expect(page.locator("#gs-progress[data-state=stopped]")).to_be_visible()  # the hub waits no more, its place stays
    page.click("text=Notify me here when it is ready")
    expect(page.locator("#gs-notify")).to_contain_text("This browser notifies you when it is ready")
    assert_accessible(page)
    page.evaluate("look(false)")
    all_taken()
    hub.until(user, "running")
    expect(page).to_have_title(re.compile("^Ready - "), timeout=40_000)
    page.wait_for_timeout(3000)
    assert "/hub/" in page.url, "a tab that nobody sees opens nothing: that would claim it"
    (note,) = page.evaluate("notes")
    assert note.startswith("Your workspace is ready: It is ready since ")
    page.evaluate("look(true)")
    page.wait_for_url(f"**/user/{user}/**")


def test_over_plain_http_it_is_said_why_there_is_no_button(hub, page, user, all_taken):
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false });")
    page.goto(f"{hub.url}/hub/spawn")
    page.click("button[type=submit]")
    expect(page.locator("#gs-notify")).to_contain_text("only pages do so that are opened over https, or on localhost.")
    expect(page.locator("#gs-notify button")).to_have_count(0)


def test_the_homes_of_service_and_hub_tell_in_their_titles_too(hub, page, user, all_taken):
    hub.begin(user, template="lab", gpu="a100")
    page.add_init_script(AWAY)
    hubs = page.context.new_page()
    hubs.add_init_script(AWAY)
    hubs.route("**/static/ready.js*", lambda route: (time.sleep(2), route.continue_()))  # after the first look
    hubs.goto(f"{hub.url}/hub/home")
    page.goto(f"{hub.url}/services/gpu/")
    expect(page.locator("#ready")).to_contain_text("Notify me here when it is ready")
    hub.until(user, "parked")
    for one in (page, hubs):
        one.evaluate("look(false)")
    all_taken()
    hub.until(user, "running")
    for one in (page, hubs):
        expect(one).to_have_title(re.compile("^Ready - "), timeout=40_000)


def test_start_while_one_runs_offers_to_open_it_or_a_second_one_by_name(hub, page, user, assert_accessible):
    hub.begin(user, template="lab", gpu="a100")
    hub.until(user, "running")
    page.goto(f"{hub.url}/hub/spawn?kind=a100")
    expect(page.locator("h1.h3")).to_have_text("Your workspace runs")
    expect(page.locator("#gs-second")).to_contain_text("Running on 1 simulated A100")
    assert_accessible(page)
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 800})
    upper, lower = (page.get_by_text(text).bounding_box() for text in ("Open it", "Start a second one, workspace-2"))
    assert lower["y"] - upper["y"] - upper["height"] >= 4, "on a phone they stand apart"
    page.set_viewport_size(size)
    page.click("text=Start a second one, workspace-2")
    page.wait_for_url(f"**/hub/spawn/{user}/workspace-2?kind=a100")
    expect(page.locator("button[type=submit]")).to_be_visible()
    page.goto(f"{hub.url}/hub/spawn/{user}")
    page.click("text=Open it")
    page.wait_for_url(f"**/user/{user}/**")
    eventually(lambda: len([x for x in hub.workspaces() if x["user"] == user]) == 1, 10, "one workspace alone")
