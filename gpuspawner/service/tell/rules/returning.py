"""Where a workspace stands in the queue that comes back after its end."""

from __future__ import annotations

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.transitions import is_by_share
from gpuspawner.service.parts import Parts

BEFORE_LATER = "It returns to the queue before later requests of its priority, and starts again by itself"
BY_SHARE = "It returns to the queue, where its share decides its place, and starts again by itself"
ELSEWHERE = "It returns to the queue, and starts again by itself"


def return_words(parts: Parts, lease: Lease) -> str:
    """Return in a sentence, without its full stop, how a workspace comes back that ends for others or moves."""
    if parts.scheduler.capabilities_of(lease.request.gpu).owns_queue:
        return ELSEWHERE
    return BY_SHARE if is_by_share(lease) else BEFORE_LATER
