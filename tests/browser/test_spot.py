"""Spot nodes in Chromium: offered with their price and what may happen, given to nobody who did not tick them."""

from __future__ import annotations

import pytest
from harness import RealHub
from playwright.sync_api import expect

CATALOG = """
version: 1
gpus:
  t4: {title: T4, match: Tesla-T4, memory: 16GiB, price: 1.00}
  t4-spot: {title: T4 on spot, match: Tesla-T4, memory: 16GiB, price: 0.35, spot: true}
simulated: {t4: 1, t4-spot: 1}
templates:
  lab: {title: Lab, gpus: {t4: 1, t4-spot: 1}, default: {gpu: t4}, substitutes: {t4: [t4-spot]}}
"""
START = "button[type=submit]"
SPOT = "Spot: the cloud may take its node back at any time, two minutes before or less; it then goes back to its place"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Somebody holds the only GPU that is not spot."""
    real = RealHub(tmp_path_factory.mktemp("hub"), wait=600.0)
    real.catalog.write_text(CATALOG)
    try:
        real.start()
        real.add_user("hoarder")
        real.begin("hoarder", gpu="t4")
        real.until("hoarder", "running")
        yield real
    finally:
        real.close()


def test_promise_7_a_spot_node_is_given_to_who_ticks_it_and_to_nobody_else(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    kind = page.locator("[data-kind=t4-spot]")
    expect(kind).to_contain_text("0.35 an hour, spot: the cloud may take it back at any time")
    expect(page.locator("#gs-sentence")).to_contain_text("The only simulated T4 is in use")
    expect(page.locator("#gs-sentence")).not_to_contain_text("Spot:")
    assert hub.gpu("/offers")["offers"][1]["spot"] is True

    tick = page.get_by_role("checkbox", name="T4 on spot")
    expect(tick).not_to_be_checked()
    tick.check()
    sentence = page.locator("#gs-sentence")
    expect(sentence).to_contain_text("You get T4 on spot instead of T4, as you allowed: 0.35 instead of 1.00 an hour.")
    expect(sentence).to_contain_text(SPOT)
    expect(page.get_by_text("on a spot node").first).to_be_visible()
    assert_accessible(page)
    page.click(START)
    lease = hub.until(user, "running")
    assert lease["gpu"] == "t4-spot"
