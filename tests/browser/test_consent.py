"""Consent to another GPU while one waits, in Chromium: on the progress page, and on the workspace's own."""

from __future__ import annotations

import pytest
from harness import RealHub
from playwright.sync_api import expect

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB, price: 2.10}
  h100: {title: H100, match: NVIDIA-H100, memory: 80GiB, price: 4.00}
simulated: {a100: 1, h100: 1}
templates:
  lab: {title: Lab, gpus: {a100: 1, h100: 1}, default: {gpu: a100}, substitutes: {a100: [h100]}}
"""
START = "button[type=submit]"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Two people hold its two GPUs."""
    real = RealHub(tmp_path_factory.mktemp("hub"), wait=600.0)
    real.catalog.write_text(CATALOG)
    try:
        real.start()
        for name, kind in {"hoarder-1": "a100", "hoarder-2": "h100"}.items():
            real.add_user(name)
            real.begin(name, gpu=kind)
            real.until(name, "running")
        yield real
    finally:
        real.close()


def test_promise_7_consent_is_one_click_on_the_pages_of_who_waits(hub, page, user, assert_accessible):
    page.goto(f"{hub.url}/hub/spawn")
    page.click(START)
    page.wait_for_url("**/spawn-pending/**")
    others = page.get_by_role("group", name="Other GPUs")
    also = others.get_by_role("button", name="Also take H100 (4.00 instead of 2.10 an hour)")
    expect(also).to_be_visible()
    assert_accessible(page, "#gs-progress")
    also.focus()
    page.keyboard.press("Enter")
    taken = others.get_by_role("button", name="Do not take H100")
    expect(taken).to_be_focused()
    lease = hub.lease(user)
    assert lease["request"]["substitutes"][0]["consented"]

    page.goto(f"{hub.url}{lease['page']}")
    expect(page.locator("#given")).to_contain_text("or instead H100")
    assert_accessible(page)
    page.get_by_role("button", name="Do not take H100").click()
    expect(page.get_by_role("button", name="Also take H100 (4.00 instead of 2.10 an hour)")).to_be_visible()
    now = hub.lease(user)
    assert not now["request"]["substitutes"][0]["consented"]
    assert (now["id"], now["asked_at"]) == (lease["id"], lease["asked_at"])
    assert [line["why"] for line in hub.audit(now["id"], "consented")] == ["h100", "none but the one asked for"]
