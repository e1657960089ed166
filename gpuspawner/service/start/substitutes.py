"""What people read of teams, and of the GPUs that may be given in place of the one asked for."""

from __future__ import annotations

from typing import Any

from gpuspawner.catalog import Catalog, kinds_instead, teams_of
from gpuspawner.catalog.prices import prices
from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_duration
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting.presenter import gpu_title

SOONER_SECONDS = 60.0
"""What comes by less earlier is not said to come sooner: estimates are no better."""


async def teams_view(parts: Parts, owner: Owner, groups: frozenset[str]) -> dict[str, Any]:
    """Return the teams that may be charged for who is in these groups, and which one is where they name none."""
    teams = teams_of(parts.catalog.rules, groups)
    last = await parts.allocator.asking.last_team(owner, groups)
    return {
        "teams": [{"name": team, "title": team_title(parts.catalog, team)} for team in teams],
        "team": last or (teams[0] if len(teams) == 1 else None),
    }


def instead(catalog: Catalog, request: Request) -> tuple[str, ...]:
    """Return the kinds that may be given in place of the one asked for, to who consents."""
    template = catalog.templates.get(request.template)
    if template is None or request.gpu is None:
        return ()
    said = request.needs_memory_bytes > template.needs.memory_bytes  # else it is what the template needs
    least_bytes = request.needs_memory_bytes if said else None
    offered = kinds_instead(catalog, template, request.gpu, request.count, least_bytes)
    return tuple(dict.fromkeys(kind for kind in (*offered, *request.substitutes) if kind in catalog.gpus))


def substitute_view(
    catalog: Catalog, request: Request, kind: str, alone_seconds: float | None, seconds: float | None
) -> dict[str, Any]:
    """Return what a kind would bring that is given instead: it would start after ``seconds``, None where unknown.

    ``alone_seconds`` is when the kind that is asked for would start.
    """
    spot = "on a spot node" if catalog.gpus[kind].spot else ""
    words = [sooner(alone_seconds, seconds), prices(catalog, request.gpu or "", kind), spot]
    return {
        "kind": kind,
        "title": gpu_title(kind, catalog),
        "words": ", ".join(filter(None, words)),
        "consented": kind in request.substitutes,
    }


def sooner(alone_seconds: float | None, seconds: float | None) -> str:
    """Return by how much a substitute starts sooner; "" where that is not known."""
    if seconds is None:
        return ""
    if alone_seconds is None:
        return f"in about {show_duration(_rounded(seconds))}" if seconds else "it would start now"
    if alone_seconds == 0:
        return "not needed now"
    gained = alone_seconds - seconds
    return f"about {show_duration(_rounded(gained))} sooner" if gained >= SOONER_SECONDS else "not sooner now"


def _rounded(seconds: float) -> float:
    return max(60.0, round(seconds / 60) * 60.0)
