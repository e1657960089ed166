"""The API of the calendar."""

from __future__ import annotations

from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import day_end, day_start, parse_day, shift_day
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.units import BadValue
from gpuspawner.service.calendar import models
from gpuspawner.service.calendar.entries import CalendarReader, planned_uses, present_use, seen_uses
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

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
        raise RequestRefused("since", quoted(since), "a day like 2026-12-24, or today", f"{error.right}.") from error
    return ShownDays(first, days, day_start(first, zone), day_end(shift_day(first, days - 1), zone))


async def reader_of(actor: Actor) -> CalendarReader:
    """Return the actor as a reader of the calendar."""
    sees_all = actor.person.sees_more(Permission.SEE_RESTRICTIONS)
    return CalendarReader(await actor.asker(), sees_all, (await actor.visible_catalog()).gpus)


@router.get("/api/v1/calendar", Permission.USE)
async def get_calendar(actor: Actor, *, query: models.CalendarQuery) -> models.Calendar:
    """Return the reservations and the maintenance of some days, in order."""
    state, zone = actor.state, actor.state.accounting.zone
    shown = shown_days(query.since, query.days, actor.now, zone)
    reader = await reader_of(actor)
    found = seen_uses(planned_uses(state, max(shown.start, 0.0), shown.end), reader)
    return models.Calendar(
        entries=[present_use(state, one, reader) for one in found],
        begins_at=shown.start,
        until=shown.end,
        timezone=zone.key,
        now=actor.now,
    )
