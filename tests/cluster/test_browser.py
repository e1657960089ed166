"""The main job on a real cluster in Chromium: a form, steps in words, JupyterLab, and what becomes of idle and busy."""

import re

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually
from playwright.sync_api import expect

SECONDS = 300
"""The longest that anything may take on a busy machine."""
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4}
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {gpu: a100, count: 1, cpu: 0.6, memory: 1GiB, lifetime: 8h}
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 4m, sample: 80s, grace: 4m}}
"""
FAST = 10.0
"""Four minutes are 24 s, and the minute that a workspace has to start up is six seconds."""
EXTRA = """
c.KubeSpawner.http_timeout = 120
c.Spawner.default_url = "/lab"
"""
BUSY = "nohup python3 -c 'from gpuspawner.backends.local import busy; busy(3600, percent=20)' >/dev/null 2>&1 &"
REST = "pkill -f 'busy[(]3600'"  # not the shell that says so


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with simulated(one_machine, 4), one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, fast=FAST, extra=EXTRA)
        hub.catalog.write_text(CATALOG)
        try:
            yield hub.start()
        finally:
            hub.close()


@pytest.fixture
def sign_in(hub, browser):
    """Open a page of somebody who has signed in, in a browser of their own."""
    contexts = []

    def open_page(name):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}))
        page = contexts[-1].new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.goto(f"{hub.url}/hub/login")
        page.fill("#username_input", name)
        page.fill("#password_input", "x")
        page.click("#login_submit")
        page.wait_for_url("**/hub/**")
        return page

    yield open_page
    for context in contexts:
        context.close()


def start(hub, page, user, count):
    """Ask by the form, read how it goes, and wait for JupyterLab."""
    page.goto(f"{hub.url}/hub/spawn")
    page.fill("#gs-count", str(count))
    page.click("button[type=submit]")
    page.wait_for_url(f"**/hub/spawn-pending/{user}**")
    expect(page.locator("#gs-sentence")).to_contain_text(f"Starting on {count} A100", timeout=SECONDS * 1000)
    expect(page.locator("#gs-log")).to_contain_text("gpu-node; waiting for its server", timeout=SECONDS * 1000)
    page.wait_for_url(f"**/user/{user}/lab**")
    page.locator(".jp-LauncherCard").first.wait_for()


def run(page, code):
    """Run code in a new notebook; return the place of its output."""
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    page.keyboard.insert_text(code)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached")
    page.keyboard.press("Shift+Enter")
    return page.locator(".jp-OutputArea-output").first


def do_in(hub, user, script):
    """Run a script in a user's pod."""
    code, _, said = hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "sh", "-c", script)
    assert code == 0, said


def test_from_the_form_to_why_it_was_stopped_while_a_busy_one_lives(hub, sign_in):
    page = sign_in("busy")
    start(hub, page, "busy", 1)
    do_in(hub, "busy", BUSY)
    busy = hub.until("busy", "running", SECONDS)
    page.context.close()

    page = sign_in("idle")
    start(hub, page, "idle", 2)
    do_in(hub, "idle", BUSY)  # until its page was used, which takes its time here
    seen = run(page, "!nvidia-smi -L")
    both = re.compile(r"GPU 0: NVIDIA A100-SXM4-80GB.*\nGPU 1: NVIDIA A100-SXM4-80GB")
    expect(seen).to_contain_text(both, timeout=SECONDS * 1000)
    lease = hub.until("idle", "running", SECONDS)
    assert len(lease["gpus"]) == 2

    # Its page stays open, and goes on asking its server.
    do_in(hub, "idle", REST)
    why = page.get_by_role("dialog", name="This workspace has ended")
    expect(why).to_contain_text("It was idle.", timeout=SECONDS * 1000)
    assert hub.until_ended("idle", "idle", SECONDS)["id"] == lease["id"]
    assert hub.audit(lease["id"], "warned")
    eventually(lambda: hub.pod("idle") is None, SECONDS, "idle's pod is gone")
    with page.context.expect_page() as opened:
        why.get_by_role("link", name="Why it was stopped").click()
    expect(opened.value.get_by_role("heading", name="Why it was stopped")).to_be_visible(timeout=SECONDS * 1000)
    chart = opened.value.get_by_role("img", name=re.compile("^GPU 1 from"))
    expect(chart).to_be_visible(timeout=SECONDS * 1000)

    # The busy one outlived all of that, with no browser open.
    alive = hub.lease("busy")
    assert (alive["id"], alive["phase"], alive["warning"]) == (busy["id"], "running", None)
    eventually(lambda: hub.lease("busy")["gpus"][0]["utilization_percent"] == 20, SECONDS, "it is seen to work")
