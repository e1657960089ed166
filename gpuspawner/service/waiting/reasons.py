"""Why free GPUs are not given, who may go first, and where a request returns to, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf

from gpuspawner.catalog import Catalog
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.transitions import is_by_share
from gpuspawner.core.queue.decisions import ReservedForOthers
from gpuspawner.core.queue.estimates import Precedence, QueuePosition
from gpuspawner.core.queue.fair_share import SHARED_RESOURCES
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.parts import Parts

SLACK_SECONDS = 120.0
"""Between what is told and the press of Start. Arbitrary: time to change a field."""


def kept_free_words(kept: ReservedForOthers | None, request: Request, catalog: Catalog, now: float) -> str:
    """Return for which requests free GPUs are reserved, and how to start earlier.

    The words follow the number of free GPUs, as in ``kept for the 4 GPUs that go first; a workspace that ends before
    16:40 may start now: shorten yours to 1 h``. They are "" if no GPU is reserved.
    """
    if kept is None:
        return ""
    first = "the GPU that goes" if kept.first == 1 else f"the {kept.first} GPUs that go"
    words = f"kept for {first} first"
    if kept.until is None:
        return f"{words}, and it is not known when these start"
    words += f"; a workspace that ends before {show_time(kept.until, now)} may start now"
    shorter = _shorter_seconds(kept.until - now - SLACK_SECONDS)
    template = catalog.templates.get(request.template)
    least = 0.0 if template is None else template.bounds.lifetime_seconds[0]
    if shorter >= max(least, 1.0):
        return f"{words}: shorten yours to {show_duration(shorter)}"
    return f"{words}, and none of this template is that short" if least else words


def _shorter_seconds(seconds: float) -> float:
    """Return a lifetime that fits, as people say one: in half hours, in steps of five minutes, or to the second."""
    step = 1800 if seconds >= 3600 else 300 if seconds >= 600 else 1  # noqa: PLR2004 - an hour; ten minutes
    return float(max(0, step * floor(seconds / step)))


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
    """Yield which requests may pass an earlier request of the same priority."""
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


BEFORE_LATER = "It returns to the queue before later requests of its priority, and starts again by itself"
BY_SHARE = "It returns to the queue, where its share decides its place, and starts again by itself"
ELSEWHERE = "It returns to the queue, and starts again by itself"


def return_words(parts: Parts, lease: Lease) -> str:
    """Return in a sentence, without its full stop, how a workspace comes back that ends for others or moves."""
    if parts.scheduler.capabilities_of(lease.request.gpu).owns_queue:
        return ELSEWHERE
    return BY_SHARE if is_by_share(lease) else BEFORE_LATER
