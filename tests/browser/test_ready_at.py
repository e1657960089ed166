"""A workspace that is to be ready at a time: chosen on the hub's form; changed, paused and removed on the home."""

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages


def test_it_is_made_on_the_form_by_keyboard_and_changed_paused_and_removed_on_the_home(hub, page, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn#gs-ready")
    time = page.get_by_label("Ready at")
    expect(time).to_be_visible()
    time.fill("06:30")
    days = page.get_by_role("group", name="Days")
    expect(days.get_by_role("checkbox", checked=True)).to_have_count(5)
    days.get_by_label("Sat").check()
    time.press("Enter")
    told = page.locator("#gs-ready-told")
    expect(told).to_contain_text("Mon, Tue, Wed, Thu, Fri, Sat 6:30: Next ready")
    expect(told).to_contain_text("Your request joins the queue about")
    expect(told).to_have_role("status")
    assert page.url.endswith("/hub/spawn#gs-ready"), "Enter starts nothing"
    assert_accessible(page, "#gs-ready")
    page.get_by_role("link", name="Your schedules").click()
    listed = page.get_by_role("region", name="Ready at a time")
    expect(listed.get_by_role("listitem")).to_contain_text("the default workspace (lab, a100): Next ready")
    listed.get_by_label("Change Mon, Tue, Wed, Thu, Fri, Sat 6:30").press("Enter")
    listed.get_by_label("Time").fill("09:15")
    for day in ("Mon", "Tue", "Wed", "Thu"):
        listed.get_by_label(day, exact=True).uncheck()
    assert_accessible(page, ".gs-ready")
    listed.get_by_role("button", name="Save").press("Enter")
    expect(listed.get_by_role("listitem")).to_contain_text("Fri, Sat 9:15")
    listed.get_by_role("button", name="Pause Fri, Sat 9:15").press("Enter")
    expect(listed.get_by_role("listitem")).to_contain_text("Paused. Resume it to use it again.")
    assert_accessible(page, ".gs-ready")
    listed.get_by_role("button", name="Resume Fri, Sat 9:15").press("Enter")
    expect(listed.get_by_role("listitem")).to_contain_text("Next ready")
    listed.get_by_role("button", name="Remove Fri, Sat 9:15").press("Enter")
    expect(listed.get_by_role("listitem")).to_have_count(0)
    page.get_by_role("link", name="Have a workspace ready at a time").click()
    expect(page.get_by_label("Ready at")).to_be_visible()


def test_what_can_not_be_is_said_beside_it(hub, page):
    page.goto(f"{hub.url}/hub/spawn#gs-ready")
    for day in ("Mon", "Tue", "Wed", "Thu", "Fri"):
        page.get_by_role("group", name="Days").get_by_label(day).uncheck()
    page.get_by_role("button", name="Save schedule").click()
    expect(page.locator("#gs-ready-told")).to_contain_text("weekdays, weekend, daily")


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    yield made
    made.close()


def test_a_change_that_is_being_written_stays_while_the_home_renews_itself(browser, world):
    pages.api(world, "alice", "ready", "POST", {"at": "8:00", "on": "daily"})
    world.signing_in = "alice"
    page = open_page(browser, world, "")
    listed = page.get_by_role("region", name="Ready at a time")
    listed.get_by_label("Change daily 8:00").click()
    listed.get_by_label("Time").fill("10:00")
    world.save(pages.running("mine"))
    expect(page.get_by_role("region", name="Mine").get_by_role("listitem")).to_have_count(1, timeout=12_000)
    expect(listed.get_by_label("Time")).to_be_visible()
    expect(listed.get_by_label("Time")).to_have_value("10:00")
    assert page.problems == []
