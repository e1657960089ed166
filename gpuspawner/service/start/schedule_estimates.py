"""How long what is to be ready would wait in the queue, as it is now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuspawner.catalog import all_words, template_of
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.schedules import Schedule, ScheduleDecision, decide_schedule
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.start.check import wait_seconds
from gpuspawner.service.waiting.presenter import preview_start


@dataclass(frozen=True)
class Estimate:
    """A wait in ``seconds``, None if unknown. ``refused`` is the reason of a refusal, "" without one."""

    seconds: float | None
    refused: str = ""


async def estimate(parts: Parts, owner: Owner, wish: Schedule) -> Estimate:
    """Return how long a schedule's request would wait now. It takes as long as a check of the form."""
    try:
        groups = await parts.members.now(wish.user, owner)
        request = await parts.allocator.asking.resolve(dict(wish.options), wish.user, owner, groups)
        would = await parts.queue.offers_for(Claim("", owner.user_created, request, parts.clock.now(), user=wish.user))
    except (Conflict, RequestRefused) as error:
        return Estimate(None, all_words(error))
    except Unavailable:
        return Estimate(None)
    waits = None if would.wait_reason is not None else wait_seconds(would)
    if shown := preview_start(parts, would.place):
        waits = max(waits or 0.0, shown.to_seconds)  # by then it started, as often as such ranges were right
    return Estimate(waits)


def times_of(state: Parts, wish: Schedule, count: int) -> list[tuple[str, str, bool]]:
    """Return the next times of a schedule: day, time, and whether a workspace is made ready then."""
    zone, now = state.allocator.accounting.zone, state.clock.now()
    is_closed, today = closed_by(state, wish), datetime.fromtimestamp(now, zone).date()
    found: list[tuple[str, str, bool]] = []
    for number in range(DAYS_LOOKED_AT):
        day = today + timedelta(days=number)
        at = datetime(day.year, day.month, day.day, wish.minute // 60, wish.minute % 60, tzinfo=zone).timestamp()
        if day.weekday() in wish.days and at > max(now, wish.asked_for) and len(found) < count:
            words = f"{day:%A} {day.day} {day:%b}"
            found.append((words, f"{wish.minute // 60:02}:{wish.minute % 60:02}", not is_closed(at)))
    return found


DAYS_LOOKED_AT = 50
"""A schedule of one day a week has five times within them, and some more."""


def decided(parts: Parts, wish: Schedule, seconds: float | None) -> ScheduleDecision:
    """Return the decision about a schedule now, if its request would wait ``seconds``.

    The catalog's time zone, closed days and hours apply.
    """
    return decide_schedule(wish, seconds, parts.clock.now(), parts.allocator.accounting.zone, closed_by(parts, wish))


def closed_by(parts: Parts, wish: Schedule) -> Callable[[float], bool]:
    """Return a function that says whether a schedule is closed at a time."""
    catalog, zone = parts.catalog, parts.allocator.accounting.zone
    try:
        policy = template_of(catalog, wish.options).policy
    except RequestRefused:  # its template is gone: it is told once it is asked for
        policy = ""

    def is_closed(at: float) -> bool:
        is_holiday = datetime.fromtimestamp(at, zone).date() in catalog.rules.closed
        return is_holiday or not policy_now(catalog, policy, at).policy.ready_at

    return is_closed
