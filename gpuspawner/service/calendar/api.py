"""The reservations and maintenance of GPUs in a period, and the API that returns them.

Each opening of a weekly rule is one entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import Field

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import RESERVING, Restriction, RestrictionKind, reservation_hold
from gpuspawner.core.calendar import Opening, day_end, day_start, parse_day, shift_day, write_weekly_window
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.queue.class_holds import HoldUser, may_use, openings_between
from gpuspawner.core.rules import ClassHold
from gpuspawner.core.units import BadValue, show_end, show_iso
from gpuspawner.service.api.rest.models import Answer, Query
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.rules_page import window_words
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

MOST_DAYS = 28


class CalendarQuery(Query):
    """The days of a calendar."""

    since: str = Field(default="", max_length=20)
    """The first day, for example 2026-11-01. The default is today."""
    days: int = Field(default=7, ge=1, le=MOST_DAYS)


class CalendarEntry(Answer):
    """One reservation or maintenance, or one time of a weekly one."""

    id: str
    """The restriction, "" for a reservation of the catalog."""
    what: Literal["reservation", "maintenance"]
    for_: str = Field(alias="for")
    """The user, team or class. Names of other users are left out for readers who may not see them."""
    gpus: str
    """The GPUs, in words."""
    counts: dict[str, int]
    """How many GPUs of each kind."""
    node: str
    """The node, "" for any node and for those who may not see it."""
    begins_at: float
    until: float | None
    repeats: str
    """When it repeats, in words, or ""."""
    reason: str
    by: str
    """The administrator, for those who may see it."""
    yours: bool
    """Whether you may use these GPUs."""


class Calendar(Answer):
    """The reservations and maintenance between two moments, in order."""

    entries: list[CalendarEntry]
    begins_at: float
    until: float
    timezone: str
    now: float


MAINTENANCE = "Maintenance"


@dataclass(frozen=True)
class PlannedUse:
    """One opening of a reservation or a maintenance.

    ``restriction`` is None if the catalog reserves the GPUs. ``counts`` are the GPUs by the name of their kind.
    """

    hold: ClassHold
    opening: Opening
    counts: Mapping[str, int]
    restriction: Restriction | None = None


@dataclass(frozen=True)
class CalendarReader:
    """The reader of a calendar. ``sees_all``: they see nodes, names of people and who made a reservation."""

    asker: HoldUser
    sees_all: bool
    kinds: Collection[str]


def planned_uses(state: Parts, start: float, end: float) -> list[PlannedUse]:
    """Return the reservations and maintenance between two moments, in the order of their beginning."""
    zone, made = ZoneInfo(state.catalog.rules.timezone), state.restrictions.live()
    holds: list[tuple[ClassHold, Restriction | None]] = [(one, None) for one in state.catalog.rules.holds]
    holds += [(reservation_hold(one), one) for one in made if one.measure in RESERVING]
    found = [
        PlannedUse(hold, opening, _counts(state, hold), restriction)
        for hold, restriction in holds
        for opening in openings_between(hold, start, end, zone)
    ]
    return sorted(found, key=lambda one: (one.opening, not one.hold.is_maintenance))


def _counts(state: Parts, hold: ClassHold) -> Mapping[str, int]:
    if not hold.is_maintenance:
        return {hold.kind: hold.count}
    gpus = state.scheduler.fleet.gpus
    return Counter(gpu.pool for gpu in gpus if gpu.node == hold.node and not gpu.is_coming)


def seen_uses(found: Iterable[PlannedUse], reader: CalendarReader) -> Iterator[PlannedUse]:
    """Yield the planned uses that a reader sees, with the kinds of GPU that they see."""
    for one in found:
        counts = {kind: count for kind, count in one.counts.items() if reader.sees_all or kind in reader.kinds}
        if counts or (reader.sees_all and one.hold.is_maintenance):
            yield replace(one, counts=counts)


def for_words(hold: ClassHold, reader: CalendarReader) -> str:
    """Return the user, team or class of a reservation. Only readers who see all people read another user's name."""
    if hold.is_maintenance:
        return MAINTENANCE
    if hold.members is not None or hold.account is None:
        return f"Class {hold.group}"
    if hold.account.team:
        return f"Team {hold.group}"
    if reader.sees_all:
        return hold.group
    return "You" if may_use(reader.asker, hold) else "Another user"


def gpus_words(state: Parts, one: PlannedUse, reader: CalendarReader) -> str:
    """Return the GPUs of a planned use: ``4 × A100 80 GB on node-1``."""
    counted = ", ".join(f"{count} × {gpu_title(kind, state.catalog)}" for kind, count in one.counts.items())
    if not (reader.sees_all and one.hold.node):
        return counted
    return f"{one.hold.node}, {counted}" if one.hold.is_maintenance else f"{counted} on {one.hold.node}"


def change_values(one: Restriction, zone: ZoneInfo, now: float) -> dict[str, str]:
    """Return the fields of the dialog that changes a reservation or a maintenance."""
    begins = show_iso(one.begins_at, zone) if one.begins_at > now else ""
    until = "" if one.until is None else show_iso(one.until, zone)
    every = "" if one.every is None else write_weekly_window(one.every)
    values = {"replaces": one.id, "begins": begins, "until": until, "every": every, "reason": one.reason}
    if one.measure is RestrictionKind.DRAIN:
        return {**values, "node": one.target}
    whom = "group" if one.members is not None else "team" if one.account.team else "user"
    return {**values, "kind": one.target, "count": str(one.count), "node": one.node, whom: one.whom}


def present_use(state: Parts, one: PlannedUse, reader: CalendarReader) -> CalendarEntry:
    """Return a planned use as a reader sees it."""
    hold, made, now = one.hold, one.restriction, state.clock.now()
    repeats = "" if hold.window is None else window_words(hold.window)
    if repeats and hold.until is not None:
        repeats += f" until {show_end(hold.until, now, ZoneInfo(state.catalog.rules.timezone))}"
    return CalendarEntry(
        id=made.id if made is not None else "",
        what="maintenance" if hold.is_maintenance else "reservation",
        for_=for_words(hold, reader),  # type: ignore[call-arg]  # mypy knows the alias alone
        gpus=gpus_words(state, one, reader),
        counts=dict(one.counts),
        node=hold.node if reader.sees_all else "",
        begins_at=one.opening.opens_at,
        until=None if one.opening.ends_at == inf else one.opening.ends_at,
        repeats=repeats,
        reason=made.reason if made is not None else "",
        by=made.by if made is not None and reader.sees_all else "",
        yours=not hold.is_maintenance and may_use(reader.asker, hold),
    )


router = Router()


class ShownDays(NamedTuple):
    """The days of a calendar. ``first`` is in ISO 8601."""

    first: str
    days: int
    start: float
    end: float


def shown_days(since: str, days: int, now: float, zone: ZoneInfo) -> ShownDays:
    """Return the days from a day on. Raises RequestRefused for a wrong day."""
    try:
        first = parse_day(since or "today", now, zone)
    except BadValue as error:
        raise RequestRefused("since", quoted(since), "a day like 2026-12-24, or today", f"{error.wrong}.") from error
    return ShownDays(first, days, day_start(first, zone), day_end(shift_day(first, days - 1), zone))


async def reader_of(actor: Actor) -> CalendarReader:
    """Return the actor as a reader of the calendar."""
    sees_all = actor.person.sees_more(Permission.SEE_RESTRICTIONS)
    return CalendarReader(await actor.asker(), sees_all, (await actor.visible_catalog()).gpus)


@router.get("/api/v1/calendar", Permission.USE)
async def get_calendar(actor: Actor, *, query: CalendarQuery) -> Calendar:
    """Return the reservations and the maintenance of some days, in order."""
    state, zone = actor.state, actor.state.accounting.zone
    shown = shown_days(query.since, query.days, actor.now, zone)
    reader = await reader_of(actor)
    found = seen_uses(planned_uses(state, max(shown.start, 0.0), shown.end), reader)
    return Calendar(
        entries=[present_use(state, one, reader) for one in found],
        begins_at=shown.start,
        until=shown.end,
        timezone=zone.key,
        now=actor.now,
    )
