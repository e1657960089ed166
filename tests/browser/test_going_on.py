"""Without a GPU and back on a real hub, from the workspace's page; and stopped for good while it is under way."""

from pathlib import Path

from harness import eventually
from playwright.sync_api import expect


def show(page, hub, lease):
    page.goto(f"{hub.url}/services/gpu/workspaces/{lease['id']}")


def test_it_goes_on_without_a_gpu_and_back_from_its_page(hub, page, user):
    hub.begin(user, template="lab", gpu="a100", count=1)
    first = hub.until(user, "running")
    show(page, hub, first)
    page.get_by_text("Go on without a GPU…").click()
    expect(page.locator("#go-on")).to_contain_text("Running kernels and what they hold in memory are lost: save first.")
    page.get_by_role("button", name="Go on without a GPU").click()
    expect(page.get_by_role("heading", name="You restarted this workspace without a GPU")).to_be_visible()
    without = eventually(lambda: (one := hub.until(user, "running"))["id"] != first["id"] and one)
    assert (without["request"]["gpu"], without["gpus"]) == (None, [])
    show(page, hub, without)
    page.get_by_text("Go on with a GPU…").click()
    expect(page.locator("#go-on")).to_contain_text("What it asks for is free now.")
    page.get_by_role("button", name="Go on with a GPU").click()
    back = eventually(lambda: (one := hub.until(user, "running"))["id"] != without["id"] and one)
    assert back["request"] == first["request"]


def test_while_its_own_script_still_runs_it_is_stopped_for_good(hub, page, user, assert_accessible):
    hub.begin(user, template="lab", gpu="a100", count=1)
    first = hub.until(user, "running")
    script = Path(hub.folder) / "homes" / user / ".gpuspawner" / "on-stop"
    script.parent.mkdir(exist_ok=True)
    script.write_text("echo saving; sleep 20; echo saved")
    show(page, hub, first)
    page.get_by_text("Go on without a GPU…").click()
    page.get_by_role("button", name="Go on without a GPU").click()
    stop = page.get_by_role("button", name="Stop it for good")
    expect(stop).to_be_visible()
    assert_accessible(page, "#main")
    stop.click()
    expect(page.get_by_label("The reason")).to_contain_text(f"It was stopped by {user}, from its page.")
    expect(stop).to_have_count(0)
    hub.until_ended(user, "stopped", 90)
    assert [one for one in hub.workspaces() if one["user"] == user] == [], "it starts no more"
    show(page, hub, first)
    expect(page.get_by_role("region", name="What it wrote before its end")).to_contain_text("saved")
