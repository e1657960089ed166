"""The addresses of a workspace: its applications and ports, the form filled in like it, and its command for SSH."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from gpuspawner.catalog import LINKED, PAGES, to_options
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.workspaces.models import Workspace


def start_again_links(hub_prefix: str, lease: Lease, user: str) -> dict[str, str]:
    """Return links to the hub's form, filled in like this request. Nothing starts before a click there.

    ``user`` is the present name of its user.
    """
    server = f"/{quote(lease.key.server, safe='@~')}" if lease.key.server else ""
    form = f"{hub_prefix}spawn/{quote(user, safe='@~')}{server}"
    options = to_options(lease.request) if lease.request.template else {}
    without = to_options(replace(lease.request, gpu=None, count=0)) if options else {}
    return {"same": _with_options(form, options), "without_gpu": _with_options(form, without)}


def _with_options(form: str, options: Mapping[str, Any]) -> str:
    linked = {f"opt-{key}": value for key, value in options.items() if key in LINKED}
    return f"{form}?{urlencode(linked)}" if linked else form


def server_link(hub_prefix: str, lease: Lease, page: str = "user") -> str:
    """Return the address of a workspace's server, or with ``page="hub/spawn-pending"`` of its start's progress."""
    base = hub_prefix.removesuffix("hub/")
    return f"{base}{page}/{quote(lease.user, safe='@~')}/" + (
        f"{quote(lease.key.server, safe='@~')}/" if lease.key.server else ""
    )


DEFAULT_SERVER = "-"
"""The name of the default server on the command line."""
PAGES_SHOWN = {"lab": "Open JupyterLab", "vscode": "Open VS Code"}


def open_links(hub_prefix: str, lease: Lease, shown: Workspace) -> list[tuple[str, str]]:
    """Return the applications and ports of a running workspace, the default first: words and address.

    jupyter-server-proxy in the workspace serves ports below ``/proxy/``.
    """
    server = server_link(hub_prefix, lease)
    links = [(PAGES_SHOWN[what], server + PAGES[what].lstrip("/")) for what in shown.opens if what in PAGES]
    ports = [(f"Open {one.title}", f"{server}proxy/{one.port}/") for one in shown.ports]
    return [*(links or [("Open JupyterLab", server)]), *ports]


def ssh_line(lease: Lease, url: str) -> str:
    """Return the command that opens a workspace by SSH. ``url`` is the address of the service."""
    return shlex.join(["gpuspawner", "ssh", "--url", url, lease.key.server or DEFAULT_SERVER])
