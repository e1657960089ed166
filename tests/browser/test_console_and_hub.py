"""What an administrator does on a real hub, with people who have its pages open, in a real browser."""

from __future__ import annotations

import csv
import re

import pytest
from groups import ruled_hub
from playwright.sync_api import expect

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
  t4: {title: T4, match: Tesla-T4, memory: 16GiB}
simulated: {a100: 4}
templates: {lab: {title: Lab, gpus: {a100: 1-4, t4: 1}, default: {gpu: a100, lifetime: 8h}}}
policies: {default: {mode: observe, idle: {below: 5%, for: 30m, sample: 1s, grace: 10m}}}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with ruled_hub(tmp_path_factory.mktemp("console"), CATALOG) as real:
        yield real


@pytest.mark.slow  # test_administering_pages.py has the same story without a hub
def test_from_a_kind_that_matches_nothing_to_a_drained_node_a_message_and_who_wasted_most(hub, page, user, admin):
    hub.begin(user, template="lab", gpu="a100", count=2)
    hub.until(user, "running")
    page.goto(f"{hub.url}/hub/home?hub")

    admin.goto(f"{hub.url}/hub/home?hub")
    admin.get_by_role("link", name="GPU workspaces").first.click()
    admin.get_by_role("link", name="Admin", exact=True).click()
    expect(admin.get_by_role("region", name="What does not work")).to_contain_text("No GPU matches the kind t4")

    admin.get_by_role("link", name=re.compile("^Drain… ")).first.click()
    dialog = admin.get_by_role("dialog", name="Drain a node")
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"{user}: default workspace. It goes on.")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(admin.get_by_role("row", name=re.compile("^A100"))).to_contain_text("2")
    hub.add_user("late")
    hub.begin("late", template="lab", gpu="a100")
    waiting = hub.until("late", "queued")
    assert "out of service" in waiting["queue"]["sentence"]

    admin.get_by_role("navigation", name="Console").get_by_role("link", name="Workspaces").click()
    admin.get_by_role("checkbox", name="All on this page").check()
    admin.get_by_role("button", name="Message…").click()
    dialog = admin.get_by_role("dialog", name="Send a message")
    dialog.get_by_label("Text").fill("This node gets a new driver on Friday.")
    dialog.get_by_label("Until").fill("3d")
    dialog.get_by_role("button", name="See what it does").click()
    expect(dialog.get_by_role("status")).to_contain_text("It reaches 1 person")
    dialog.get_by_role("button", name="Send it").click()
    # A page of the hub that was open, and looks twice a minute.
    expect(page.get_by_text("This node gets a new driver on Friday.")).to_be_visible(timeout=60_000)

    admin.goto(f"{hub.url}/services/gpu/console/restrictions")
    admin.get_by_text("Lift…").first.click()
    admin.get_by_label("Reason").first.fill("The driver is in")
    admin.get_by_role("button", name="Lift it").click()
    expect(admin.get_by_text("Nothing is restricted now.")).to_be_visible()
    hub.until("late", "running")

    admin.get_by_role("navigation", name="Console").get_by_role("link", name="Use", exact=True).click()
    admin.get_by_role("link", name="This week").click()
    admin.get_by_role("link", name="Idle", exact=True).click()
    with admin.expect_download() as download:
        admin.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert rows[0]["name"] == user, "two GPUs for longer than anybody's one"
    assert float(rows[0]["idle"]) > 0
    hub.stop("late")
    hub.until_ended("late", "stopped")
