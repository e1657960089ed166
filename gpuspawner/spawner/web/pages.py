"""The hub's own pages: where our templates lie, and what they may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from jupyterhub.utils import isoformat

from gpuspawner.catalog import Catalog
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.units import show_bytes, show_cpu, show_duration, show_time
from gpuspawner.look import LOOK
from gpuspawner.spawner.hub.service import SERVICE
from gpuspawner.spawner.web.live import ServiceView, of_server, split_sentences
from gpuspawner.version import describe_version

TEMPLATES = Path(__file__).parent / "templates"


def template_paths() -> list[str]:
    """Return the folders for ``c.JupyterHub.template_paths``. The administrator's own templates come first."""
    return [str(TEMPLATES), str(LOOK)]


def page_variables(catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path) -> dict[str, Any]:
    """Return the variables for ``c.JupyterHub.template_vars``.

    ``gpuspawner`` is the visitor's PageView: the hub calls it at each rendering, so that every page has a fresh
    ticket. ``gpuspawner_prefix`` is where browsers find the service, for pages without a signed-in user;
    ``gpuspawner_service`` is what the hub calls it. ``gpuspawner_zone`` is the zone in which pages show times.
    """
    return {
        "gpuspawner": viewer(catalog, service_prefix, service_url, secret_file),
        "gpuspawner_prefix": service_prefix,
        "gpuspawner_service": SERVICE,
        "gpuspawner_version": describe_version(),
        "gpuspawner_zone": catalog.rules.timezone,
    }


def viewer(
    catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path
) -> Callable[[Any], PageView | None]:
    """Return the function that makes the PageView of a hub's user. It returns None without a user."""
    zone = ZoneInfo(catalog.rules.timezone)

    def view(user: Any) -> PageView | None:
        if user is None:
            return None
        secret = bytes.fromhex(secret_file.read_text(encoding="ascii").strip())
        ticket = sign_ticket(secret, user.name, isoformat(user.orm_user.created), time.time())
        return PageView(user.name, service_prefix, catalog.fast, ServiceView(service_url, ticket, secret), zone)

    return view


@dataclass(frozen=True)
class PageView:
    """The data of the templates. Methods ask the service. Jinja awaits them in the hub's asynchronous rendering."""

    user: str
    prefix: str
    fast: float | None
    service: ServiceView
    zone: ZoneInfo
    """The catalog's, in which every page shows times."""
    _answers: list[tuple[Mapping[str, Any], ...] | None] = field(default_factory=list, repr=False)

    @property
    def ticket(self) -> str:
        """The ticket by which the page's JavaScript asks the service."""
        return self.service.ticket

    async def workspaces(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the user's workspaces, live ones first, None if the service does not answer. A page asks once."""
        if not self._answers:
            self._answers.append(await self.service.workspaces())
        return self._answers[0]

    async def output(self, own: Mapping[str, Any]) -> str:
        """Return the last output of the user's own failed workspace; "" without output."""
        failed = own["end"] is not None and own["end"]["reason"] == "failed"
        return await self.service.output(own["id"]) if failed else ""

    @staticmethod
    def of_server(workspaces: tuple[Mapping[str, Any], ...] | None, server: str) -> Mapping[str, Any] | None:
        """Return the workspace of a server, live or ended last. Return None without one or without an answer."""
        return of_server(workspaces, server)

    def unread(self, workspaces: tuple[Mapping[str, Any], ...] | None) -> Mapping[str, Any] | None:
        """Return the last ended workspace, if its user did not end it and has not read the reason."""
        last = next((w for w in workspaces or () if w["end"] is not None), None)
        if last is None or last["end"]["seen"] or last["end"]["by"] == self.user or last["end"]["dispute"]:
            return None  # of one that they called wrong they know: the banner tells its answer
        return last

    @staticmethod
    def sentences(text: str) -> list[str]:
        """Return the sentences of a text: the first one of a page is its heading."""
        return split_sentences(text)

    def describe(self, own: Mapping[str, Any]) -> str:
        """Return the sizes, the team and the time of a request: ``16 cores for 12 h · Vision · requested 14:05``."""
        request = own["request"]
        sizes = [
            _cores(request["cpu_cores"]) if request["cpu_cores"] else "",
            show_bytes(request["memory_bytes"]) + " memory" if request["memory_bytes"] else "",
        ]
        asked = f"{', '.join(filter(None, sizes))} for {show_duration(request['lifetime_seconds'])}".strip()
        return " · ".join(filter(None, [asked, request["team_title"], f"requested {self.clock(own['asked_at'])}"]))

    def clock(self, at: float) -> str:
        """Return a time as every page shows it: ``18:30``."""
        return show_time(at, time.time(), self.zone)


def _cores(count: float) -> str:
    return f"{show_cpu(count)} {'core' if count == 1 else 'cores'}"
