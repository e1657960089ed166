"""The calendar in a real Chromium: a reservation with a conflict by the dialog, and both pages at two widths."""

import re

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

NODE = pages.GPUS[0].node


@pytest.fixture
def world(tmp_path, monkeypatch):
    """alice runs a workspace; carol's GPUs and maintenance are planned."""
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    made.save(pages.running("runs", gpus=(0, 1), server="train"))
    made.signing_in = "admin"
    for body in (
        {"what": "reserve", "kind": "a100", "count": 3, "user": "bob", "begins": "20h", "until": "30h"},
        {"what": "drain", "node": NODE, "begins": "4d", "until": "5d"},
        {"what": "quarantine", "gpu": f"{NODE}/3"},
    ):
        pages.api(made, "admin", "admin/restrictions", "POST", {**body, "reason": "final projects"}).raise_for_status()
    yield made
    made.close()


def test_gpus_are_reserved_from_the_calendar_by_the_choice_that_fits(browser, world, assert_accessible):
    page = open_page(browser, world, "console/calendar")
    page.get_by_role("link", name="Reserve GPUs").click()
    dialog = page.get_by_role("dialog", name="Reserve GPUs")
    dialog.get_by_label("Number of GPUs").fill("2")
    dialog.get_by_label("User").fill("alice")
    dialog.get_by_label("From").fill("10h")
    dialog.get_by_label("Until").fill("40h")
    dialog.get_by_label("Reason").fill("a demonstration")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("heading", name="1 conflict")).to_be_visible()
    expect(dialog.get_by_role("status")).to_contain_text("3 A100 80 GB are reserved for bob.")
    assert_accessible(page, ".gs-dialog[open]")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("row", name=re.compile("^alice .*2 × A100 80 GB"))).to_be_visible()
    made = world.call(world.parts.restrictions.live)[-1]
    assert (made.begins_at, made.until) == (pages.NOW + 10 * 3600, pages.NOW + 20 * 3600)
    assert page.problems == []


@pytest.mark.parametrize(("name", "path"), [("admin", "console/calendar"), ("alice", "calendar")])
def test_a_calendar_scrolls_in_its_own_region_and_its_table_says_the_same(
    browser, world, assert_accessible, name, path
):
    world.signing_in = name
    page = open_page(browser, world, path)
    region = page.get_by_role("region", name="Calendar: ")
    assert_accessible(page, phone=True)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        expect(region.get_by_text("Maintenance of").first).to_be_attached()
        expect(page.get_by_role("rowheader", name="Maintenance")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert region.evaluate("one => one.scrollWidth > one.clientWidth")
    assert page.problems == []
