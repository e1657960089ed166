"""How long workspaces run: drawn from the workspaces of the past, by their age, their user and their lifetime."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from math import inf, log2
from typing import NamedTuple

from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, end_at

LEAST_RUNS = 20
"""With fewer past workspaces nothing is drawn: each workspace is expected to run until its deadline."""
MOST_RUNS = 2000
"""Number of past workspaces that count. Habits change."""
HALF_WEIGHT = 15
"""With this many runs of a user, half of the draws come from them: a weight of n / (n + 15)."""


class PastRun(NamedTuple):
    """A workspace that has ended: whose it was, how long it ran and how long it was allowed to."""

    user_created: str
    seconds: float
    lifetime_seconds: float


def past_run(lease: Lease, ended_at: float) -> PastRun | None:
    """Return how long a workspace ran that has ended; None if it never ran."""
    if lease.running_at is None:
        return None
    seconds = max(0.0, ended_at - lease.running_at)
    return PastRun(lease.key.user_created, seconds, float(lease.request.lifetime_seconds))


class RunTimes:
    """The run times of past workspaces."""

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        """Learn from these runs, the oldest first."""
        self._runs: deque[PastRun] = deque()
        self._seconds: dict[object, list[float]] = {}
        """Run times in ascending order: of all, of each user, and of each length of lifetime."""
        for run in runs:
            self.add(run)

    @property
    def is_known(self) -> bool:
        """Return whether enough workspaces have ended to draw from them."""
        return len(self._runs) >= LEAST_RUNS

    def add(self, run: PastRun | None) -> None:
        """Learn from one more run, and forget the oldest if there are too many. None is a workspace that never ran."""
        if run is None:
            return
        self._runs.append(run)
        for group in _groups(run.user_created, run.lifetime_seconds):
            insort(self._seconds.setdefault(group, []), run.seconds)
        if len(self._runs) > MOST_RUNS:
            oldest = self._runs.popleft()
            for group in _groups(oldest.user_created, oldest.lifetime_seconds):
                seconds = self._seconds[group]
                del seconds[bisect_right(seconds, oldest.seconds) - 1]

    def end_at(self, lease: Lease, now: float, draw: int) -> float:
        """Return a drawn end of a workspace that holds something, in seconds since the epoch.

        The draw is the same whenever it is asked for. It is a run that lasted longer than the workspace has run by
        now. The workspace ends no later than by its deadline, or by its idle clock if it is idle.
        """
        latest = end_at(lease, now, use_grace=True)
        if lease.phase is Phase.STOPPING or not self.is_known:
            return latest
        since = lease.running_at if lease.phase in UP and lease.running_at is not None else now
        seconds = self._drawn(lease, now - since, draw)
        return latest if seconds is None else min(latest, max(since + seconds, now + LEAST_WAIT_SECONDS))

    def _drawn(self, lease: Lease, age_seconds: float, draw: int) -> float | None:
        """Return a run time of more than ``age_seconds``; None if no past workspace ran for longer."""
        *own, everybody = (
            (seconds, bisect_right(seconds, age_seconds))
            for group in _groups(lease.key.user_created, lease.request.lifetime_seconds)
            for seconds in [self._seconds.get(group, [])]
        )
        for number, (seconds, first) in enumerate(own):
            left = len(seconds) - first
            if _fraction(f"group {number} {draw} {lease.id}") < left / (left + HALF_WEIGHT):
                return _one_of(seconds, first, _fraction(f"{draw} {lease.id}"))
        return _one_of(*everybody, _fraction(f"{draw} {lease.id}"))


def _groups(user_created: str, lifetime_seconds: float) -> tuple[object, ...]:
    """Return the groups of runs that a run belongs to, the closest first: its user, its lifetime to the half, all."""
    length = round(2 * log2(lifetime_seconds)) if 0 < lifetime_seconds < inf else None
    return (user_created, ("lifetime", length), None)


def _one_of(seconds: list[float], first: int, fraction: float) -> float | None:
    return seconds[first + int(fraction * (len(seconds) - first))] if first < len(seconds) else None


def _fraction(name: str) -> float:
    """Return a number from 0 to 1 that looks random and is the same for each name. A checksum is not random enough."""
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") / 2**32
