"""Teams that can be charged, and GPUs that can be given instead of the requested one."""

from __future__ import annotations

from gpuspawner.catalog import Catalog, kinds_instead, teams_of
from gpuspawner.catalog.requests.visibility import gpu_title, prices, team_title
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_duration
from gpuspawner.service.parts import Parts
from gpuspawner.service.start import models
from gpuspawner.service.workspaces.models import Substitute

SOONER_SECONDS = 60.0
"""A smaller difference does not count as sooner, because estimates are no better."""


async def present_teams(state: Parts, owner: Owner, groups: frozenset[str]) -> tuple[list[models.Team], str | None]:
    """Return the teams that can be charged for a user, and the one that is charged if they name none."""
    teams = teams_of(state.catalog.rules, groups)
    last = await state.allocator.asking.last_team(owner, groups)
    shown = [models.Team(name=team, title=team_title(state.catalog, team)) for team in teams]
    return shown, last or (teams[0] if len(teams) == 1 else None)


def instead(catalog: Catalog, request: Request) -> tuple[str, ...]:
    """Return the kinds that may be given in place of the one asked for, to who consents."""
    template = catalog.templates.get(request.template)
    if template is None or request.gpu is None:
        return ()
    said = request.needs_memory_bytes > template.needs.memory_bytes  # else it is what the template needs
    least_bytes = request.needs_memory_bytes if said else None
    offered = kinds_instead(catalog, template, request.gpu, request.count, least_bytes)
    return tuple(dict.fromkeys(kind for kind in (*offered, *request.substitutes) if kind in catalog.gpus))


def present_substitute(
    catalog: Catalog, request: Request, kind: str, alone_seconds: float | None, seconds: float | None
) -> Substitute:
    """Return the differences of another kind of GPU.

    Args:
        catalog: the catalog.
        request: the request.
        kind: the other kind.
        alone_seconds: how long the requested kind would wait, None if unknown.
        seconds: how long this kind would wait, None if unknown.
    """
    spot = "on a spot node" if catalog.gpus[kind].spot else ""
    words = [sooner(alone_seconds, seconds), prices(catalog, request.gpu or "", kind), spot]
    return Substitute(
        kind=kind,
        title=gpu_title(kind, catalog),
        words=", ".join(filter(None, words)),
        consented=kind in request.substitutes,
    )


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
