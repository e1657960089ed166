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
    expect(told).to_contain_text("Saved: Mon, Tue, Wed, Thu, Fri, Sat 6:30. Next ready")
    expect(told).to_contain_text("Your request joins the queue about")
    expect(told).to_have_role("status")
    assert page.url.endswith("/hub/spawn#gs-ready"), "Enter starts nothing"
    assert_accessible(page, "#gs-ready")
    page.get_by_role("link", name="Your schedules").click()
    card = page.locator("#mine li").filter(has_text="Scheduled")
    expect(card).to_contain_text("lab · a100")
    expect(card).to_contain_text("Next ready")
    card.get_by_role("link", name="Edit the schedule Mon, Tue, Wed, Thu, Fri, Sat 6:30").press("Enter")
    page.get_by_label("Ready at").fill("09:15")
    for day in ("Mon", "Tue", "Wed", "Thu"):
        page.get_by_label(day, exact=True).uncheck()
    assert_accessible(page)
    page.get_by_role("button", name="Save schedule").press("Enter")
    expect(page.get_by_text("Fri, Sat 9:15").first).to_be_visible()
    page.get_by_role("button", name="Pause Fri, Sat 9:15").press("Enter")
    expect(page.get_by_text("Paused. Resume it to use it again.")).to_be_visible()
    page.get_by_role("button", name="Resume Fri, Sat 9:15").press("Enter")
    expect(page.get_by_text("Next ready")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).press("Enter")
    page.get_by_role("dialog", name="Delete the schedule").get_by_role("button", name="Delete schedule").press("Enter")
    expect(page.get_by_role("heading", name="Workspaces", exact=True)).to_be_visible()
    expect(page.get_by_text("Scheduled")).to_have_count(0)


def test_an_impossible_time_is_reported_at_its_field(hub, page):
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


def test_an_open_menu_stays_open_while_the_page_renews_itself(browser, world):
    pages.api(world, "alice", "ready", "POST", {"at": "8:00", "on": "daily"})
    world.save(pages.running("mine"))
    page = open_page(browser, world, "")
    page.get_by_role("button", name="More for default workspace").click()
    expect(page.locator("#menu-mine")).to_be_visible()
    world.save(pages.running("second", server="second", gpus=(1,)))
    expect(page.locator("#mine .gs-card")).to_have_count(3, timeout=12_000)
    expect(page.locator("#menu-mine")).to_be_visible()
    assert page.problems == []
