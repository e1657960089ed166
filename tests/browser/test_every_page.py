"""Each page that a link leads to: it fits the narrowest screen, and axe finds nothing in either scheme."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest

WIDTHS = (320, 480, 768, 1024)
ONE_OF = re.compile(r"/(people|workspaces|ready|statements)/[^/]+$")
"""Pages that differ only in their data. The first one stands for all."""
NO_PAGE = re.compile(r"/(logout|api|user|spawn-pending|cli)(/|$)|\.(csv|json|ics)$")
OF_JUPYTERHUB = "/hub/admin"
"""Its buttons have no names. Nothing here draws them."""
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
    coming = [f"{hub.url}/services/gpu/", f"{hub.url}/hub/home?hub", f"{hub.url}/hub/missing"]
    while coming:
        address = coming.pop(0)
        if kind_of(address) in seen:
            continue
        seen.add(kind_of(address))
        admin.goto(address)
        if with_axe and kind_of(address) != OF_JUPYTERHUB:
            assert_accessible(admin)
        for width in WIDTHS:
            admin.set_viewport_size({"width": width, "height": 800})
            if admin.evaluate("document.documentElement.scrollWidth") > width:
                problems.append((address, width))
        links = admin.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")
        found = [urljoin(admin.url, link) for link in links]
        coming += [one for one in found if one.startswith(hub.url) and not NO_PAGE.search(urlsplit(one).path)]
    hub.stop("holder")
    hub.until_ended("holder", "stopped")
    hub.stop("admin")
    assert problems == []
    assert seen >= LEAST
