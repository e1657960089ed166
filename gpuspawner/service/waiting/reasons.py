"""Why free GPUs are not given, who may go first, and where a request returns to, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf

from gpuspawner.catalog import Catalog
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.successors import is_by_share
from gpuspawner.core.queue.decisions import ReservedForOthers
from gpuspawner.core.queue.estimates import Precedence, QueuePosition
from gpuspawner.core.queue.fair_share import SHARED_RESOURCES
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.parts import Parts

SLACK_SECONDS = 120.0
"""Between what is told and the press of Start. Arbitrary: time to change a field."""


def kept_free_words(kept: ReservedForOthers | None, request: Request, catalog: Catalog, now: float) -> str:
    """Return for which requests free GPUs are reserved, and how to start earlier.

    The words follow the number of free GPUs, as in ``but reserved for 4 GPUs ahead of you. A workspace that ends before
    16:40 can start now. Shorten yours to 1 h``. They are "" if no GPU is reserved.
    """
    if kept is None:
        return ""
    words = f"but reserved for {kept.first} GPU{'' if kept.first == 1 else 's'} ahead of you"
    if kept.until is None:
        return f"{words}. We do not know when these start"
    words += f". A workspace that ends before {show_time(kept.until, now)} can start now"
    shorter = _shorter_seconds(kept.until - now - SLACK_SECONDS)
    template = catalog.templates.get(request.template)
    least = 0.0 if template is None else template.bounds.lifetime_seconds[0]
    if shorter >= max(least, 1.0):
        return f"{words}. Shorten yours to {show_duration(shorter)}"
    return f"{words}, but your template does not allow such a short run time" if least else words


def _shorter_seconds(seconds: float) -> float:
    """Return a lifetime that fits, as people say one: in half hours, in steps of five minutes, or to the second."""
    step = 1800 if seconds >= 3600 else 300 if seconds >= 600 else 1  # noqa: PLR2004 - an hour; ten minutes
    return float(max(0, step * floor(seconds / step)))


def precedence_words(place: QueuePosition, request: Request, catalog: Catalog, now: float) -> str:
    """Return in sentences who may go first that does not now; "" where the order is not ours."""
    stands = place.precedence
    if stands is None or request.gpu is None:
        return ""
    if stands.is_moved:
        return "An administrator moved it up. No later request starts first."
    higher = _highest_priority(catalog) > stands.priority
    if stands.is_overdue:
        if higher:
            return "It has waited so long that only requests of a higher priority can start first."
        return "It has waited so long that no later request starts first."
    sentences = list(_passing(stands, catalog))
    if stands.overdue_at != inf:
        sentences.append(f"From {show_time(stands.overdue_at, now)} on, no later request starts first.")
    if higher:
        sentences.append("A request of a higher priority can start first at any time.")
    return " ".join(sentences)


def _passing(stands: Precedence, catalog: Catalog) -> Iterator[str]:
    """Yield a sentence for each kind of later request of the same priority that can start first."""
    if not stands.is_guaranteed:
        limits = (limit for quota in catalog.rules.quotas for limit in quota.limits)
        if any(limit.soft is not None and limit.what in SHARED_RESOURCES for limit in limits):
            yield "A later request within its share can start first."
        yield "A later request of a team or user who used less lately can start first."
    yield "A workspace that made room for others can return first."


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
