"""The proxy's page for a service that does not answer. Only the GPU service gets its own words."""

from __future__ import annotations

import os
import signal

from playwright.sync_api import expect


def test_the_page_of_a_server_that_is_down_stays_the_hubs_own(hub, page, user):
    hub.begin(user, template="cpu")
    (pid,) = hub.server_pids(hub.until(user, "running", 60)["id"])
    os.kill(pid, signal.SIGKILL)  # the hub looks every two seconds
    page.goto(f"{hub.url}/user/{user}/lab")
    expect(page.locator("h1:visible")).to_contain_text("This does not answer now")
    expect(page.locator("body")).to_contain_text("Your server appears to be down", use_inner_text=True)
    expect(page.locator("#gs-away")).to_be_hidden()


def test_while_the_service_is_away_its_pages_say_so_and_load_again_by_themselves(
    hub, page, plain_page, away, assert_accessible
):
    plain_page.goto(f"{hub.url}/services/gpu/")
    expect(plain_page.locator("#gs-not-ours")).to_contain_text("it is away for a moment", use_inner_text=True)
    page.goto(f"{hub.url}/services/gpu/")
    expect(page.locator("h1:visible")).to_have_text("The GPU service is away")
    expect(page.locator("body")).not_to_contain_text("Try restarting it", use_inner_text=True)
    expect(page).to_have_title("The GPU service is away")
    expect(page.get_by_role("link", name="Sign in")).to_have_count(0)
    expect(page.get_by_role("link", name="Workspaces")).to_have_attribute("href", "/hub/home")
    assert_accessible(page)
    away.unlink()
    expect(page).to_have_title("Workspaces", timeout=40_000)


def test_home_says_what_works_meanwhile_and_leads_on_once_the_service_is_back(
    hub, page, user, request, assert_accessible
):
    hub.begin(user, template="cpu")
    hub.until(user, "running", 60)
    away = request.getfixturevalue("away")
    page.goto(f"{hub.url}/hub/home")
    expect(page.get_by_role("heading", name="The GPU service is away")).to_be_visible()
    running = page.get_by_role("region", name="Running, as the hub knows it")
    expect(running.get_by_role("link", name="Open default workspace")).to_have_attribute("href", f"/user/{user}/")
    expect(page.get_by_role("link", name="Start without a GPU")).to_be_visible()
    assert_accessible(page, phone=True)
    away.unlink()
    expect(page).to_have_url(f"{hub.url}/services/gpu/", timeout=40_000)
