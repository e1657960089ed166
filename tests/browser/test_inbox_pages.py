"""Inbox and messages in Chromium: by keyboard, without JavaScript, on a phone, in both themes; axe finds nothing."""

import re

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.core import events
from gpuspawner.service.store import AuditLine

SAID = "Maintenance on <b>Friday</b>.\nSave your work."


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    gone = pages.reclaimed("gone")
    stopped = events.Stopped("idle", "The GPU has been idle for 40 min. Its highest use was 1 %.")
    warned = events.WarnedIdle(1, 1800.0, peak_percent=1.0)
    told = [(pages.NOW - 1200, warned), (pages.NOW - 600, stopped)]
    lines = [AuditLine(at, "gone", "alice", "gpuspawner", event) for at, event in told]
    made.call(made.parts.registry.save, gone, audit=lines)
    yield made
    made.close()


def send(world, to="all"):
    body = {"to": to, "text": SAID, "until": "2h"}
    assert pages.api(world, "admin", "messages", "POST", body).status_code == 201


def test_notices_are_read_one_by_one_and_all_at_once_by_keyboard(browser, world, assert_accessible):
    page = open_page(browser, world, "inbox")
    expect(page).to_have_title("(2) Inbox · GPU workspaces")
    expect(page.get_by_role("navigation").get_by_role("link", name="Inbox 2 unread")).to_be_visible()
    assert_accessible(page)
    warned = page.get_by_role("button", name=re.compile("Mark as read: Idle warning"))
    warned.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title("(1) Inbox · GPU workspaces")
    expect(page.get_by_role("listitem").filter(has_text="for 40 min")).to_contain_text("Unread")
    page.get_by_role("button", name="Mark all as read").press("Enter")
    expect(page).to_have_title("Inbox · GPU workspaces")
    expect(page.get_by_role("button", name=re.compile("Mark"))).to_have_count(0)
    assert world.lease("gone").seen_by_user
    assert page.problems == []


def test_a_message_stands_on_every_page_as_plain_text_until_it_is_read(browser, world, assert_accessible):
    send(world)
    page = open_page(browser, world, "quota")
    told = page.get_by_role("region", name="Announcement from admin")
    expect(told).to_contain_text("Maintenance on <b>Friday</b>.")
    expect(told.locator("b")).to_have_count(0)
    assert_accessible(page)
    told.get_by_role("button", name="Got it").click()
    expect(page).to_have_url(re.compile("/services/gpu/quota$"))  # where one was
    expect(told).to_have_count(0)
    page.goto(f"{world.home}inbox")
    expect(page.get_by_text("Announcement from admin")).to_be_visible()
    assert page.problems == []


def test_an_administrator_sees_the_recipients_of_an_announcement_before_sending_and_ends_it(
    browser, world, assert_accessible
):
    world.signing_in = "admin"
    page = open_page(browser, world, "console/restrictions")
    page.get_by_role("link", name="Announce", exact=True).click()
    dialog = page.get_by_role("dialog", name="Announce")
    dialog.get_by_label("To", exact=True).select_option("One user")
    dialog.get_by_label("Name").fill("nobody")
    dialog.get_by_label("Until").fill("2h")
    dialog.get_by_label("Text").fill("Please look at your quota.")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_label("Text")).to_have_value("Please look at your quota.")
    dialog.get_by_label("Name").fill("bob")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 person will read it")
    assert_accessible(page, ".gs-dialog[open]")
    assert pages.api(world, "bob", "inbox").json()["messages"] == []
    dialog.get_by_role("button", name="Send").click()
    ends = page.get_by_role("button", name="End the announcement to bob: Please look at your quota.")
    ends.wait_for()
    assert len(pages.api(world, "bob", "inbox").json()["messages"]) == 1
    ends.click()
    page.get_by_text("Ended in the last 30 days (1)").click()
    expect(page.get_by_text("ended by admin")).to_be_visible()
    assert pages.api(world, "bob", "inbox").json()["messages"] == []
    page.problems = [one for one in page.problems if "422" not in one and "400" not in one]
    assert page.problems == []


def test_pages_fit_narrow_and_wide_screens(browser, world):
    send(world)
    page = open_page(browser, world, "")
    for path in ("", "inbox", "console/restrictions", "quota", "workspaces/gone"):
        world.signing_in = "admin" if path.startswith("console") else "alice"
        page.context.clear_cookies()
        page.goto(world.home + path)
        for width in (320, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            assert (path, page.evaluate("document.documentElement.scrollWidth") <= width) == (path, True)


def test_light_or_dark_is_chosen_at_the_top_and_kept_for_every_page_of_hub_and_service(
    browser, world, assert_accessible
):
    page = open_page(browser, world, "inbox", color_scheme="light")
    toggle = page.get_by_role("button", name="Dark theme")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.goto(f"{world.home}quota")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("localStorage.getItem('jupyterhub-bs-theme')") == "dark"  # where the hub's own pages look
    assert_accessible(page)


def test_inbox_and_messages_work_without_javascript(browser, world):
    send(world)
    page = open_page(browser, world, "inbox", java_script_enabled=False)
    expect(page.get_by_role("button", name="Dark theme")).to_have_count(0)
    page.get_by_role("button", name="Mark all as read").click()
    expect(page.get_by_role("button", name=re.compile("Mark"))).to_have_count(0)
    expect(page.get_by_role("region", name="Announcement from admin")).to_have_count(0)
