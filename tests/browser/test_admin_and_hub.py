"""Administrator actions on a real hub, while users have their pages open, in a real browser."""

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
    admin.get_by_role("link", name="Workspaces", exact=True).click()
    admin.get_by_role("link", name="Admin", exact=True).click()
    expect(admin.get_by_role("region", name="Problems")).to_contain_text("No GPU matches the kind t4")

    tabs = admin.get_by_role("navigation", name="Admin")
    tabs.get_by_role("link", name="GPUs").click()
    admin.get_by_role("button", name=re.compile("^Actions for ")).first.click()
    admin.get_by_role("link", name="Drain node…").first.click()
    dialog = admin.get_by_role("dialog", name="Drain a node")
    dialog.get_by_label("Reason").fill("A new driver")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"{user} / default workspace")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(admin.get_by_text("Drained by admin: A new driver").first).to_be_visible()
    hub.add_user("late")
    hub.begin("late", template="lab", gpu="a100")
    waiting = hub.until("late", "queued")
    assert "out of service" in waiting["queue"]["sentence"]

    tabs.get_by_role("link", name="Workspaces").click()
    admin.get_by_role("checkbox", name=re.compile("^Select all")).check()
    admin.get_by_role("button", name="Message").click()
    dialog = admin.get_by_role("dialog", name=re.compile("^Message the users"))
    dialog.get_by_label("Text").fill("This node gets a new driver on Friday.")
    dialog.get_by_label("Until").fill("3d")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 person will read it")
    dialog.get_by_role("button", name="Send").click()
    # A page of the hub that was open, and looks twice a minute.
    expect(page.get_by_text("This node gets a new driver on Friday.")).to_be_visible(timeout=60_000)

    admin.goto(f"{hub.url}/services/gpu/console/restrictions")
    admin.get_by_role("link", name=re.compile("^End: Drain")).click()
    dialog = admin.get_by_role("dialog", name="End a restriction")
    dialog.get_by_label("Reason").fill("The driver is in")
    dialog.get_by_role("button", name="End it").click()
    expect(admin.get_by_text("No restriction is in force or coming.")).to_be_visible()
    hub.until("late", "running")

    tabs.get_by_role("link", name="Usage").click()
    admin.get_by_role("navigation", name="Period").get_by_role("link", name="Week").click()
    admin.get_by_role("link", name="Idle", exact=True).click()
    with admin.expect_download() as download:
        admin.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert rows[0]["name"] == user, "two GPUs for longer than anybody's one"
    assert float(rows[0]["idle"]) > 0
    hub.stop("late")
    hub.until_ended("late", "stopped")
