"""Draw when workspaces end, from how long past workspaces ran.

A drawn end is that of a past workspace which was alike at the same age: idle for about as long, at about the same hour,
and if enough are known also of the same user and with a similar lifetime. An idle workspace either stays idle until its
idle stop, or is used again, as that past workspace was.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from math import inf, log2
from typing import NamedTuple

from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, end_at

LEAST_RUNS = 20
"""With fewer past workspaces, each workspace is expected to run until its deadline."""
MOST_RUNS = 5000
"""The most past workspaces that count, because habits change."""
HALF_WEIGHT = 15
"""With this many runs of a user, half of the draws come from them: a weight of n / (n + 15)."""
TRACE_SECONDS = 600.0
"""How often the idle time of a running workspace is noted."""
PLANNED_SECONDS = 600.0
"""How much earlier or later than planned a workspace ends at most. Arbitrary: no measurement is known."""
HOURS = 3
"""Hours of the day that count as alike."""


class PastRun(NamedTuple):
    """An ended workspace: its user, its duration and allowed duration, and when it began.

    ``idle`` has its idle time in seconds every ten minutes, as far as it was noted.
    """

    user_created: str
    seconds: float
    lifetime_seconds: float
    began_at: float = 0.0
    idle: tuple[float, ...] = ()


def past_run(lease: Lease, ended_at: float, idle: tuple[float, ...] = ()) -> PastRun | None:
    """Return the run of an ended workspace, or None if it never ran."""
    if lease.running_at is None:
        return None
    seconds = max(0.0, ended_at - lease.running_at)
    return PastRun(lease.key.user_created, seconds, float(lease.request.lifetime_seconds), lease.running_at, idle)


def extend_trace(idle: list[float], age_seconds: float, idle_seconds: float) -> None:
    """Add the idle time at each ten minutes of a workspace's age that passed since the last call.

    Args:
        idle: the idle times so far. The new ones are appended.
        age_seconds: its age now.
        idle_seconds: how long it has been idle by now.
    """
    while (age := len(idle) * TRACE_SECONDS) <= age_seconds:
        idle.append(max(0.0, idle_seconds - (age_seconds - age)))


class _Moment(NamedTuple):
    """Age and idle time as steps of growing length, and the part of the day. Workspaces that share them are alike."""

    age: int
    idle: int
    hour: int


class _End(NamedTuple):
    """The end of a past workspace.

    ``seconds`` is its duration, and for a moment at which it was idle the time from then to its end. ``idle_seconds``
    is how long it was idle at its end, if it stayed idle from that moment. It is 0 if it was used again.
    """

    seconds: float
    idle_seconds: float = 0.0


class RunTimes:
    """The run times of past workspaces."""

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._runs: deque[PastRun] = deque()
        self._ends: dict[object, list[_End]] = {}
        """The ends of alike workspaces in ascending order, by what is alike."""
        self.add_all(runs)

    @property
    def is_known(self) -> bool:
        """Return whether enough workspaces have ended to draw from them."""
        return len(self._runs) >= LEAST_RUNS

    def add_all(self, runs: Iterable[PastRun | None]) -> None:
        """Add runs, the oldest first."""
        for run in runs:
            self.add(run)

    def add(self, run: PastRun | None) -> None:
        """Add one more run, and remove the oldest if there are too many. None is a workspace that never ran."""
        if run is None:
            return
        self._runs.append(run)
        for group, end in _ends_of(run):
            insort(self._ends.setdefault(group, []), end)
        if len(self._runs) > MOST_RUNS:
            for group, end in _ends_of(self._runs.popleft()):
                self._ends[group].remove(end)

    def end_at(self, lease: Lease, now: float, draw: int) -> float:
        """Return a drawn end of a workspace that holds something, in seconds since the epoch.

        The same draw always gives the same end. The workspace ends no later than its deadline, or its idle clock if its
        user was warned. If its user said when they will be done, it ends at about that time.
        """
        latest = end_at(lease, now, use_grace=True)
        planned_at = lease.planned_end.at if lease.planned_end is not None else None
        if planned_at is not None and planned_at > now and lease.phase in UP:
            side = 2 * next(_fractions(f"{draw} {lease.id}")) - 1
            return min(latest, max(planned_at + side * PLANNED_SECONDS, now + LEAST_WAIT_SECONDS))
        if lease.phase is Phase.STOPPING or not self.is_known:
            return latest
        is_up = lease.phase in UP and lease.running_at is not None
        since = lease.running_at if is_up and lease.running_at is not None else now
        idle_seconds = lease.streak.idle_seconds if is_up else 0.0
        left_seconds = self._draw_left_seconds(lease, now - since, idle_seconds, now, draw)
        return latest if left_seconds is None else min(latest, now + max(left_seconds, LEAST_WAIT_SECONDS))

    def _draw_left_seconds(
        self, lease: Lease, age_seconds: float, idle_seconds: float, now: float, draw: int
    ) -> float | None:
        moment = _moment_of(age_seconds, idle_seconds, now)
        chance, fractions = next(_fractions(f"{draw} {lease.id}")), _fractions(f"group {draw} {lease.id}")
        for group in _groups(lease.key.user_created, lease.request.lifetime_seconds, moment):
            is_idle = group is not None and idle_seconds > 0
            # The ends of a group of idle moments count from the moment. They hold at every age of the group.
            least_seconds = 0.0 if is_idle else age_seconds
            ends, first = self._longer(group, least_seconds)
            if group is not None and not _is_chosen(len(ends) - first, next(fractions)):
                continue
            at_hour, first_at_hour = self._longer((group, moment.hour), least_seconds)
            if _is_chosen(len(at_hour) - first_at_hour, next(fractions)):
                ends, first = at_hour, first_at_hour
            if first == len(ends):
                return None
            end = ends[first + int(chance * (len(ends) - first))]
            if is_idle:
                return end.idle_seconds - idle_seconds if end.idle_seconds > 0 else end.seconds
            return end.seconds - age_seconds
        raise AssertionError("the last group has all runs")

    def _longer(self, group: object, seconds: float) -> tuple[list[_End], int]:
        """Return the ends of a group, and the number of the first one that came after a longer time."""
        ends = self._ends.get(group, [])
        return ends, bisect_right(ends, (seconds, inf))


def _is_chosen(runs: int, fraction: float) -> bool:
    return fraction < runs / (runs + HALF_WEIGHT)


def _groups(user_created: str, lifetime_seconds: float, moment: _Moment) -> tuple[object, ...]:
    """Return the groups of similar runs that a run belongs to, the most similar first. None is the group of all.

    Idle workspaces are similar at every age, because all end by their idle clock.
    """
    length = round(2 * log2(lifetime_seconds)) if 0 < lifetime_seconds < inf else None
    age, idle, _ = moment
    of_idle = ((idle,),) if idle else ()
    return ((user_created, length, age, idle), (length, age, idle), (age, idle), *of_idle, None)


def _ends_of(run: PastRun) -> set[tuple[object, _End]]:
    """Return the end of a run for every group to which it belongs at some age."""
    trace = run.idle or (0.0,) * (1 + int(run.seconds // TRACE_SECONDS))
    idle_at_end, whole = _idle_at_end(run), _End(run.seconds)
    found = set[tuple[object, _End]]()
    for number, idle in enumerate(trace):
        if (age := number * TRACE_SECONDS) > run.seconds:
            break
        stays_idle = run.seconds - idle_at_end < age
        from_then = _End(run.seconds - age, idle_at_end if stays_idle else 0.0) if idle > 0 else whole
        moment = _moment_of(age, idle, run.began_at + age)
        for group in _groups(run.user_created, run.lifetime_seconds, moment):
            end = whole if group is None else from_then
            found |= {(group, end), ((group, moment.hour), end)}
    return found


def _moment_of(age_seconds: float, idle_seconds: float, at: float) -> _Moment:
    age = round(2 * log2(1 + age_seconds // TRACE_SECONDS))
    idle = 0 if idle_seconds <= 0 else 1 + int(idle_seconds // TRACE_SECONDS)
    return _Moment(age, idle, int(at // 3600) % 24 // HOURS)


def _idle_at_end(run: PastRun) -> float:
    idle = run.idle[-1] if run.idle else 0.0
    since_seconds = run.seconds - (len(run.idle) - 1) * TRACE_SECONDS
    return idle + max(0.0, since_seconds) if idle > 0 else 0.0


def _fractions(name: str) -> Iterator[float]:
    """Return eight numbers from 0 to 1 that look random, and are the same for the same name."""
    digest = blake2b(name.encode(), digest_size=32).digest()
    return (int.from_bytes(digest[at : at + 4], "big") / 2**32 for at in range(0, 32, 4))
