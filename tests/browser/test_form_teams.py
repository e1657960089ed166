"""Teams, other GPUs and any GPU on the form in Chromium: the form alone, and a service that notes what is asked."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gpuspawner.catalog import load_text
from gpuspawner.look import LOOK
from gpuspawner.spawner.web import form
from gpuspawner.spawner.web.pages import LiveAnswers

CATALOG = load_text("""
version: 1
gpus:
  a100: {title: A100 80 GB, match: A100, memory: 80GiB, price: 2.10}
  h100: {title: H100 80 GB, match: H100, memory: 80GiB, price: 4.00}
  t4: {title: T4 16 GB, match: T4, memory: 16GiB}
templates:
  lab: {title: Lab, gpus: {a100: 1-4, h100: 1-2, t4: 1}, default: {gpu: a100}, substitutes: {a100: [h100]}}
  big: {title: Big, gpus: {a100: 1, h100: 1}, default: {gpu: a100}, substitutes: {a100: [h100], h100: [a100]}}
""")
HUB = "http://hub.test"
TEAMS = (("vision", "Vision lab"), ("speech", "Speech group with a name that is longer than a phone is wide"))
QUOTA = ["1 of 4 GPUs used, share 2", "team vision: 9 of 16 GPUs used"]


@pytest.fixture
def asked(browser: Browser):
    """Return the page, and the options of each check it asked for."""
    checks: list[dict[str, object]] = []
    live = LiveAnswers({}, "Starts now.")
    html = form.FormView(
        CATALOG, user="alice", server="", ticket="t", service_prefix="/services/gpu/", chosen={}, live=live, teams=TEAMS
    ).render()
    quota = [{"words": words} for words in QUOTA]

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith("/check"):
            checks.append(json.loads(route.request.post_data or "{}"))
            if "team" not in checks[-1]:
                error = {"message": "Say for which team it is.", "field": "team"}
                route.fulfill(status=400, json={"error": error})
                return
            words = [{"kind": "h100", "words": "about 25 min sooner, 4.00 instead of 2.10 per hour"}]
            told = {"sentence": "Starts now.", "starts_now": True, "substitutes": words, "quota": quota}
            route.fulfill(json=told)
        elif path.endswith("/offers"):
            route.fulfill(json={"offers": [], "quota": quota})
        elif path.endswith("/gs.css"):
            route.fulfill(path=LOOK / "gs.css")
        else:
            send = '<input type="submit" value="Start">'
            page = f'<!doctype html><html lang="en"><title>Start</title><main><form method="post">{html}{send}</form>'
            route.fulfill(content_type="text/html", body=page)

    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", answer)
    page.goto(f"{HUB}/hub/spawn")
    yield page, checks
    context.close()


def sent(page: Page, name: str) -> list[str]:
    """Return the values that a submit would send for a field."""
    values: list[str] = page.evaluate(f"new FormData(document.querySelector('form')).getAll({name!r})")
    return values


def test_members_of_several_teams_choose_one_and_read_its_limits(asked, assert_accessible):
    page, checks = asked
    expect(page.locator("#gs-sentence")).to_have_text("Say for which team it is.")
    team = page.get_by_label("Team")
    expect(team).to_have_attribute("aria-invalid", "true")
    assert not page.evaluate("document.querySelector('form').checkValidity()"), "the browser asks for it too"
    team.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#gs-sentence")).to_have_text("Starts now.")
    expect(page.locator("#gs-quota li")).to_have_text(QUOTA)
    assert checks[-1]["team"] == "vision"
    assert_accessible(page, "#gs-form")


def test_accepted_substitutes_follow_template_and_gpu_and_return_with_them(asked, assert_accessible):
    page, _ = asked
    page.get_by_label("Team").select_option("Vision lab")
    box = page.get_by_role("group", name="If another GPU is free sooner").get_by_label("Also accept H100 80 GB")
    expect(box).not_to_be_checked()
    expect(page.locator("[data-given=h100]")).to_contain_text("about 25 min sooner, 4.00 instead of 2.10 per hour")
    with page.expect_request(lambda request: '"substitutes":["h100"]' in (request.post_data or "")):
        box.check()
    assert sent(page, "substitutes") == ["h100"]
    assert_accessible(page, "#gs-form")
    page.check("input[name=gpu][value=t4]")
    expect(page.locator("#gs-instead")).to_be_hidden()
    assert sent(page, "substitutes") == []
    page.check("input[name=gpu][value=a100]")
    expect(box).to_be_checked()
    page.check("input[name=gpu][value=h100]")
    page.check("input[name=template][value=big]")
    other = page.get_by_label("Also accept A100 80 GB")
    expect(other).not_to_be_checked()
    expect(box).to_be_hidden()


def test_another_kind_is_offered_for_as_many_gpus_as_its_template_gives_of_it(asked):
    page, _ = asked
    page.get_by_label("Team").select_option("Vision lab")
    box = page.get_by_label("Also accept H100 80 GB")
    box.check()
    page.fill("#gs-count", "3")  # of four A100, and two H100
    expect(box).to_be_hidden()
    assert sent(page, "substitutes") == []
    page.fill("#gs-count", "2")
    expect(box).to_be_checked()


def test_any_gpu_is_asked_for_by_its_memory(asked):
    page, _ = asked
    memory = page.get_by_role("textbox", name="Memory of each GPU")
    expect(memory).to_be_hidden()
    assert sent(page, "gpu_memory") == []
    page.get_by_label("Team").select_option("Vision lab")
    page.get_by_label("Any GPU").check()
    expect(page.locator("#gs-gpu_memory-hint")).to_have_text("At least this much, up to 80 GiB")
    with page.expect_request(lambda request: '"gpu_memory":"40 GiB"' in (request.post_data or "")) as asks:
        memory.fill("40 GiB")
    assert '"gpu":"any"' in (asks.value.post_data or "")
    assert sent(page, "gpu_memory") == ["40 GiB"]
    expect(page.locator("#gs-count-hint")).to_have_text("1 to 4")
