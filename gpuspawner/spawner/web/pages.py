"""The hub's own pages: where our templates lie, and what they may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from jupyterhub.utils import isoformat

from gpuspawner import __version__
from gpuspawner.catalog import Catalog
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.units import show_bytes, show_cpu, show_duration, show_time
from gpuspawner.look import LOOK
from gpuspawner.spawner.hub.service import SERVICE
from gpuspawner.spawner.web.live import ServiceView, of_server, split_sentences

TEMPLATES = Path(__file__).parent / "templates"


def template_paths() -> list[str]:
    """Return what to append to ``c.JupyterHub.template_paths``: the administrator's own templates come first."""
    return [str(TEMPLATES), str(LOOK)]


def page_variables(catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path) -> dict[str, Any]:
    """Return what to merge into ``c.JupyterHub.template_vars``.

    ``gpuspawner`` is a PageView of who looks: the hub calls it at each rendering, so that every page has a fresh
    ticket. ``gpuspawner_prefix`` is where browsers find the service, for pages that nobody is known to look at;
    ``gpuspawner_service`` is what the hub calls it. ``gpuspawner_zone`` is the zone in which pages show times.
    """
    return {
        "gpuspawner": viewer(catalog, service_prefix, service_url, secret_file),
        "gpuspawner_prefix": service_prefix,
        "gpuspawner_service": SERVICE,
        "gpuspawner_version": __version__,
        "gpuspawner_zone": catalog.rules.timezone,
    }


def viewer(
    catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path
) -> Callable[[Any], PageView | None]:
    """Return the function from the hub's user (None: nobody is signed in) to what pages may use."""
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
    """What the templates use. Methods ask the service; Jinja awaits them, in the hub's asynchronous rendering only."""

    user: str
    prefix: str
    fast: float | None
    service: ServiceView
    zone: ZoneInfo
    """The catalog's, in which every page shows times."""
    _answers: list[tuple[Mapping[str, Any], ...] | None] = field(default_factory=list, repr=False)

    @property
    def ticket(self) -> str:
        """Return by what the page's own JavaScript asks the service."""
        return self.service.ticket

    async def workspaces(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the user's workspaces, live ones first, None if the service does not answer. A page asks once."""
        if not self._answers:
            self._answers.append(await self.service.workspaces())
        return self._answers[0]

    async def output(self, own: Mapping[str, Any]) -> str:
        """Return what the server of one's own workspace that failed wrote last; "" where there is none."""
        failed = own["end"] is not None and own["end"]["reason"] == "failed"
        return await self.service.output(own["id"]) if failed else ""

    @staticmethod
    def of_server(workspaces: tuple[Mapping[str, Any], ...] | None, server: str) -> Mapping[str, Any] | None:
        """Return the workspace of one's own server, live or ended last, None where there is none or no answer."""
        return of_server(workspaces, server)

    def unread(self, workspaces: tuple[Mapping[str, Any], ...] | None) -> Mapping[str, Any] | None:
        """Return the workspace that ended last, where its user has not read why, and did not end it."""
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
