"""Makes docs/screenshots/: the demo of `make run FAST=1`, used by alice and bob in a real browser.

    .venv/bin/python -m docs.screenshots [FOLDER]

It needs what `make test` installs. With another FOLDER it makes all pages in all widths. Look at every picture
before you commit it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from demo.ports import pick_free

ROOT = Path(__file__).parents[1]
OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "screenshots"
KEPT = {path.name for path in (ROOT / "docs" / "screenshots").glob("*.png")}
"""The pictures that are committed. Only these are written into their folder."""
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
CHROMIUM += ["--disable-component-update", "--disable-sync"]
CONSOLE = {
    "now": "",
    "usage": "usage",
    "workspaces": "workspaces",
    "queue": "queue",
    "people": "people",
    "person": "people/alice",
    "gpus": "gpus",
    "quotas": "quotas",
    "extra-quota": "extra-quota",
    "restrictions": "restrictions",
    "drain": "act/drain",
    "audit": "audit",
}
OWN = ("tokens", "reference", "login-code")
"""More pages of the service for all users."""
LOOKS = {
    "1280-light": (1280, "light"),
    "1280-dark": (1280, "dark"),
    "390-light": (390, "light"),
    "390-dark": (390, "dark"),
    "320-light": (320, "light"),
    "2560-light": (2560, "light"),
}


def start_demo(data: str, port: int) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Start the demo; return it with everybody's password, as its welcome prints them."""
    environment = {**os.environ, "PORT": str(port), "FAST": "1", "DATA": data, "NO_COLOR": "1"}
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo.run"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    passwords = {}
    assert demo.stdout is not None
    for line in demo.stdout:
        print(line, end="")
        if found := re.search(r"\b(alice|bob|admin)\s+(\S+)\s+(?:team|administrator)", line):
            passwords[found[1]] = found[2]
        if "Ctrl-C" in line and "ends everything" in line:
            break
    return demo, passwords


def sign_in(browser: Browser, url: str, name: str, password: str) -> BrowserContext:
    """Return a signed-in browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(url)
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_load_state()
    page.close()
    return context


def picture(context: BrowserContext, url: str, name: str) -> None:
    """Photograph a page in every look."""
    page = context.new_page()
    for look, (width, scheme) in LOOKS.items():
        if len(sys.argv) == 1 and f"{name}-{look}.png" not in KEPT:
            continue
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(url)
        page.wait_for_load_state()
        time.sleep(1.5)
        # The Start bar of a phone lies at the end of the page, and the summary beside the form at its top.
        page.evaluate("scrollTo(0, innerWidth > 1024 ? 0 : document.body.scrollHeight)")
        page.screenshot(path=OUT / f"{name}-{look}.png", full_page=True)
    page.close()


def workspace_of(page: Page, url: str) -> str:
    """Return the address of the first workspace on the service's home page."""
    page.goto(f"{url}/services/gpu/")
    link = page.locator('a[href*="/workspaces/"]').first
    link.wait_for()
    return url + str(link.get_attribute("href"))


def start(context: BrowserContext, url: str, **options: str) -> Page:
    """Press Start, with the form filled in by its link."""
    page = context.new_page()
    page.goto(f"{url}/hub/spawn?" + "&".join(f"opt-{key}={value}" for key, value in options.items()))
    page.get_by_role("button", name=re.compile("Start")).click()
    return page


def alice_and_bob(alice: BrowserContext, bob: BrowserContext, url: str) -> None:
    """Walk from the form to why it was stopped, photographing every page."""
    picture(alice, f"{url}/hub/spawn", "form")
    lab = start(alice, url)
    lab.wait_for_url(re.compile("/user/alice/lab"), timeout=90_000)
    lab.locator(".jp-Notebook").wait_for(timeout=60_000)
    lab.locator(".jp-Cell").first.click()
    lab.keyboard.press("Escape")
    lab.keyboard.press("Control+Home")
    for _ in range(5):  # text, text, nvidia-smi, text, busy
        lab.keyboard.press("Shift+Enter")
        time.sleep(1)
    time.sleep(20)
    lab.screenshot(path=OUT / "jupyterlab-busy.png")
    page = alice.new_page()
    mine = workspace_of(page, url)
    picture(alice, mine, "workspace")
    picture(alice, f"{url}/services/gpu/quota", "quota")
    waiting = start(bob, url, gpu="a100", count="4")
    time.sleep(4)
    waiting.screenshot(path=OUT / "queue-progress.png", full_page=True)
    picture(bob, f"{url}/services/gpu/", "home-waiting")
    picture(bob, f"{url}/hub/spawn-pending/bob", "progress")
    lab.locator('[role="alert"]').first.wait_for(timeout=400_000)
    lab.screenshot(path=OUT / "jupyterlab-warning.png")
    picture(alice, f"{url}/hub/home?hub", "hub-home-warning")
    page.goto(mine)
    page.get_by_text(re.compile("why it was stopped|was idle", re.IGNORECASE)).first.wait_for(timeout=200_000)
    page.get_by_role("heading", name="Stopping").wait_for(state="detached", timeout=60_000)
    picture(alice, mine, "why-stopped")
    page.get_by_role("button", name="This was wrong").click()
    page.get_by_label("What was running?").last.fill("My notebook read data, and was about to train.")
    page.get_by_role("button", name="Send report").click()
    page.get_by_role("heading", name="Your report").wait_for()


def announce(admin: BrowserContext, url: str) -> None:
    """Announce a maintenance to all users, as an administrator does."""
    page = admin.new_page()
    page.goto(f"{url}/services/gpu/console/act/announce")
    page.get_by_label("Until").fill("3d")
    page.get_by_label("Text").fill("Maintenance on Friday from 18:00 to 20:00. Workspaces end at 17:50: save before.")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Send").click()
    page.get_by_role("heading", name="Restrictions").first.wait_for()
    page.close()


def main() -> int:
    """Make all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    port = pick_free(1)[0]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as data:
        demo, passwords = start_demo(data, port)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium-headless-shell"), args=CHROMIUM
                )
                picture(browser.new_context(), f"{url}/hub/login", "login")
                alice = sign_in(browser, url, "alice", passwords["alice"])
                bob = sign_in(browser, url, "bob", passwords["bob"])
                admin = sign_in(browser, url, "admin", passwords["admin"])
                for own in OWN:
                    picture(alice, f"{url}/services/gpu/{own}", own)
                alice_and_bob(alice, bob, url)
                announce(admin, url)
                picture(alice, f"{url}/services/gpu/", "home")
                picture(alice, f"{url}/services/gpu/inbox", "inbox")
                for name, page in CONSOLE.items():
                    picture(admin, f"{url}/services/gpu/console/{page}", f"console-{name}")
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
