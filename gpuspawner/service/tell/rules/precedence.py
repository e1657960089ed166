"""Which requests may still go before one that waits, and until when: the estimate of its start counts none of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gpuspawner.catalog import Catalog
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import Precedence, QueuePosition
from gpuspawner.core.queue.fair_share import SHARED_RESOURCES
from gpuspawner.core.units import show_time


def precedence_words(place: QueuePosition, request: Request, catalog: Catalog, now: float) -> str:
    """Return in sentences who may go first that does not now; "" where the order is not ours."""
    stands = place.precedence
    if stands is None or request.gpu is None:
        return ""
    higher = _highest_priority(catalog) > stands.priority
    if stands.is_overdue:
        if higher:
            return "It has waited so long that only requests of a higher priority may still go first."
        return "It has waited so long that no later request goes first."
    *some, last = _passing(stands, catalog)
    named = f"{', '.join(some)} and {last}" if some else last
    until = "" if stands.overdue_at == inf else f"until {show_time(stands.overdue_at, now)} "
    always = " A request of a higher priority may go first at any time." if higher else ""
    return f"Later requests may still go first {until}if they are {named}.{always}"


def _passing(stands: Precedence, catalog: Catalog) -> Iterator[str]:
    """Yield what lets a request go before one that asked earlier, within the same priority."""
    if not stands.is_guaranteed:
        limits = (limit for quota in catalog.rules.quotas for limit in quota.limits)
        if any(limit.soft is not None and limit.what in SHARED_RESOURCES for limit in limits):
            yield "within their share"
        yield "of a team or user that used less lately"
    yield "of a workspace that was ended for others and returns"


def _highest_priority(catalog: Catalog) -> int:
    """Return the highest priority that a request may have: of its template and its team together."""
    templates = (template.priority for template in catalog.templates.values())
    return max(templates, default=0) + max((team.priority for team in catalog.rules.teams.values()), default=0)
