"""The hub's own pages with ours in them: from the narrowest to the widest screen nothing is cut or needs scrolling."""

from __future__ import annotations

from playwright.sync_api import expect


def test_form_progress_and_home_fit_the_narrowest_and_the_widest_screen(hub, page, user):
    def fits(path):
        page.goto(f"{hub.url}/hub/{path}")
        page.wait_for_load_state("networkidle")
        for width in (320, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            assert (path, page.evaluate("document.documentElement.scrollWidth") <= width) == (path, True)

    fits("spawn")
    expect(page.locator("#gs-sentence")).to_contain_text("Starts now")
    hub.add_user("holder")
    hub.begin("holder", template="lab", gpu="a100", count=4)
    hub.until("holder", "running")
    hub.begin(user, template="lab", gpu="a100")
    hub.until(user, "queued")
    fits(f"spawn-pending/{user}")
    fits("home?hub")
    hub.stop("holder")
    hub.until_ended("holder", "stopped")
