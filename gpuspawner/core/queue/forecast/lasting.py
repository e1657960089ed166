"""For how much of their lifetime workspaces really ran: by it the likely ends of those that run are told.

Most are ended long before their deadline. Of what runs nobody knows when; but the first of many ends early, the last
late. So each is taken to run for as long as one of the past that ran at least as long as it has by now, and which of
these is drawn by its id: the same whenever it is asked, and all together are spread as those of the past were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from zlib import crc32

from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.queue.ends import LEAST_WAIT_SECONDS, end_at

LEAST_KNOWN = 20
"""With fewer, workspaces are taken to run as long as they may."""
MOST_KNOWN = 500
"""So many of the last are looked at: what people do changes."""


class Lasted:
    """The shares of their lifetimes that the last workspaces ran for."""

    def __init__(self, shares: Iterable[float] = ()) -> None:
        """Take these, the oldest first."""
        self._last = list(shares)[-MOST_KNOWN:]
        self._sorted = sorted(self._last)

    @property
    def is_known(self) -> bool:
        """Whether enough have ended to tell anything."""
        return len(self._last) >= LEAST_KNOWN

    def and_of(self, ended: Iterable[Lease], now: float) -> Lasted:
        """Return it with those that have ended by now; what never ran tells nothing."""
        more = [
            min(1.0, max(0.0, now - lease.running_at) / lease.request.lifetime_seconds)
            for lease in ended
            if lease.running_at is not None and lease.request.lifetime_seconds
        ]
        return Lasted([*self._last, *more]) if more else self

    def share(self, name: str, at_least: float, draw: int) -> float:
        """Return for how much of its lifetime one is taken to run; ``draw`` numbers what may happen."""
        first = bisect_right(self._sorted, at_least)
        if not self.is_known or first == len(self._sorted):
            return 1.0
        part = crc32(f"{draw} {name}".encode()) / 2**32
        return self._sorted[first + int(part * (len(self._sorted) - first))]

    def end_at(self, lease: Lease, now: float, draw: int) -> float:
        """Return when a lease that holds something is taken to end: by its latest end, and its grace period if idle."""
        latest = end_at(lease, now, use_grace=True)
        since = now if lease.phase not in UP or lease.running_at is None else lease.running_at
        seconds = lease.request.lifetime_seconds
        if latest == inf or lease.phase is Phase.STOPPING or not seconds or not self.is_known:
            return latest
        ends = since + self.share(lease.id, (now - since) / seconds, draw) * seconds
        return min(latest, max(ends, now + LEAST_WAIT_SECONDS))


NOTHING_LASTED = Lasted()
"""Nothing is known of the past."""
