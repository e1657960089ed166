"""Consent to another GPU, in Chromium: while one waits, and before Start to one on a spot node."""

from __future__ import annotations

import pytest
from harness.hub import RealHub
from playwright.sync_api import expect

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB, price: 2.10}
  h100: {title: H100, match: NVIDIA-H100, memory: 80GiB, price: 4.00}
  t4: {title: T4, match: Tesla-T4, memory: 16GiB, price: 1.00}
  t4-spot: {title: T4 on spot, match: Tesla-T4, memory: 16GiB, price: 0.35, spot: true}
simulated: {a100: 1, h100: 1, t4: 1, t4-spot: 1}
templates:
  lab: {title: Lab, gpus: {a100: 1, h100: 1}, default: {gpu: a100}, substitutes: {a100: [h100]}}
  small: {title: Small, gpus: {t4: 1, t4-spot: 1}, default: {gpu: t4}, substitutes: {t4: [t4-spot]}}
"""
START = "button[type=submit]"
SPOT = "Spot: the cloud may take its node back at any time, two minutes before or less; it then returns to the queue"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Somebody holds each of its GPUs but the one on a spot node."""
    real = RealHub(tmp_path_factory.mktemp("hub"), wait=600.0)
    real.catalog.write_text(CATALOG)
    try:
        real.start()
        for kind, template in {"a100": "lab", "h100": "lab", "t4": "small"}.items():
            real.add_user(f"hoarder-{kind}")
            real.begin(f"hoarder-{kind}", template=template, gpu=kind)
            real.until(f"hoarder-{kind}", "running")
        yield real
    finally:
        real.close()


def test_promise_7_consent_is_one_click_on_the_pages_of_who_waits(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    page.click(START)
    page.wait_for_url("**/spawn-pending/**")
    others = page.get_by_role("region", name="Start sooner")
    expect(others).to_contain_text("4.00 instead of 2.10 per hour")
    also = others.get_by_role("button", name="Accept H100")
    expect(also).to_be_visible()
    assert_accessible(page, "#gs-progress")
    also.focus()
    page.keyboard.press("Enter")
    taken = others.get_by_role("button", name="Do not accept H100")
    expect(taken).to_be_focused()
    lease = hub.lease(user)
    assert lease["request"]["substitutes"][0]["consented"]

    page.goto(f"{hub.url}{lease['page']}")
    expect(page.locator("#given")).to_contain_text("or instead H100")
    assert_accessible(page)
    page.get_by_role("button", name="Do not take H100").click()
    expect(page.get_by_role("listitem").filter(has_text="Also accept H100")).to_contain_text(
        "4.00 instead of 2.10 per hour"
    )
    expect(page.get_by_role("button", name="Accept H100")).to_be_visible()
    now = hub.lease(user)
    assert not now["request"]["substitutes"][0]["consented"]
    assert (now["id"], now["asked_at"]) == (lease["id"], lease["asked_at"])
    assert [line["why"] for line in hub.audit(now["id"], "consented")] == ["h100", "none but the one asked for"]


def test_promise_7_a_spot_node_is_granted_only_with_consent(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn?opt-template=small")
    kind = page.locator("[data-kind=t4-spot]")
    expect(kind).to_contain_text("0.35 per hour, spot: the cloud may take it back at any time")
    expect(page.locator("#gs-sentence")).to_contain_text("The only simulated T4 is in use")
    expect(page.locator("#gs-sentence")).not_to_contain_text("Spot:")
    assert [one["kind"] for one in hub.gpu("/offers")["offers"] if one["spot"]] == ["t4-spot"]

    tick = page.get_by_role("checkbox", name="T4 on spot")
    expect(tick).not_to_be_checked()
    tick.check()
    sentence = page.locator("#gs-sentence")
    expect(sentence).to_contain_text("You get T4 on spot instead of T4, as you allowed: 0.35 instead of 1.00 per hour.")
    expect(sentence).to_contain_text(SPOT)
    expect(page.get_by_text("on a spot node").first).to_be_visible()
    assert_accessible(page)
    page.click(START)
    lease = hub.until(user, "running")
    assert lease["gpu"] == "t4-spot"
