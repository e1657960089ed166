"""Sessions served by a discipline from the first that comes to the last: who waited, who got what, what was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf, log
from typing import NamedTuple

from disciplines import Discipline
from sessions import Session, Workload

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.gpus.fragmentation import Demand
from gpuspawner.core.gpus.placement import UNKNOWN_DEMAND, sample_demand
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.queue.estimates import (
    EACH_SIDE,
    MOST_ERRORS,
    WINDOW_SECONDS,
    EstimateOutcome,
    StartEstimate,
    estimate_starts,
    later_requests,
    queue_positions,
    shown_range,
)
from gpuspawner.core.queue.forecasts import MOST_FORECAST, RunTimes, past_run
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import Account, Accounts

TICK_SECONDS = 60.0
"""Shortest time between two decisions, in seconds, so that a month is replayed in minutes."""
LEARN_SECONDS = 86400.0


LEAST_POINTS, RIGHT_SHARE = 20, 0.8
"""With fewer past estimates no threshold is computed. This share of shown times must be right."""
AT_ONCE, DRAWS = "at once", "in draws"
"""The methods of an estimate: ``positions``, which answers at once, and ``estimates``, which takes a second."""
NEAREST = 200
"""Number of past errors, at the most similar horizon, that adjust a range."""


class PastPoint(NamedTuple):
    """The chance of a past estimate, and whether the start came within ten minutes of it."""

    chance: float
    was_right: bool


def chance_to_show(past: Sequence[PastPoint]) -> float:
    """Return the least chance at which a time is shown, so that four in five shown times are right.

    It is the lowest chance at which four in five of the past estimates of at least that chance were right. It is
    infinite without one, or if fewer than LEAST_POINTS estimates had at least that chance.
    """
    found, right = inf, 0
    ordered = sorted(past, key=lambda point: -point.chance)
    for number, point in enumerate(ordered, 1):
        right += point.was_right
        is_last = number == len(ordered) or ordered[number].chance < point.chance
        if is_last and number >= LEAST_POINTS and right >= RIGHT_SHARE * number:
            found = point.chance
    return found


class Told(NamedTuple):
    """A first estimate: its time, the likely start, the range as computed and as adjusted, in seconds from then."""

    at: float
    point_seconds: float
    low_seconds: float
    high_seconds: float
    from_seconds: float
    to_seconds: float
    chance: float = 1.0
    is_shown: bool = True


@dataclass
class Served:
    """The outcome of a session. ``told`` are its first estimates by method, made when it asked."""

    session: Session
    started_at: float | None = None
    ran_seconds: float = 0.0
    told: dict[str, Told] = field(default_factory=dict)

    def waited_seconds(self, end: float) -> float:
        """Return how long the session waited. If it never started, count until ``end``."""
        return (end if self.started_at is None else self.started_at) - self.session.asked_at


@dataclass
class _Cluster:
    """The waiting sessions, the running sessions, and the usage of ended sessions."""

    work: Workload
    now: float = 0.0
    waiting: dict[str, Lease] = field(default_factory=dict)
    running: dict[str, Lease] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    used: dict[Account, float] = field(default_factory=dict)
    used_at: float = 0.0
    demand: Demand = UNKNOWN_DEMAND
    learnt_at: float = float("-inf")
    run_times: RunTimes = field(default_factory=RunTimes)
    asked: list[Session] = field(default_factory=list)
    """The sessions that have come, the oldest first."""

    def snapshot(self) -> Snapshot:
        factor = 0.5 ** ((self.now - self.used_at) / HALF_LIFE_SECONDS)
        self.used = {account: used * factor for account, used in self.used.items()}
        self.used_at = self.now
        leases = (*self.running.values(), *self.waiting.values())
        if self.now >= self.learnt_at + LEARN_SECONDS:
            self.demand = sample_demand((x.request for x in leases), self.work.kinds, self.work.fleet)
            self.learnt_at = self.now
        accounts = Accounts(decayed_gpu_seconds=self.used)
        return Snapshot(self.now, self.work.kinds, leases, self.work.fleet, accounts=accounts, demand=self.demand)

    def start(self, one: Served, slots: tuple[Slot, ...], latest: float) -> None:
        session = one.session
        lease, until = self.waiting.pop(session.id), self.now + session.request.lifetime_seconds
        one.started_at, one.ran_seconds = self.now, min(session.seconds, latest - self.now)
        self.running[session.id] = replace(
            lease, phase=Phase.RUNNING, slots=slots, granted_at=self.now, running_at=self.now,
            deadline_at=min(until, latest),
        )  # fmt: skip
        heappush(self.ends, (self.now + one.ran_seconds, session.id))

    def end_those_over(self) -> bool:
        some = False
        while self.ends and self.ends[0][0] <= self.now:
            _, name = heappop(self.ends)
            lease, some = self.running.pop(name), True
            self.run_times.add(past_run(lease, self.now))
            gpus = float(sum(slot.share for slot in lease.slots))
            for account in accounts_of(lease.key.user_created, ""):
                self.used[account] = self.used.get(account, 0.0) + gpus * (self.now - (lease.running_at or 0.0))
        return some


def serve(work: Workload, discipline: Discipline) -> list[Served]:
    """Return the outcome of each session at the time of the last request."""
    cluster, line = _Cluster(work), list(reversed(work.sessions))
    found = {one.id: Served(one) for one in work.sessions}
    past: dict[str, list[tuple[Told, float]]] = {AT_ONCE: [], DRAWS: []}
    while line:
        cluster.now = _next_tick(min(line[-1].asked_at, *(at for at, _ in cluster.ends[:1]), line[0].asked_at))
        changed, new = cluster.end_those_over(), []
        while line and line[-1].asked_at <= cluster.now:
            session = line.pop()
            cluster.asked.append(session)
            key = Key("hub", session.request.user, session.id)
            cluster.waiting[session.id] = Lease(
                session.id, key, session.request.user, session.request, {}, session.asked_at
            )
            new.append(session.id)
        if cluster.waiting and (changed or new):
            for name, slots, latest in discipline.starts(cluster.snapshot()):
                cluster.start(found[name], slots, latest)
                for method, told in found[name].told.items():
                    past[method].append((told, cluster.now - told.at))
        if discipline.estimates:
            _tell(cluster, [found[name] for name in new if name in cluster.waiting], past)
    return list(found.values())


def _tell(cluster: _Cluster, new: Sequence[Served], past: Mapping[str, Sequence[tuple[Told, float]]]) -> None:
    """Make the first estimates of those who came and wait, by each method."""
    if not new:
        return
    seen, at = cluster.snapshot(), cluster.now
    places = queue_positions(seen, run_times=cluster.run_times)
    outcomes = [
        EstimateOutcome(x.low_seconds, x.high_seconds, 0, 0, actual) for x, actual in past[AT_ONCE][-MOST_ERRORS:]
    ]
    for one in new:
        likely, latest = places[one.session.id].likely_seconds, places[one.session.id].unchanged_seconds
        if latest:
            likely = latest if likely is None else likely
            one.told[AT_ONCE] = Told(at, likely, likely, latest, *shown_range(likely, latest, outcomes))
    if not cluster.run_times.is_known:
        return
    past_requests = [Claim(x.id, x.request.user, x.request, x.asked_at, user=x.request.user) for x in cluster.asked]
    index, names = Index(seen), {one.session.id for one in new}
    claims = sorted(seen.claims, key=lambda claim: claim.id not in names)[:MOST_FORECAST]
    drawn = estimate_starts(seen, index, claims, cluster.run_times, partial(later_requests, past_requests, at))
    least = chance_to_show([PastPoint(x.chance, _is_near(x, actual)) for x, actual in past[DRAWS][-MOST_ERRORS:]])
    for one in new:
        estimate = drawn[one.session.id]
        if (point := estimate.point_seconds) is not None:
            low, high = _adjusted(estimate, point, past[DRAWS])
            one.told[DRAWS] = Told(
                at, point, estimate.from_seconds, estimate.to_seconds, low, high, estimate.chance,
                is_shown=estimate.chance >= least,
            )  # fmt: skip


def _adjusted(estimate: StartEstimate, point: float, past: Sequence[tuple[Told, float]]) -> tuple[float, float]:
    """Return the range of an estimate, adjusted by the errors of the past at the most similar horizon."""
    known = [(told, actual) for told, actual in past if told.high_seconds < inf]
    known.sort(key=lambda one: abs(log((one[0].point_seconds + 60) / (point + 60))))
    errors = [EstimateOutcome(told.low_seconds, told.high_seconds, 0, 0, actual) for told, actual in known[:NEAREST]]
    return shown_range(estimate.from_seconds, estimate.to_seconds, errors, EACH_SIDE)


def _is_near(told: Told, actual_seconds: float) -> bool:
    return abs(actual_seconds - told.point_seconds) <= WINDOW_SECONDS / 2


def _next_tick(at: float) -> float:
    ticks = -(-at // TICK_SECONDS)
    return ticks * TICK_SECONDS
