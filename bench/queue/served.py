"""Sessions served by a discipline from the first that comes to the last: who waited, who got what, what was told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from disciplines import Discipline
from sessions import Session, Workload

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.placement.fragmentation import Demand
from gpuspawner.core.placement.placement import UNKNOWN, demand_of
from gpuspawner.core.queue.forecast.estimates import queue_places
from gpuspawner.core.queue.forecast.lasting import NOTHING_LASTED, Lasted
from gpuspawner.core.queue.forecast.ranges import MOST_ERRORS, Outcome, range_of
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.quotas.charges import HALF_LIFE_SECONDS
from gpuspawner.core.quotas.entries import accounts_of
from gpuspawner.core.rules import Account, Accounts

TICK_SECONDS = 60.0
"""So often it is decided, where something changed: a month is replayed in minutes."""
LEARN_SECONDS = 86400.0


@dataclass
class Served:
    """What became of a session. ``told`` is what it was told when it asked, ``outcome`` what came of that."""

    session: Session
    started_at: float | None = None
    ran_seconds: float = 0.0
    told: tuple[float, float, float, float] | None = None
    """Likely, at the latest, and the range: seconds from when it was told."""
    told_at: float = 0.0
    outcome: Outcome | None = None

    def waited_seconds(self, end: float) -> float:
        """Return for how long it waited, until ``end`` where it never started."""
        return (end if self.started_at is None else self.started_at) - self.session.asked_at


@dataclass
class _Cluster:
    """Who waits, who runs, and what those who ended have used."""

    work: Workload
    now: float = 0.0
    waiting: dict[str, Lease] = field(default_factory=dict)
    running: dict[str, Lease] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    used: dict[Account, float] = field(default_factory=dict)
    used_at: float = 0.0
    demand: Demand = UNKNOWN
    learnt_at: float = float("-inf")
    lasted: Lasted = NOTHING_LASTED

    def snapshot(self) -> Snapshot:
        factor = 0.5 ** ((self.now - self.used_at) / HALF_LIFE_SECONDS)
        self.used = {account: used * factor for account, used in self.used.items()}
        self.used_at = self.now
        leases = (*self.running.values(), *self.waiting.values())
        if self.now >= self.learnt_at + LEARN_SECONDS:
            self.demand = demand_of((x.request for x in leases), self.work.kinds, self.work.fleet)
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
            self.lasted = self.lasted.and_of([lease], self.now)
            gpus = float(sum(slot.share for slot in lease.slots))
            for account in accounts_of(lease.key.user_created, ""):
                self.used[account] = self.used.get(account, 0.0) + gpus * (self.now - (lease.running_at or 0.0))
        return some


def serve(work: Workload, discipline: Discipline) -> list[Served]:
    """Return what became of each session by the time at which the last one asks."""
    cluster, line = _Cluster(work), list(reversed(work.sessions))
    found = {one.id: Served(one) for one in work.sessions}
    past: list[Outcome] = []
    while line:
        cluster.now = _next_tick(min(line[-1].asked_at, *(at for at, _ in cluster.ends[:1]), line[0].asked_at))
        changed, new = cluster.end_those_over(), []
        while line and line[-1].asked_at <= cluster.now:
            session = line.pop()
            key = Key("hub", session.request.user, session.id)
            cluster.waiting[session.id] = Lease(
                session.id, key, session.request.user, session.request, {}, session.asked_at
            )
            new.append(session.id)
        if cluster.waiting and (changed or new):
            for name, slots, latest in discipline.starts(cluster.snapshot()):
                cluster.start(found[name], slots, latest)
                if (told := found[name].told) is not None:
                    found[name].outcome = outcome = Outcome(*told, cluster.now - found[name].told_at)
                    past = [*past, outcome][-MOST_ERRORS:]
        if discipline.estimates:
            _tell(cluster, [found[name] for name in new if name in cluster.waiting], past)
    return list(found.values())


def _tell(cluster: _Cluster, new: Iterable[Served], past: Sequence[Outcome]) -> None:
    """Tell those who came and wait, as the service does (``service.rules.foretold``)."""
    new = list(new)
    places = queue_places(cluster.snapshot(), lasted=cluster.lasted) if new else {}
    for one in new:
        likely, latest = places[one.session.id].likely_seconds, places[one.session.id].unchanged_seconds
        if latest:
            likely = latest if likely is None else likely
            one.told, one.told_at = (likely, latest, *range_of(likely, latest, past)), cluster.now


def _next_tick(at: float) -> float:
    ticks = -(-at // TICK_SECONDS)
    return ticks * TICK_SECONDS
