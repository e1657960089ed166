"""The options form in Chromium, against a real hub and service."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, Route, expect

START = "button[type=submit]"


def sentence(page: Page):
    return page.locator("#gs-sentence")


def show_form(page: Page, hub, query: str = "") -> None:
    page.goto(f"{hub.url}/hub/spawn{query}")


def test_the_form_is_preselected_and_says_what_start_will_do(hub, page, assert_accessible):
    show_form(page, hub)
    expect(page.locator("input[name=template][value=lab]")).to_be_checked()
    expect(page.locator("input[name=gpu][value=a100]")).to_be_checked()
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("4 of 4 free")
    expect(page.get_by_role("group", name="GPU Simulated GPUs")).to_be_visible()
    expect(page.locator("#gs-quota")).to_have_text("0 of 4 GPUs used")
    expect(sentence(page)).to_contain_text("Starts now on 1 simulated A100 (4 free). Ends at")
    assert_accessible(page, phone=True)


def test_all_required_fields_are_in_view_and_start_stays_reachable(hub, page):
    def bottom(selector: str) -> float:
        box = page.locator(selector).bounding_box()
        return box["y"] + box["height"]

    page.set_viewport_size({"width": 1280, "height": 800})
    show_form(page, hub)
    expect(sentence(page)).to_contain_text("Starts now")
    for needed in ("#gs-count", "#gs-cpu", "#gs-memory", "#gs-lifetimes", "[data-kind=a100]", "[data-kind=half]"):
        assert bottom(needed) <= 800
    assert bottom(START) <= 800
    page.set_viewport_size({"width": 390, "height": 500})
    assert bottom(START) <= 500
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert 0 < bottom(START) <= 500
    words, start = page.locator("#gs-go-words").bounding_box(), page.locator(START).bounding_box()
    assert words["x"] + words["width"] <= start["x"], "what Start does stands beside the button"
    assert page.locator("#gs-go-words").text_content().startswith("Starts now")


def test_a_form_with_an_expired_ticket_fetches_a_new_one(hub, page):
    asked: list[str] = []

    def until_a_fresh_one(route: Route) -> None:
        asked.append(route.request.headers["authorization"])
        over = {"status": 403, "json": {"error": {"message": "Over."}}}
        _ = route.fulfill(**over) if asked[-1] == asked[0] else route.continue_()

    page.route("**/services/gpu/api/v1/offers", until_a_fresh_one)
    show_form(page, hub)
    page.evaluate("document.querySelector('[data-kind=a100] [data-free]').textContent = ''")
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("4 of 4 free")
    assert len(set(asked)) > 1


def test_a_form_whose_user_is_signed_out_says_so_with_the_way_back_and_starts_nothing(hub, page, assert_accessible):
    show_form(page, hub)
    expect(sentence(page)).to_contain_text("Starts now")
    page.fill("#gs-memory", "3 GiB")
    cookies = page.context.cookies()
    page.context.clear_cookies()
    over = {"status": 403, "json": {"error": {"message": "Over."}}}
    page.route("**/services/gpu/api/v1/offers", lambda route: route.fulfill(**over))
    note = page.locator("#gs-signed-out")
    expect(note).to_contain_text("You are signed out. This page may be out of date. Sign in again")
    expect(page.locator(START)).to_be_disabled()
    expect(sentence(page)).to_have_text("You are signed out.")
    there = unquote(note.locator("a").get_attribute("href") or "")
    assert "/hub/login?next=/hub/spawn?" in there
    assert "opt-memory=3+GiB" in unquote(there)
    assert_accessible(page)
    page.unroute("**/services/gpu/api/v1/offers")
    page.context.add_cookies(cookies)
    expect(note).to_have_count(0)
    expect(page.locator(START)).to_be_enabled()
    expect(sentence(page)).to_contain_text("Starts now")
    assert page.input_value("#gs-memory") == "3 GiB"


def test_fields_follow_the_template_and_keep_what_was_typed(hub, page):
    show_form(page, hub)
    page.fill("#gs-memory", "3 GiB")
    page.check("input[name=template][value=cpu]")
    expect(page.locator("[data-kind=a100]")).to_be_hidden()
    expect(page.locator("input[name=gpu][value=none]")).to_be_checked()
    expect(page.locator("#gs-count")).to_be_disabled()
    expect(page.locator("#gs-memory")).to_have_value("3 GiB")
    expect(sentence(page)).to_contain_text("Starts now without a GPU.")


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        pytest.param("gs-count", "2", marks=pytest.mark.slow),
        pytest.param("gs-cpu", "1", marks=pytest.mark.slow),
        ("gs-memory", "4 GiB"),
        pytest.param("gs-lifetime", "4h", marks=pytest.mark.slow),
    ],
)
def test_a_field_can_be_emptied_by_keyboard_and_typed_again(hub, page, field, typed):
    show_form(page, hub)
    page.locator("[data-other]").check()
    locator = page.locator(f"#{field}")
    usual = locator.input_value()
    locator.press("End")
    for _ in usual:
        locator.press("Backspace")
    expect(locator).to_have_value("")
    locator.press_sequentially(typed)
    expect(locator).to_have_value(typed)
    locator.press("Control+a")
    locator.press("Delete")
    expect(locator).to_have_value("")
    page.check("input[name=template][value=cpu]")  # what is left empty is the template's own
    page.check("input[name=template][value=lab]")
    page.check("input[name=gpu][value=a100]")
    expect(locator).to_have_value(usual)


def test_it_is_usable_by_keyboard_alone(hub, page):
    show_form(page, hub)
    page.locator("input[name=template][value=lab]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(page.locator("input[name=gpu][value=half]")).to_be_focused()
    expect(sentence(page)).to_contain_text("on 1 simulated Half an A100")


def test_polling_changes_numbers_and_neither_choice_nor_order(hub, page, all_taken):
    show_form(page, hub)
    page.check("input[name=gpu][value=half]")
    order = page.locator("[data-kind]").evaluate_all("rows => rows.map(row => row.dataset.kind)")
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("None free")
    hub.stop("hoarder")
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("4 of 4 free", timeout=15000)
    expect(page.locator("input[name=gpu][value=half]")).to_be_checked()
    assert page.locator("[data-kind]").evaluate_all("rows => rows.map(row => row.dataset.kind)") == order


@pytest.mark.slow
def test_refusals_of_start_are_shown_before_it_is_pressed(hub, page, assert_accessible):
    show_form(page, hub)
    page.fill("#gs-count", "5")
    expect(sentence(page)).to_contain_text("GPUs: You asked for 5. Allowed: 4 per user")
    expect(page.locator("#gs-count")).to_have_attribute("aria-invalid", "true")
    assert_accessible(page)


def test_a_refused_form_comes_back_with_what_was_typed_and_why(hub, page, user):
    show_form(page, hub, f"/{user}/second")
    page.fill("#gs-memory", "64 GiB")
    page.click(START)
    expect(page.locator(".spawn-error-msg")).to_contain_text("Memory: You asked for '64 GiB'. Allowed: 1 GiB to 8 GiB.")
    expect(page.locator("#gs-memory")).to_have_value("64 GiB")
    expect(sentence(page)).to_have_text("Change what is named above.")  # it stands there once
    page.fill("#gs-memory", "2 GiB")
    expect(sentence(page)).to_contain_text("Starts now")
    expect(page.locator(".spawn-error-msg")).to_have_count(0)
    page.check("input[name=gpu][value=none]")
    page.click(START)
    page.wait_for_url(f"**/user/{user}/second/**", timeout=20000)


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("opt-template=lab&opt-gpu=half&opt-lifetime=2h", id="as 6.x has it", marks=pytest.mark.slow),
        pytest.param("template=lab&gpu=half&lifetime=2h", id="without the prefix", marks=pytest.mark.slow),
        pytest.param("opt-gpu=half&opt-lifetime=2h&gpu=a100", id="prefixed ones win"),
    ],
)
def test_a_link_fills_in_and_starts_nothing(hub, page, user, query):
    show_form(page, hub, f"?{query}")
    expect(page.locator("input[name=gpu][value=half]")).to_be_checked()
    expect(page.locator("#gs-lifetime")).to_have_value("2h")
    expect(sentence(page)).to_contain_text("Starts now on 1 simulated Half an A100")
    expect(page.locator(".spawn-error-msg")).to_have_count(0)
    assert hub.server(user) is None


def test_a_link_that_asks_the_impossible_says_so_and_runs_no_script(hub, page, user):
    show_form(page, hub, "?opt-gpu=%3Cscript%3Ethrow%201%3C/script%3E&opt-memory=%22%3E%3Cb%20id=x%3E")
    expect(page.locator("#gs-memory")).to_have_value('"><b id=x>')
    expect(page.locator("#x")).to_have_count(0)
    expect(sentence(page)).to_contain_text("Memory:")
    assert hub.server(user) is None


def test_the_copied_link_fills_in_what_was_chosen(hub, page):
    show_form(page, hub)
    page.check("input[name=gpu][value=half]")
    page.locator("[data-other]").check()
    page.fill("#gs-lifetime", "90m")
    page.get_by_role("button", name="Copy as…").click()
    link = page.get_by_role("button", name="Link to these choices")
    expect(link).to_have_attribute("data-copy", re.compile("90m"))
    command = page.get_by_role("button", name="Command").get_attribute("data-copy")
    assert command == "gpuspawner start lab --gpu half --count 1 --cpu 1 --memory '1 GiB' --lifetime 90m"
    page.goto(link.get_attribute("data-copy"))
    expect(page.locator("input[name=gpu][value=half]")).to_be_checked()
    expect(page.locator("#gs-lifetime")).to_have_value("1h30m")


def test_the_copied_link_of_a_named_servers_form_works_for_every_reader(hub, page, user):
    page.goto(f"{hub.url}/hub/spawn/{user}/train")
    expect(sentence(page)).to_contain_text("Starts now")
    copied = page.locator("#gs-copy").get_attribute("data-copy")
    assert copied.startswith(f"{hub.url}/hub/spawn?opt-template=lab&")


def test_without_javascript_everything_can_be_chosen(hub, plain_page, user):
    show_form(plain_page, hub)
    expect(sentence(plain_page)).to_contain_text("Starts now on 1 simulated A100 (4 free)")
    expect(plain_page.locator("[data-kind=half] [data-free]")).to_have_text("8 of 8 free")
    expect(plain_page.locator("#noscript")).to_be_hidden()
    plain_page.check("input[name=template][value=cpu]")
    plain_page.check("input[name=gpu][value=a100]")
    plain_page.click(START)
    expect(plain_page.locator(".spawn-error-msg")).to_contain_text("No GPU offers no other")
    plain_page.check("input[name=gpu][value='']")  # the usual one of the template: none
    plain_page.click(START)
    assert hub.until(user, "running")["request"]["gpu"] is None


def test_while_the_service_is_away_the_form_says_so_and_works_again_after(hub, page, away):
    show_form(page, hub)
    expect(sentence(page)).to_contain_text("No GPU can be granted now")
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("Not known")
    expect(page.locator("input[name=gpu][value=none]")).to_be_enabled()
    away.unlink()
    expect(sentence(page)).to_contain_text("Starts now", timeout=60000)
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("4 of 4 free")


def test_a_hidden_page_asks_only_whether_a_workspace_came_and_all_else_once_it_is_seen_again(hub, page):
    page.clock.install()
    show_form(page, hub)
    page.wait_for_load_state("networkidle")  # the first questions are answered: the next ones wait for the clock
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    came = ("/api/v1/workspaces", "/hub/gpuspawner/ticket")
    assert [url for url in asked if not url.endswith(came)] == []
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    with page.expect_request("**/api/v1/offers"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
