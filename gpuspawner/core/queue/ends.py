"""When workspaces end and give back their GPUs and their part of quotas, as far as it is known."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import merge
from math import inf

from gpuspawner.core.leases.lease import UP, Lease, Phase

LEAST_WAIT_SECONDS = 1.0
"""A workspace past its deadline still holds its GPUs. A stop takes at least this long."""


def end_at(lease: Lease, now: float, *, use_grace: bool = False) -> float:
    """Return the latest end of a lease that holds something, unless a user extends it: infinite without a deadline.

    With ``use_grace`` an idle workspace ends with its grace period.
    """
    if lease.phase is Phase.STOPPING:
        at = now
    elif use_grace and lease.phase is Phase.RECLAIMING and lease.streak.grace_left_seconds is not None:
        at = now + lease.streak.grace_left_seconds
    elif lease.phase in UP:
        at = inf if lease.deadline_at is None else lease.deadline_at
    else:
        bound = inf if lease.latest_end is None else lease.latest_end.at
        at = min(now + lease.request.lifetime_seconds, bound)
    return max(at, now + LEAST_WAIT_SECONDS)


class Ends:
    """The coming ends of leases, the earliest first."""

    def __init__(self) -> None:
        """Begin with no lease."""
        self._running: list[tuple[float, str, Lease]] = []
        self._others: dict[str, Lease] = {}

    def add(self, lease: Lease) -> None:
        """Add a lease that holds something."""
        if lease.phase is not Phase.RUNNING:
            self._others[lease.id] = lease
        elif lease.deadline_at is not None:
            insort(self._running, (lease.deadline_at, lease.id, lease), key=_by)

    def remove(self, lease: Lease) -> None:
        """Remove a lease."""
        if lease.phase is not Phase.RUNNING:
            del self._others[lease.id]
        elif lease.deadline_at is not None:
            del self._running[bisect_left(self._running, (lease.deadline_at, lease.id), key=_by)]

    def __len__(self) -> int:
        """Return the number of leases whose end may be known."""
        return len(self._running) + len(self._others)

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over all leases in no order."""
        yield from (lease for _, _, lease in self._running)
        yield from self._others.values()

    def coming(self, now: float) -> Iterator[tuple[float, str, Lease]]:
        """Yield the latest end, id and lease of each lease whose end is known, in the order of ends and ids."""
        soon = now + LEAST_WAIT_SECONDS
        over = bisect_left(self._running, soon, key=lambda one: one[0])
        rest: Iterable[tuple[float, str, Lease]] = (
            *((soon, name, lease) for _, name, lease in self._running[:over]),
            *((end_at(lease, now), lease.id, lease) for lease in self._others.values()),
        )
        first = sorted((one for one in rest if one[0] < inf), key=_by)
        return merge(first, (self._running[at] for at in range(over, len(self._running))), key=_by)

    @property
    def counts_grace(self) -> bool:
        """Whether a grace period runs. Its end is a likely end before the latest one."""
        idle = (lease for lease in self._others.values() if lease.phase is Phase.RECLAIMING)
        return any(lease.streak.grace_left_seconds is not None for lease in idle)


def _by(one: tuple[float, str, Lease] | tuple[float, str]) -> tuple[float, str]:
    return one[0], one[1]
