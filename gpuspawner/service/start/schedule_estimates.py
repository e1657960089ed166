"""How long what is to be ready would wait in the queue, as it is now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuspawner.catalog import all_words, template_of
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.schedules import Schedule, ScheduleDecision, decide_schedule
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.start.check import wait_seconds


@dataclass(frozen=True)
class Estimate:
    """``seconds`` is None where nobody knows; ``refused`` is why it would not be taken as things are, "" otherwise."""

    seconds: float | None
    refused: str = ""


async def estimate(parts: Parts, owner: Owner, wish: Schedule) -> Estimate:
    """Return how long it would wait if it were asked for now. It takes as long as a look at the form."""
    try:
        groups = await parts.members.now(wish.user, owner)
        request = await parts.allocator.asking.resolve(dict(wish.options), wish.user, owner, groups)
        would = await parts.queue.offers_for(Claim("", owner.user_created, request, parts.clock.now(), user=wish.user))
    except (Conflict, RequestRefused) as error:
        return Estimate(None, all_words(error))
    except Unavailable:
        return Estimate(None)
    waits = None if would.held_back is not None else wait_seconds(would)
    if told := parts.allocator.foretold.words(would.place):
        waits = max(waits or 0.0, told[1])  # by then it started, as often as such ranges were right
    return Estimate(waits)


def decided(parts: Parts, wish: Schedule, seconds: float | None) -> ScheduleDecision:
    """Return what follows for a wish now, by the catalog's clock, closed days and hours, if it would wait so long."""
    catalog, zone = parts.catalog, parts.allocator.accounting.zone
    try:
        policy = template_of(catalog, wish.options).policy
    except RequestRefused:  # its template is gone: it is told once it is asked for
        policy = ""

    def is_closed(at: float) -> bool:
        is_holiday = datetime.fromtimestamp(at, zone).date() in catalog.rules.closed
        return is_holiday or not policy_now(catalog, policy, at).policy.ready_at

    return decide_schedule(wish, seconds, parts.clock.now(), zone, is_closed)
