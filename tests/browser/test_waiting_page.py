"""Waiting, away from the page: title and browser tell, the workspace is opened by who looks; and a second one."""

from __future__ import annotations

import re

from harness.hub import eventually
from playwright.sync_api import Route, expect

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
"""Simulates a hidden tab and a browser with notifications. The browser of the tests has neither."""


def test_an_absent_user_is_notified_and_the_workspace_opens_on_return(hub, page, user, all_taken, assert_accessible):
    page.clock.install()
    page.add_init_script(AWAY)
    page.goto(f"{hub.url}/hub/spawn")
    page.click("button[type=submit]")
    expect(page.locator("#gs-sentence")).to_contain_text("A message in your Inbox tells you when it starts.")
    expect(page.locator("#gs-sentence")).to_contain_text("Too few past workspaces are known to estimate the start")
    expect(page.locator("#gs-times")).to_be_hidden()
    expect(page.locator("#gs-line")).to_contain_text("You, 1 simulated A100")
    expect(page.locator("#gs-steps")).to_be_hidden()
    hub.until(user, "parked")
    expect(page.locator("#gs-progress[data-state=stopped]")).to_be_visible()  # the hub waits no more, its place stays
    page.click("text=Notify me here when it is ready")
    expect(page.locator("#gs-notify")).to_contain_text("This browser notifies you when it is ready")
    assert_accessible(page)
    page.evaluate("look(false)")
    all_taken()
    hub.until(user, "running")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(16_000)  # a hidden page asks every 15 s
    expect(page).to_have_title(re.compile("^Ready - "))
    page.clock.run_for(16_000)
    came = ("/api/v1/workspaces", "/hub/gpuspawner/ticket")
    assert [url for url in asked if not url.endswith(came)] == [], "a tab that nobody sees opens nothing"
    (note,) = page.evaluate("notes")
    assert note.startswith("Your workspace is ready: It has been ready since ")
    page.evaluate("look(true)")
    page.wait_for_url(f"**/user/{user}/**")


def test_over_plain_http_it_is_said_why_there_is_no_button(hub, page, user, all_taken):
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false });")
    page.goto(f"{hub.url}/hub/spawn")
    page.click("button[type=submit]")
    expect(page.locator("#gs-notify")).to_contain_text("Browsers allow it only over https or on localhost.")
    expect(page.locator("#gs-notify button")).to_have_count(0)


def test_the_homes_of_service_and_hub_tell_in_their_titles_too(hub, page, user, all_taken):
    hub.begin(user, template="lab", gpu="a100")
    hubs = page.context.new_page()
    for one in (page, hubs):
        one.clock.install()
        one.add_init_script(AWAY)
    held: list[Route] = []
    hubs.route("**/static/ready.js*", lambda route: held.append(route))  # noqa: PLW0108 - playwright takes no builtin
    hubs.goto(f"{hub.url}/hub/home?hub", wait_until="domcontentloaded")
    # Its first look is over.
    expect(hubs.locator("link[rel=icon]")).to_have_attribute("href", re.compile("gpu-waiting"))
    held.pop().continue_()
    page.goto(f"{hub.url}/services/gpu/")
    expect(page.locator("#ready")).to_contain_text("Notify me here when it is ready")
    hub.until(user, "parked")
    for one in (page, hubs):
        one.evaluate("look(false)")
    all_taken()
    hub.until(user, "running")
    for one in (page, hubs):
        one.clock.run_for(16_000)
        expect(one).to_have_title(re.compile("^Ready - "))


def test_start_while_one_runs_offers_to_open_it_or_a_second_one_by_name(hub, page, user, assert_accessible):
    hub.begin(user, template="lab", gpu="a100")
    hub.until(user, "running")
    page.goto(f"{hub.url}/hub/spawn?kind=a100")
    expect(page.get_by_role("heading", level=1)).to_have_text("Your workspace is running")
    expect(page.locator("#gs-second")).to_contain_text("Running on 1 simulated A100")
    assert_accessible(page)
    page.click("text=Start another one")
    page.wait_for_url(f"**/hub/spawn/{user}/workspace-2?kind=a100")
    expect(page.locator("button[type=submit]")).to_be_visible()
    page.goto(f"{hub.url}/hub/spawn/{user}")
    page.click("text=Open it")
    page.wait_for_url(f"**/user/{user}/**")
    eventually(lambda: len([x for x in hub.workspaces() if x["user"] == user]) == 1, 10, "one workspace alone")
