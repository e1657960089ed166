"""Presents the kinds of GPU that a user could get now."""

from __future__ import annotations

from math import inf

from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.core.queue.class_holds import HoldUser, may_use
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.calendar.api import CalendarReader, PlannedUse, for_words, planned_uses
from gpuspawner.service.parts import Parts
from gpuspawner.service.start import models

NOTED = 2
"""The most coming reservations that are named for a kind. Arbitrary: what fits below its name."""


def present_offer(offer: Offer, state: Parts, coming: str = "") -> models.Offer:
    """Return an offer. Null is unknown, and never 0 for that. ``coming`` tells of coming reservations."""
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
    """Return by GPU kind which reservations for others and which maintenance a workspace could run into."""
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
        until = "" if ends_at == inf else f" to {show_time(ends_at, begins_at)}"
        for kind, count in one.counts.items():
            if begins_at < now + longest.get(kind, 0):
                found.setdefault(kind, []).append(f"{_coming(one, count, reader)} {show_time(begins_at, now)}{until}")
    return {kind: ", ".join(words[:NOTED]) for kind, words in found.items()}


def _coming(one: PlannedUse, count: int, reader: CalendarReader) -> str:
    if one.hold.is_maintenance:
        return f"{count} {'has' if count == 1 else 'have'} maintenance"
    whom = for_words(one.hold, reader)
    return f"{count} {'is' if count == 1 else 'are'} reserved for {whom[0].lower()}{whom[1:]}"
