"""A Home page that stands open when a workspace turns idle."""

from __future__ import annotations

import pytest
from harness.hub import RealHub
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub whose times are a thirtieth: 6 s of idling, and 20 s to object."""
    with RealHub(tmp_path_factory.mktemp("hub"), gpus=1, fast=30, idle="3m", sample="30s", grace="10m") as real:
        yield real


def test_a_home_page_open_before_the_grace_warns_within_seconds_of_it_and_offers_keep(hub, page, plain_page, user):
    hub.begin(user, template="lab", gpu="a100")
    hub.until(user, "running")
    page.goto(f"{hub.url}/hub/home?hub")
    own = page.locator("[aria-label='Your workspaces']")
    expect(own).to_contain_text("Running on 1 simulated A100")
    expect(page.locator("#gs-warnings")).to_be_empty()
    until = own.locator("[data-until]")
    expect(until).to_contain_text("until ")
    expect(until).to_be_visible()
    plain_page.goto(f"{hub.url}/hub/home?hub")
    expect(plain_page.locator("[data-until]")).to_be_visible()
    left = hub.until(user, "reclaiming", 60)["keep"]["left"]
    expect(page.locator("#gs-warnings")).to_contain_text("The GPU has been idle for", timeout=7000)
    expect(page.locator("#gs-warnings")).to_contain_text("This workspace stops at")
    expect(own).to_contain_text("Idle on 1 simulated A100: stops soon")  # no line of the page contradicts it
    expect(own).to_contain_text(", stops at ")
    expect(until).to_be_hidden()
    page.locator("#gs-warnings").get_by_role("button", name="Keep").click()
    expect(page.locator("#gs-warnings")).to_be_empty()
    expect(until).to_be_visible()
    assert hub.until(user, "running")["keep"]["left"] == left - 1
