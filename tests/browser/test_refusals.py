"""Refused by each rule, on a real hub in a real browser: the page says what to do, who does it gets a workspace."""

from __future__ import annotations

import re

import pytest
from groups import join, ruled_hub
from playwright.sync_api import expect

START = "button[type=submit]"
CATALOG = """
version: 1
contact: gpu-help@example.org
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
  h100: {title: H100, match: NVIDIA-H100, memory: 80GiB, groups: [leads]}
simulated: {a100: 4, h100: 1}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4, h100: 1}
    bounds: {cpu: 1-4, memory: 1GiB-8GiB, lifetime: 10m-12h}
    default: {gpu: a100, cpu: 1, memory: 1GiB, lifetime: 2h}
policies: {default: {mode: observe, lifetime: 10m-12h, extend: {each: 1h, total: 9h, warn: [10m]}}}
teams: {vision: {title: Vision}, speech: {title: Speech}}
quotas:
  each-user: {each: user, gpus: {hard: 2}, workspaces: {hard: 2}}
  each-of-speech: {each: user, group: speech, gpu_hours: {per: week, hard: 2}}
  vision: {group: vision, gpus: {hard: 2}}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with ruled_hub(tmp_path_factory.mktemp("refused"), CATALOG, "vision", "speech", "leads", wait=60.0) as real:
        yield real


def show_form(page, hub, query=""):
    page.goto(f"{hub.url}/hub/spawn{query}")
    return page.locator("#gs-sentence")


def starts(page, hub, user, server=""):
    """Press Start, and see the workspace open."""
    expect(page.locator("#gs-sentence")).to_contain_text("Starts now on 1 simulated A100" if server else "Starts now")
    page.click(START)
    page.wait_for_url(f"**/user/{user}/**", timeout=40_000)
    return hub.until(user, "running", server=server)


def test_more_gpus_than_a_quota_gives_are_refused_and_what_it_says_instead_starts(hub, page, user):
    sentence = show_form(page, hub)
    page.fill("#gs-count", "3")
    expect(sentence).to_contain_text("GPUs: You asked for 3. Allowed: 2 per user")
    expect(sentence).to_contain_text("Ask for 2. Raising it: gpu-help@example.org.")
    expect(page.get_by_label("GPUs", exact=True)).to_have_attribute("aria-invalid", "true")
    page.fill("#gs-count", "2")
    assert starts(page, hub, user)["request"]["count"] == 2


@pytest.mark.slow  # test_form_choices.py has it without a hub
def test_limits_of_a_template_are_reported_for_all_fields_at_once_with_the_allowed_starts(hub, page, user):
    sentence = show_form(page, hub)
    page.fill("#gs-memory", "64GB")
    page.locator("[data-other]").check()
    page.fill("#gs-lifetime", "3 days")
    expect(sentence).to_have_text("Change Memory and Run time first.")
    expect(page.get_by_label("Memory", exact=True)).to_have_accessible_description(
        re.compile("Allowed: 1 GiB to 8 GiB")
    )
    expect(page.get_by_role("textbox", name="Run time")).to_have_accessible_description(
        re.compile("Allowed: 10 min to 12 h")
    )
    with page.expect_navigation():  # the hub's words stand above the form until the form has its own
        page.click(START)
    expect(page.locator("#gs-problems")).to_contain_text("Nothing was started. 2 fields need a change.")
    expect(page.locator("#gs-problems").get_by_role("link")).to_have_text(["Memory", "Run time"])
    expect(page.locator("#gs-memory")).to_have_value("64GB")
    page.fill("#gs-memory", "8")
    page.fill("#gs-lifetime", "12 h")
    asked = starts(page, hub, user)["request"]
    assert (asked["memory_bytes"], asked["lifetime_seconds"]) == (8 * 2**30, 12 * 3600)


@pytest.mark.slow  # core/test_quotas.py has the rule
def test_a_third_workspace_is_refused_and_starts_once_one_is_stopped(hub, page, user):
    hub.begin(user, template="lab", gpu="none")
    hub.begin(user, "second", template="lab", gpu="none")
    hub.until(user, "running")
    hub.until(user, "running", server="second")
    sentence = show_form(page, hub, f"/{user}/third")
    expect(sentence).to_contain_text(
        "You asked for 1 workspace. Allowed: 2 workspaces per user. You use or wait for 2. Stop another"
    )
    hub.stop(user, "second")
    expect(sentence).to_contain_text("Starts now", timeout=30_000)
    starts(page, hub, user, "third")


def test_a_team_that_is_full_is_waited_for_and_it_starts_when_a_colleague_stops(hub, page, user):
    join(hub, "colleague", "vision")
    join(hub, user, "vision")
    hub.begin("colleague", template="lab", gpu="a100", count=2)
    hub.until("colleague", "running")
    full = "You asked for 1 GPU. Team vision has 2 of 2 in use. Wait until a colleague stops"
    expect(show_form(page, hub)).to_contain_text(full)
    page.click(START)
    expect(page.locator("#gs-sentence")).to_contain_text(full)
    hub.stop("colleague")
    page.wait_for_url(f"**/user/{user}/**", timeout=40_000)


@pytest.mark.slow  # tests/hub/test_budgets.py has the rule
def test_a_budget_that_is_set_aside_refuses_and_what_it_says_frees_it(hub, page, user):
    join(hub, user, "speech")
    hub.begin(user, template="lab", gpu="a100", lifetime="2h")
    hub.until(user, "running")
    sentence = show_form(page, hub, f"/{user}/second")
    expect(sentence).to_contain_text("GPU hours: You asked for 1 GPU for 2 h. Allowed: ")
    expect(sentence).to_contain_text("Stop what you do not need, or ask gpu-help@example.org for more.")
    hub.stop(user)
    expect(sentence).to_contain_text("when your 2 GPU hours this week are used up", timeout=30_000)
    starts(page, hub, user, "second")


@pytest.mark.slow  # tests/hub/test_teams.py has the rule
def test_a_template_for_others_is_hidden_and_a_link_to_it_says_so(hub, page, user):
    sentence = show_form(page, hub, "?opt-gpu=h100")
    expect(page.locator("[data-kind=h100]")).to_have_count(0)
    expect(page.get_by_role("alert").first).to_contain_text("h100")
    page.check("input[name=gpu][value=a100]")
    expect(sentence).to_contain_text("Starts now on 1 simulated A100")
    join(hub, user, "leads")
    show_form(page, hub, "?opt-gpu=h100")
    expect(page.locator("input[name=gpu][value=h100]")).to_be_checked()


@pytest.mark.slow  # catalog/test_own_software.py has the rule
def test_a_password_in_a_repository_address_is_refused_at_its_field(hub, page, user):
    show_form(page, hub)
    page.get_by_text("Advanced options").click()
    page.fill("#gs-repository", "https://me:secret@git.example.org/a.git")
    expect(page.locator("#gs-repository-wrong")).to_contain_text("password")
    page.fill("#gs-repository", "https://git.example.org/a.git")
    expect(page.locator("#gs-sentence")).to_contain_text("Starts now")
    expect(page.locator("#gs-repository-wrong")).to_be_hidden()


@pytest.mark.slow  # core/test_restrictions.py has the rule
def test_paused_grants_are_waited_for_with_the_reason_and_lifting_starts_it(hub, page, user):
    paused = {"what": "pause", "kind": "a100", "reason": "the network is repaired", "until": "1h"}
    made = hub.gpu("/admin/restrictions", "POST", paused)["restrictions"][0]
    expect(show_form(page, hub)).to_contain_text("paused it (the network is repaired)")
    page.click(START)
    expect(page.locator("#gs-sentence")).to_contain_text("paused it (the network is repaired)")
    hub.gpu(f"/admin/restrictions/{made['id']}", "DELETE", {"reason": "it is back"})
    page.wait_for_url(f"**/user/{user}/**", timeout=40_000)


@pytest.mark.slow  # core/test_restrictions.py has the rule
def test_gpus_held_for_others_are_explained_and_waited_for(hub, page, user):
    hub.add_user("guest")
    held = {"what": "reserve", "kind": "a100", "count": 4, "user": "guest", "until": "1h", "reason": "a demonstration"}
    made = hub.gpu("/admin/restrictions", "POST", held)["restrictions"][0]
    sentence = show_form(page, hub)
    expect(sentence).to_contain_text("4 A100 are reserved for guest until ")
    expect(page.locator("[data-kind=a100] [data-free]")).to_have_text("None free")
    page.click(START)
    hub.until(user, "queued")
    hub.gpu(f"/admin/restrictions/{made['id']}", "DELETE", {"reason": "it is over"})
    page.wait_for_url(f"**/user/{user}/**", timeout=40_000)
