import os
import pytest
from test_workspace_pages import seed, world
from service_pages import open_page, pages

PATHS = os.environ.get(
    "SHOTS", ",workspaces/busy,workspaces/warned,workspaces/waits,workspaces/gone,quota,inbox,tokens"
).split(",")


def test_shots(browser, world):
    seed(world)
    os.makedirs("/tmp/upshots", exist_ok=True)
    for path in PATHS:
        name = path.replace("/", "-") or "home"
        page = open_page(browser, world, path)
        page.wait_for_timeout(200)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (1280, 390):
                if (scheme, width) in {("dark", 390)}:
                    continue
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(100)
                page.screenshot(path=f"/tmp/upshots/{name}-{width}-{scheme}.png", full_page=True)
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    print("WIDE", path, width)
        print(path, page.problems)
        page.context.close()

def test_more(browser, world, monkeypatch):
    from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, UsageSums
    from page_world import api
    seed(world)
    r = api(world, "alice", "ready", "POST", {"template": "pytorch", "gpu": "a100", "count": 1, "at": "8:00", "on": "weekdays", "server": "nightly"})
    print(r.status_code, r.text[:300])
    def put():
        with world.parts.store.usage_sums._transaction(writes=True) as c:
            for day, a, i in (("2027-01-11", 16.0, 2.2), ("2027-01-12", 9.8, 2.8), ("2027-01-13", 18.9, 1.5), ("2027-01-14", 3.4, 2.6)):
                UsageSums.write(c, [UsagePart(day, "alice born", "alice", "", "a100", "pytorch", "node-1", UsageAmounts(active=a, idle=i, not_measured=0.4))])
    put()
    name = r.json().get("id", "x")
    for path in ("quota", f"ready/{name}", "inbox", "tokens", "login-code", ""):
        page = open_page(browser, world, path)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (1280, 390):
                if (scheme, width) == ("dark", 390): continue
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(100)
                page.screenshot(path=f"/tmp/upshots/{path.split('/')[0] or 'home2'}-{width}-{scheme}.png", full_page=True)
                if page.evaluate("document.documentElement.scrollWidth") > width: print("WIDE", path, width)
        print(path, page.problems)
        page.context.close()
    world.signing_in = "bob"
    page = open_page(browser, world, "")
    page.screenshot(path="/tmp/upshots/homeempty-1280-light.png", full_page=True)
