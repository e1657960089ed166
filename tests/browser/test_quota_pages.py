"""The pages of quotas in a real Chromium: axe in both schemes and widths, by keyboard, and without JavaScript."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Key
from gpuspawner.core.rules import LatestEnd, Rate

QUOTAS = {
    "each-user": {"each": "user", "gpus": {"soft": 2, "hard": 4}, "gpu_hours": {"per": "week", "soft": 20, "hard": 40}},
    "vision": {"group": "vision", "gpus": {"hard": 3}, "cost": {"per": "month", "hard": 5000}},
    "all": {"everybody": True, "memory": {"hard": "512GiB"}},
}
RULES = {
    "timezone": "Europe/Zurich",
    "contact": "gpu-help@example.org",
    "teams": {"vision": {"title": "Vision", "weight": 2}},
    "quotas": QUOTAS,
    "hours": [{"when": "Mon-Fri 20:00-07:00", "policy": "kernels", "instead_of": "default"}],
    "holds": [{"group": "cs231", "gpu": "t4", "count": 8, "when": "Thu 09:00-11:00"}],
    "make_room": {"after": "30m"},
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """alice of Vision runs two and waits for two, bob runs one; a grant, one taken back, and a stronger claim."""
    made = pages.World(tmp_path, monkeypatch, load_catalog({**pages.CATALOG, **RULES}))
    made.observe()
    made.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    made.groups["alice"] = {"vision"}
    rate = Rate(Fraction(1), Fraction("2.1"))
    bound = LatestEnd(pages.NOW + 3 * 3600, "budget", "ends at 14:10, when your 40 GPU h are used up", "each-user")
    ours = pages.running("runs", rate=rate, deadline_at=bound.at, latest_end=bound)
    claimed = pages.running("claimed", gpus=(1,), server="second", minutes=45, rate=rate)
    waits = replace(pages.waiting("waits", user="alice", count=2), key=Key("hub-1", "alice born", "third"))
    for lease in (ours, claimed, waits):
        made.save(replace(lease, request=replace(lease.request, team="vision")))
    made.save(pages.running("bobs", "bob", gpus=(2, 3), minutes=1, rate=rate))
    for body in ({"user": "alice", "what": "2 GPUs"}, {"team": "vision", "what": "9 cost"}):
        given = pages.api(made, "admin", "quota-grants", "POST", {**body, "until": "3d", "why": "The paper"}).json()
    pages.api(made, "admin", f"quota-grants/{given['id']}", "DELETE", {"why": "Done"})
    pages.api(made, "admin", "preemptions", "POST", {"kind": "a100", "count": 1, "external": "train-77"})
    for body in ({"what": "1 GPU"}, {"what": "20 GPU h", "since": "2d"}, {"what": "1 GPU", "team": "vision"}):
        asked = {"until": "5d", "why": "The reviewers ask for two more seeds of each ablation.", **body}
        sent = pages.api(made, "alice", "quota-requests", "POST", asked).json()
    pages.api(made, "admin", f"quota-requests/{sent['id']}/decline", "POST", {"why": "Vision is full this week."})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("who", "path", "heading"),
    [
        pytest.param("alice", "", "Quota", marks=pytest.mark.slow),
        ("alice", "quota", "Rules that apply to you"),
        ("alice", "quota/request", "Request more"),
        ("admin", "console/requests", "Requests"),
        pytest.param("bob", "quota", "GPU hours", marks=pytest.mark.slow),
        ("alice", "workspaces/waits", "In line"),
        pytest.param("alice", "workspaces/claimed", "Details", marks=pytest.mark.slow),
        ("admin", "console/quotas", "Requests with priority"),
    ],
)
def test_axe_finds_nothing_wrong(browser, world, assert_accessible, who, path, heading):
    world.signing_in = who
    page = open_page(browser, world, path)
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert_accessible(page)
    assert page.problems == []


def test_a_limit_leads_to_its_rule(browser, world):
    page = open_page(browser, world, "quota")
    page.get_by_role("link", name="Team Vision: GPUs now").press("Enter")
    expect(page).to_have_url(re.compile("/quota#rule-vision$"))
    rule = page.locator("#rule-vision")
    expect(rule).to_contain_text("Team Vision together may have at most 3 GPUs at once")
    expect(rule).to_be_in_viewport()


def test_a_waiting_user_reads_the_blocking_rule_and_the_end_of_the_claimed_workspace(browser, world):
    page = open_page(browser, world, "workspaces/waits")
    expect(page.locator("#waiting")).to_contain_text("You asked for 2 GPUs. Team vision has 2 of 3 in use. Ask for 1")
    page.get_by_role("link", name="quota vision").click()
    expect(page).to_have_url(re.compile("/quota#rule-vision$"))
    page = open_page(browser, world, "workspaces/claimed")
    expect(page.get_by_role("alert").first).to_contain_text("train-77 needs 1 A100 80 GB")
    expect(page.locator("#stats")).to_contain_text("Time left5 min")


@pytest.mark.parametrize("scripts", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_extra_quota_is_given_corrected_and_taken_back_by_keyboard(browser, world, assert_accessible, scripts):
    world.signing_in = "admin"
    page = open_page(browser, world, "console/quotas", java_script_enabled=scripts)
    page.get_by_role("link", name="Give extra quota").press("Enter")
    form = page.get_by_role("dialog", name="Give extra quota") if scripts else page.locator("#act")
    form.get_by_label("User", exact=True).fill("bob")
    form.get_by_label("How much").fill("1")
    form.get_by_label("Of what").select_option("T4 16 GB at once")
    form.get_by_label("Until").fill("someday")
    form.get_by_label("Reason").fill("A course")
    form.get_by_role("button", name="Preview").press("Enter")
    until = form.get_by_label("Until")
    expect(until).to_have_attribute("aria-invalid", "true")
    expect(until).to_have_accessible_description(re.compile("'someday' is not a time. Allowed: a day"))
    expect(form.get_by_label("User", exact=True)).to_have_value("bob")
    expect(form.get_by_label("Of what")).to_have_value("t4")
    if scripts:
        expect(form.get_by_role("alert")).to_be_focused()
        assert_accessible(page, ".gs-dialog[open]")
    until.fill("tomorrow")
    form.get_by_label("Reason").press("Enter")
    expect(form.get_by_role("status")).to_contain_text("1 t4 more for bob until")
    if scripts:
        assert_accessible(page, ".gs-dialog[open]")
    form.get_by_role("button", name="Give extra quota").press("Enter")
    page.get_by_role("link", name="Take back: 1 t4 for bob").press("Enter")
    form = page.get_by_role("dialog", name="Take extra quota back") if scripts else page.locator("#act")
    expect(form).to_contain_text("1 t4 more for bob")
    form.get_by_label("Reason").fill("No course")
    form.get_by_label("Reason").press("Enter")
    expect(page.get_by_role("link", name="Take back: 1 t4 for bob")).to_have_count(0)
    page.get_by_role("button", name="Give up: 1 A100 80 GB for train-77").press("Enter")
    expect(page.get_by_text("No request has priority over running workspaces.")).to_be_visible()
    page.goto(f"{world.home}console/extra-quota?state=taken+back")
    expect(page.get_by_role("row", name=re.compile("bob .* No course"))).to_be_visible()


def test_hours_are_moved_in_a_dialog_after_a_preview(browser, world, assert_accessible):
    world.signing_in = "admin"
    page = open_page(browser, world, "console/quotas")
    page.get_by_role("link", name="Move hours").click()
    form = page.get_by_role("dialog", name="Move hours between members")
    form.get_by_label("From", exact=True).fill("bob")
    form.get_by_label("To", exact=True).fill("alice")
    form.get_by_label("How much").fill("5")
    form.get_by_label("Of what").select_option("GPU hours")
    form.get_by_label("Reason").fill("Holiday")
    form.get_by_role("button", name="Preview").click()
    preview = form.get_by_role("status")
    expect(preview).to_contain_text("5 GPU h for alice, from bob, until")
    expect(preview).to_contain_text(re.compile(r"Bob: [0-9.]+ GPU hours left this week instead of "))
    assert_accessible(page, ".gs-dialog[open]", phone=True)
    form.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_text("-5 GPU h")).to_be_visible()
    assert page.problems == []
