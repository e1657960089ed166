"""Sessions served by a discipline from the first that comes to the last: who waited, and who got what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

from disciplines import Discipline
from sessions import Session, Workload

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.gpus.fragmentation import Demand
from gpuspawner.core.gpus.placement import UNKNOWN_DEMAND, sample_demand
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.queue.run_times import TRACE_SECONDS, RunTimes, past_run
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import Account, Accounts

TICK_SECONDS = 60.0
"""Shortest time between two decisions, in seconds, so that a month is replayed in minutes."""
LEARN_SECONDS = 86400.0


@dataclass
class Served:
    """The outcome of a session."""

    session: Session
    started_at: float | None = None
    ran_seconds: float = 0.0

    def waited_seconds(self, end: float) -> float:
        """Return how long the session waited. If it never started, count until ``end``."""
        return (end if self.started_at is None else self.started_at) - self.session.asked_at


@dataclass
class Cluster:
    """The waiting sessions, the running sessions, and the usage of ended sessions."""

    work: Workload
    now: float = 0.0
    served: dict[str, Served] = field(default_factory=dict)
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
        """Return what a scheduler sees now."""
        factor = 0.5 ** ((self.now - self.used_at) / HALF_LIFE_SECONDS)
        self.used = {account: used * factor for account, used in self.used.items()}
        self.used_at = self.now
        leases = (*map(self._with_idle_time, self.running.values()), *self.waiting.values())
        if self.now >= self.learnt_at + LEARN_SECONDS:
            self.demand = sample_demand((x.request for x in leases), self.work.kinds, self.work.fleet)
            self.learnt_at = self.now
        accounts = Accounts(decayed_gpu_seconds=self.used)
        return Snapshot(self.now, self.work.kinds, leases, self.work.fleet, accounts=accounts, demand=self.demand)

    def _with_idle_time(self, lease: Lease) -> Lease:
        idle = self.served[lease.id].session.idle_seconds(self.now - (lease.running_at or 0.0))
        return replace(lease, streak=replace(lease.streak, idle_seconds=idle)) if idle > 0 else lease

    def start(self, name: str, slots: tuple[Slot, ...], latest: float) -> None:
        """Start a waiting session."""
        one = self.served[name]
        lease, until = self.waiting.pop(name), self.now + one.session.request.lifetime_seconds
        one.started_at, one.ran_seconds = self.now, min(one.session.seconds, latest - self.now)
        self.running[name] = replace(
            lease, phase=Phase.RUNNING, slots=slots, granted_at=self.now, running_at=self.now,
            deadline_at=min(until, latest),
        )  # fmt: skip
        heappush(self.ends, (self.now + one.ran_seconds, name))

    def end_those_over(self) -> bool:
        """End the sessions whose time has come. Return whether there was one."""
        some = False
        while self.ends and self.ends[0][0] <= self.now:
            at, name = heappop(self.ends)
            lease, some = self.running.pop(name), True
            began_at, session = lease.running_at or 0.0, self.served[name].session
            ages = range(0, int(at - began_at) + 1, int(TRACE_SECONDS))
            self.run_times.add(past_run(lease, at, tuple(map(session.idle_seconds, ages))))
            gpus = float(sum(slot.share for slot in lease.slots))
            for account in accounts_of(lease.key.user_created, ""):
                self.used[account] = self.used.get(account, 0.0) + gpus * (self.now - began_at)
        return some

    def ask(self, session: Session) -> None:
        """Add a request."""
        self.asked.append(session)
        self.served[session.id] = Served(session)
        key = Key("hub", session.request.user, session.id)
        self.waiting[session.id] = Lease(session.id, key, session.request.user, session.request, {}, session.asked_at)


def serve(
    work: Workload,
    discipline: Discipline,
    look: Callable[[Cluster], None] = lambda _: None,
    next_look: Callable[[], float] = lambda: inf,
) -> list[Served]:
    """Return the outcome of each session at the time of the last request.

    ``look`` is called after each decision, and at ``next_look``.
    """
    cluster, line = Cluster(work), list(reversed(work.sessions))
    while line:
        due = min(line[-1].asked_at, *(at for at, _ in cluster.ends[:1]), line[0].asked_at, next_look())
        cluster.now = max(cluster.now, -(-due // TICK_SECONDS) * TICK_SECONDS)
        changed = cluster.end_those_over()
        while line and line[-1].asked_at <= cluster.now:
            cluster.ask(line.pop())
            changed = True
        if cluster.waiting and changed:
            for name, slots, latest in discipline.starts(cluster.snapshot()):
                cluster.start(name, slots, latest)
        look(cluster)
    return list(cluster.served.values())
