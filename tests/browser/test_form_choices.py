"""The form's choices of a profile in Chromium: the form alone, and a service that notes what is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gpuspawner.catalog import load_text
from gpuspawner.catalog.requests.menus import Menu, MenuOption, Unlisted
from gpuspawner.spawner.web import form

IMAGE = MenuOption("image", "Image", {"old": "PyTorch 1", "new": "PyTorch 2"}, "new", Unlisted("Another image"))
SITE = MenuOption("site", "Site", {"a": "Site A", "b": "Site B"}, "a")
CATALOG = replace(
    load_text("version: 1\ntemplates: {lab: {title: Lab}, other: {title: Other}, bare: {title: Bare}}"),
    menus={"lab": Menu("torch", (IMAGE,)), "other": Menu("small", (SITE,)), "bare": Menu("bare")},
)
HUB = "http://hub.test"
CHECKED = {"substitutes": [], "quota": []}


@pytest.fixture
def asked(browser: Browser):
    """Return the page, and the options of each check it asked for."""
    checks: list[dict[str, str]] = []
    html = form.render(CATALOG, user="alice", server="", ticket="t", service_prefix="/services/gpu/", chosen={})

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith("/check"):
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


def test_all_that_is_wrong_stands_beside_its_field_and_what_was_understood_too(asked: tuple[Page, list]):
    page, _ = asked
    refused = {
        "message": "GPUs: no.",
        "field": "cpu",
        "sentence": "Not possible as it is: see CPU cores and Memory.",
        "fields": [{"field": "cpu", "words": "Too many."}, {"field": "memory", "words": "No size."}],
        "understood": {"lifetime": "1 h 30 min"},
    }
    page.route("**/check", lambda route: route.fulfill(status=400, json={"error": refused}))
    page.fill("#gs-lifetime", "90")
    expect(page.locator("#gs-sentence")).to_have_text(refused["sentence"])
    expect(page.get_by_label("CPU cores")).to_have_accessible_description("1 to 8 Too many.")
    expect(page.get_by_label("Memory", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Lifetime", exact=True)).to_have_accessible_description("30m to 24h = 1 h 30 min")
    expect(page.locator("#gs-lifetime")).to_have_value("90")
    page.get_by_role("button", name="4h", exact=True).press("Enter")
    expect(page.locator("#gs-lifetime")).to_have_value("4h")
    expect(page.get_by_role("button", name="4h", exact=True)).to_be_focused()


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
    page.click("#gs-copy")
    link = parse_qs(urlsplit(page.locator("#gs-url").input_value()).query)
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
