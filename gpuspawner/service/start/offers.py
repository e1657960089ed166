"""Presents the kinds of GPU that a user could get, those that can be given instead, and the teams to charge."""

from __future__ import annotations

from math import inf

from gpuspawner.catalog import Catalog, kinds_instead, teams_of
from gpuspawner.catalog.requests.visibility import gpu_title, prices, team_title
from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.class_holds import HoldUser, may_use
from gpuspawner.core.units import show_duration, show_end, show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.calendar.api import CalendarReader, PlannedUse, for_words, planned_uses
from gpuspawner.service.parts import Parts
from gpuspawner.service.start import models
from gpuspawner.service.workspaces.models import Substitute

NOTED = 2
"""The most coming reservations that are named for a kind. Arbitrary: these fit below its name."""


def present_offer(offer: Offer, state: Parts, coming: str = "") -> models.Offer:
    """Return an offer. Unknown numbers are null, not 0. ``coming`` are words about coming reservations."""
    kind = state.catalog.gpus[offer.kind]
    return models.Offer(
        kind=offer.kind,
        title=kind.title,
        memory_bytes=kind.memory_bytes,
        memory_enforced=bool(kind.own_memory_bytes),
        price_per_hour=kind.price_per_hour,
        spot=kind.spot,
        free=offer.free,
        total=offer.total,
        waiting=offer.waiting,
        simulated=offer.simulated,
        note="; ".join(filter(None, [offer.note, coming])),
        measured=measurement_note(counting_resource(kind, state.scheduler.fleet)),
    )


def coming_reservations(state: Parts, asker: HoldUser) -> dict[str, str]:
    """Return by GPU kind the reservations for others and the maintenance during which a workspace could still run."""
    now, templates = state.clock.now(), state.catalog.templates.values()
    longest = {
        kind: max((one.bounds.lifetime_seconds[1] for one in templates if kind in one.gpus), default=0)
        for kind in state.catalog.gpus
    }
    reader = CalendarReader(asker, sees_all=False, kinds=state.catalog.gpus)
    found: dict[str, list[str]] = {}
    for one in planned_uses(state, now, now + max(longest.values(), default=0)):
        begins_at, ends_at = one.opening
        if begins_at <= now or (not one.hold.is_maintenance and may_use(asker, one.hold)):
            continue
        until = "" if ends_at == inf else f" to {show_end(ends_at, begins_at)}"
        for kind, count in one.counts.items():
            if begins_at < now + longest.get(kind, 0):
                found.setdefault(kind, []).append(f"{_coming(one, count, reader)} {show_time(begins_at, now)}{until}")
    return {kind: ", ".join(words[:NOTED]) for kind, words in found.items()}


def _coming(one: PlannedUse, count: int, reader: CalendarReader) -> str:
    if one.hold.is_maintenance:
        return f"{count} {'has' if count == 1 else 'have'} maintenance"
    whom = for_words(one.hold, reader)
    return f"{count} {'is' if count == 1 else 'are'} reserved for {whom[0].lower()}{whom[1:]}"


SOONER_SECONDS = 60.0
"""A smaller difference does not count as sooner, because estimates are not that exact."""


async def present_teams(state: Parts, owner: Owner, groups: frozenset[str]) -> tuple[list[models.Team], str | None]:
    """Return the teams that can be charged for a user, and the one that is charged if they name none."""
    teams = teams_of(state.catalog.rules, groups)
    last = await state.allocator.resolver.last_team(owner, groups)
    shown = [models.Team(name=team, title=team_title(state.catalog, team)) for team in teams]
    return shown, last or (teams[0] if len(teams) == 1 else None)


def instead(catalog: Catalog, request: Request) -> tuple[str, ...]:
    """Return the kinds that may be given instead of the requested one, if the user consents."""
    template = catalog.templates.get(request.template)
    if template is None or request.gpu is None:
        return ()
    said = request.needs_memory_bytes > template.needs.memory_bytes  # else the user named no memory
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
    """Return by how much a substitute starts sooner, "" if that is not known."""
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
