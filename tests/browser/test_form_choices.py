"""The form's choices of a profile in Chromium: the form alone, and a service that notes what is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gpuspawner.catalog import load_text
from gpuspawner.catalog.requests.profile_options import Menu, MenuOption, Unlisted
from gpuspawner.spawner.web import form

IMAGE = MenuOption("image", "Image", {"old": "PyTorch 1", "new": "PyTorch 2"}, "new", Unlisted("Another image"))
SITE = MenuOption("site", "Site", {"a": "Site A", "b": "Site B"}, "a")
CATALOG = replace(
    load_text(
        "version: 1\ntemplates: {lab: {title: Lab, tools: {nlp: [a], cv: [b]}},"
        " other: {title: Other, tools: {nlp: [c]}}, bare: {title: Bare}}"
    ),
    menus={"lab": Menu("torch", (IMAGE,)), "other": Menu("small", (SITE,)), "bare": Menu("bare")},
)
HUB = "http://hub.test"
CHECKED = {"substitutes": [], "quota": []}


@pytest.fixture
def asked(browser: Browser):
    """Return the page, and the options of each check it asked for."""
    checks: list[dict[str, str]] = []
    html = form.FormView(
        CATALOG, user="alice", server="", ticket="t", own_ticket="own", service_prefix="/services/gpu/", chosen={}
    ).render()
    presets: dict[str, dict[str, str]] = {}

    def of_presets(route: Route) -> None:
        assert route.request.headers["authorization"] == "ticket own", "a form's ticket is not enough"
        name = unquote(urlsplit(route.request.url).path.rpartition("/presets")[2].strip("/"))
        body = json.loads(route.request.post_data or "{}")
        if route.request.method == "DELETE":
            del presets[name]
        elif route.request.method == "POST":
            presets[body["name"]] = presets.pop(name) if name else body["options"]
        route.fulfill(json={"presets": [{"name": one, "options": options} for one, options in presets.items()]})

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if "/presets" in path:
            of_presets(route)
        elif path.endswith("/check"):
            checks.append(json.loads(route.request.post_data or "{}"))
            refused = checks[-1].get("image--unlisted-choice") == "bad"
            error = {"message": "Not this one.", "field": "image--unlisted-choice"}
            body = {"error": error} if refused else {**CHECKED, "sentence": "Starts now.", "starts_now": True}
            route.fulfill(status=400 if refused else 200, json=body)
        elif path.endswith("/offers"):
            route.fulfill(json={"offers": [], "quota": []})
        else:
            route.fulfill(content_type="text/html", body=f'<form method="post" action="{HUB}/hub/spawn">{html}</form>')

    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", answer)
    page.goto(f"{HUB}/hub/spawn")
    yield page, checks
    context.close()


def open_dialog(page: Page) -> None:
    """Open the dialog of presets, as gs.js of the hub's page does."""
    page.evaluate("document.getElementById('gs-preset-dialog').showModal()")


def test_all_errors_are_shown_at_their_fields_with_the_parsed_values(asked: tuple[Page, list]):
    page, _ = asked
    refused = {
        "message": "GPUs: no.",
        "field": "cpu",
        "sentence": "Change CPU cores and Memory first.",
        "fields": [{"field": "cpu", "words": "Too many."}, {"field": "memory", "words": "No size."}],
        "understood": {"lifetime": "1 h 30 min"},
    }
    page.route("**/check", lambda route: route.fulfill(status=400, json={"error": refused}))
    page.locator("[data-other]").check()
    page.fill("#gs-lifetime", "90")
    expect(page.locator("#gs-sentence")).to_have_text(refused["sentence"])
    expect(page.get_by_role("textbox", name="CPU cores")).to_have_accessible_description("1 to 8 Too many.")
    expect(page.get_by_label("Memory", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("textbox", name="Run time")).to_have_accessible_description("30 min to 24 h = 1 h 30 min")
    expect(page.locator("#gs-lifetime")).to_have_value("90")
    four = page.get_by_role("radio", name="4 h", exact=True)
    four.press("Space")
    expect(page.locator("#gs-lifetime")).to_have_value("4h")
    expect(four).to_be_focused()
    page.get_by_role("slider", name="Memory").press("ArrowRight")
    expect(page.locator("#gs-memory")).to_have_value("16 GiB")


def test_a_preset_is_saved_used_renamed_and_deleted_by_keyboard(asked: tuple[Page, list]):
    page, _ = asked
    page.locator("[data-other]").check()
    page.fill("#gs-lifetime", "1h30")
    page.get_by_label("Image", exact=True).select_option("PyTorch 1")
    open_dialog(page)
    name = page.get_by_label("Name of the preset")
    name.fill("for nightly, 50%")
    name.press("Enter")
    expect(page.locator("#gs-preset-problem")).to_have_text("Saved as for nightly, 50%.")
    page.keyboard.press("Escape")
    page.check("input[value=other]")
    page.fill("#gs-lifetime", "2h")
    page.get_by_role("button", name="for nightly, 50%").press("Enter")
    expect(page.locator("#gs-lifetime")).to_have_value("1h30")
    expect(page.locator("input[value=lab]")).to_be_checked()
    expect(page.get_by_label("Image", exact=True)).to_have_value("old")
    expect(page.get_by_role("button", name="for nightly, 50%")).to_be_focused()
    open_dialog(page)
    name.fill("nightly")
    page.get_by_role("button", name="Rename").press("Enter")
    expect(page.locator("#gs-preset-problem")).to_have_text("for nightly, 50% is called nightly now.")
    expect(page.locator("#gs-preset-list button")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Delete").press("Enter")
    expect(page.locator("#gs-preset-problem")).to_have_text("nightly is deleted.")
    expect(page.locator("#gs-preset-list button")).to_have_count(0)
    expect(name).to_be_focused()
    assert page.url == f"{HUB}/hub/spawn", "Enter in the name starts nothing"


def test_the_tools_are_those_of_the_template_chosen_and_part_of_presets_and_not_of_links(asked: tuple[Page, list]):
    page, _ = asked
    with page.expect_request(lambda request: '"tools":["nlp","cv"]' in (request.post_data or "")):
        page.get_by_label("nlp a").check()
        page.get_by_label("cv b").check()
    open_dialog(page)
    name = page.get_by_label("Name of the preset")
    name.fill("both")
    name.press("Enter")
    expect(page.locator("#gs-preset-problem")).to_have_text("Saved as both.")
    page.keyboard.press("Escape")
    assert "tools" not in page.locator("#gs-copy").get_attribute("data-copy"), (
        "whoever opens a link ticks them by themselves"
    )
    page.check("input[value=other]")
    expect(page.get_by_role("group", name="Tools").get_by_role("checkbox")).to_have_count(1)
    expect(page.get_by_label("nlp c")).not_to_be_checked()
    page.check("input[value=bare]")
    expect(page.get_by_role("group", name="Tools")).to_have_count(0)
    assert page.evaluate("new FormData(document.querySelector('form')).getAll('tools')") == []
    page.get_by_role("button", name="both").press("Enter")
    expect(page.get_by_label("nlp a")).to_be_checked()
    expect(page.get_by_label("cv b")).to_be_checked()
    page.check("input[value=other]")
    with page.expect_request(lambda request: '"lifetime":"1h"' in (request.post_data or "")) as check:
        page.get_by_role("radio", name="1 h", exact=True).press("Space")
    assert "tools" not in check.value.post_data


def test_the_choices_are_those_of_the_template_chosen_and_are_checked_before_start(asked: tuple[Page, list]):
    page, checks = asked
    expect(page.get_by_label("Image", exact=True)).to_have_value("")
    expect(page.get_by_label("Site")).to_be_hidden()
    page.get_by_label("Image", exact=True).select_option("PyTorch 1")
    page.get_by_label("Another image").fill("bad")
    expect(page.locator("#gs-sentence")).to_have_text("Not this one.")
    expect(page.get_by_label("Another image")).to_have_attribute("aria-invalid", "true")
    assert {key: checks[-1].get(key) for key in ("image", "image--unlisted-choice")} == {
        "image": "old",
        "image--unlisted-choice": "bad",
    }
    link = parse_qs(urlsplit(page.locator("#gs-copy").get_attribute("data-copy")).query)
    assert link["opt-template"] == ["lab"]
    assert not [key for key in link if "image" in key], "whoever opens a link chooses an image by themselves"
    page.check("input[value=other]")
    expect(page.get_by_label("Image", exact=True)).to_be_hidden()
    with page.expect_request(lambda request: '"site":"b"' in (request.post_data or "")):
        page.get_by_label("Site").select_option("Site B")
    sent = page.evaluate("[...new FormData(document.querySelector('form')).keys()]")
    assert [name for name in sent if name.startswith("profile-option-")] == ["profile-option-small--site"]
    assert "image" not in checks[-1]
    page.check("input[value=bare]")
    expect(page.locator("fieldset[data-profile]:visible")).to_have_count(0)
