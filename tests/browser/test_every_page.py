"""Each page that a link leads to: it is there, fits the narrowest screen, and axe finds nothing in either scheme."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest

WIDTHS = (320, 480, 768, 1024)
OK, NOT_FOUND = 200, 404
WIDE = 1280
"""On a screen so wide no table is cut."""
ONE_OF = re.compile(r"/(people|workspaces|ready|statements)/[^/]+$")
"""Pages that differ only in their data. The first one stands for all."""
NO_PAGE = re.compile(r"/(logout|api|user|spawn-pending|cli)(/|$)|\.(csv|json|ics)$")
OF_JUPYTERHUB = "/hub/admin"
"""Its buttons have no names. Nothing here draws them."""
TOUCHING = """all => all.filter((one) => all.some((other) => {
  const [above, below] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
  const gap = below.top - above.bottom, aside = below.left >= above.right || above.left >= below.right;
  return !aside && gap > -2 && gap < 6;
})).map((one) => one.textContent.trim().slice(0, 40))"""
"""Returns the beginnings of panels with another panel directly below."""
LEAST = {"/hub/spawn", "/hub/token", "/services/gpu/", "/services/gpu/quota", "/services/gpu/console/roles"}


def kind_of(address: str) -> str:
    """Return an address without its query and the name of what it shows."""
    path = urlsplit(address).path
    return ONE_OF.sub(r"/\1/*", path)


@pytest.mark.parametrize("with_axe", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["widths", "axe"])
def test_every_page_fits_a_phone_and_has_no_barrier(hub, admin, assert_accessible, with_axe):
    seen, problems = set(), []
    hub.add_user("holder")
    hub.begin("holder", template="lab", gpu="a100", count=4)
    hub.until("holder", "running")
    hub.begin("admin", template="lab", gpu="a100")
    hub.until("admin", "queued")
    reserved = {"what": "reserve", "kind": "a100", "count": 1, "user": "holder", "begins": "1d", "until": "3d"}
    weekly = {**reserved, "every": "Mon-Sun 09:00-11:00", "reason": "A lab course that every student has to visit"}
    for body in ({**reserved, "reason": "A demonstration"}, weekly):
        hub.gpu("/admin/restrictions", "POST", body)
    missing = f"{hub.url}/hub/missing"
    coming = [f"{hub.url}/services/gpu/", f"{hub.url}/hub/home?hub", missing]
    while coming:
        address = coming.pop(0)
        if kind_of(address) in seen:
            continue
        seen.add(kind_of(address))
        answer = admin.goto(address)
        if answer.status != (NOT_FOUND if address == missing else OK):
            problems.append((address, answer.status))
        again = admin.locator("#main").get_attribute("data-url") if admin.locator("#main").count() else None
        if again is not None and urlsplit(urljoin(admin.url, again)).path != urlsplit(address).path:
            problems.append((address, f"its numbers are refreshed from {again}"))
        if with_axe and kind_of(address) != OF_JUPYTERHUB:
            assert_accessible(admin)
        for width in WIDTHS:
            admin.set_viewport_size({"width": width, "height": 800})
            if admin.evaluate("document.documentElement.scrollWidth") > width:
                problems.append((address, width))
            problems += [(address, width, one) for one in admin.eval_on_selector_all(".gs-panel", TOUCHING)]
        admin.set_viewport_size({"width": WIDE, "height": 800})
        tables = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"
        problems += [(address, table) for table in admin.eval_on_selector_all(".gs-scroll:has(table)", tables)]
        links = admin.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")
        found = [urljoin(admin.url, link) for link in links]
        coming += [one for one in found if one.startswith(hub.url) and not NO_PAGE.search(urlsplit(one).path)]
    hub.end(hub.lease("admin")["id"])  # before its GPU is free: it would start
    hub.stop("holder")
    hub.until_ended("holder", "stopped")
    assert problems == []
    assert seen >= LEAST
