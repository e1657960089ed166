"""Without a GPU and back on a real hub, from the workspace's page; and stopped for good while it is under way."""

from pathlib import Path

from harness.hub import eventually
from playwright.sync_api import expect


def show(page, hub, lease):
    page.goto(f"{hub.url}/services/gpu/workspaces/{lease['id']}")


def restart(page, how, says=""):
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("button", name=f"Restart {how} GPU…").click()
    dialog = page.get_by_role("dialog", name=f"Restart {how} GPU?")
    expect(dialog).to_contain_text("You lose running kernels and what they hold in memory, so save first.")
    expect(dialog).to_contain_text(says)
    dialog.get_by_role("button", name=f"Restart {how} GPU").click()


def test_it_goes_on_without_a_gpu_and_back_from_its_page(hub, page, user):
    hub.begin(user, template="lab", gpu="a100", count=1)
    first = hub.until(user, "running")
    show(page, hub, first)
    restart(page, "without")
    expect(page.get_by_role("heading", name="You restarted it without a GPU")).to_be_visible()
    without = eventually(lambda: (one := hub.until(user, "running"))["id"] != first["id"] and one)
    assert (without["request"]["gpu"], without["gpus"]) == (None, [])
    show(page, hub, without)
    restart(page, "with", "The requested GPUs are free now.")
    back = eventually(lambda: (one := hub.until(user, "running"))["id"] != without["id"] and one)
    assert back["request"] == first["request"]


def test_while_its_own_script_still_runs_it_is_stopped_for_good(hub, page, user, assert_accessible):
    hub.begin(user, template="lab", gpu="a100", count=1)
    first = hub.until(user, "running")
    script = Path(hub.folder) / "homes" / user / ".gpuspawner" / "on-stop"
    script.parent.mkdir(exist_ok=True)
    script.write_text("echo saving; until [ -e saved ]; do sleep 0.2; done; echo saved")
    show(page, hub, first)
    restart(page, "without")
    stop = page.get_by_role("button", name="Stop it for good")
    expect(stop).to_be_visible()
    assert_accessible(page, "#main")
    stop.click()
    expect(
        page.get_by_role("heading", name=f"{user} stopped it").or_(page.get_by_role("heading", name="You stopped it"))
    ).to_be_visible()
    expect(stop).to_have_count(0)
    (script.parents[1] / "saved").touch()
    hub.until_ended(user, "stopped", 90)
    assert [one for one in hub.workspaces() if one["user"] == user] == [], "it starts no more"
    show(page, hub, first)
    expect(page.get_by_role("region", name="Last output of its server")).to_contain_text("saved")


def test_it_gets_another_size_from_its_page_though_the_service_is_killed_meanwhile(hub, page, user):
    hub.begin(user, template="lab", gpu="a100", count=1)
    first = hub.until(user, "running")
    show(page, hub, first)
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("link", name="Change size").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("GPUs").fill("2")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("It can start now.")
    dialog.get_by_role("button", name="Restart now").click()
    eventually(lambda: hub.gpu(f"/workspaces/{first['id']}")["phase"] in {"stopping", "ended"}, 30, "it stops")
    hub.kill_service()
    larger = eventually(lambda: (one := hub.until(user, "running"))["id"] != first["id"] and one, 90, "it runs again")
    assert (larger["request"]["count"], len(larger["gpus"])) == (2, 2)
    assert first["gpus"][0]["id"] in {gpu["id"] for gpu in larger["gpus"]}
