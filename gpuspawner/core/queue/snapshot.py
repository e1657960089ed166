"""The input of every decision about the queue: leases, GPUs and rules at one instant, and the waiting requests.

Decisions are functions of a Snapshot. The service makes snapshots in ``service.engine``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from heapq import merge
from itertools import chain
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Fleet, HostResources, Kinds, NodeName, Slot
from gpuspawner.core.gpus.fragmentation import Demand
from gpuspawner.core.gpus.placement import UNKNOWN_DEMAND, host_resources_left, used_shares
from gpuspawner.core.gpus.pools import coming_gpus, move_marks_to_free_gpus
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.core.rules import Account, Accounts, QuotaGrant, Rules

# --- ends


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


class LeaseEnds:
    """The coming ends of leases, the earliest first."""

    def __init__(self) -> None:
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
        return len(self._running) + len(self._others)

    def __iter__(self) -> Iterator[Lease]:
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


# --- live leases


CHUNK_LEASES = 256
"""The most leases in a chunk: about the number of chunks in a large cluster."""


class LeaseView(Collection[Lease]):
    """The leases at one instant. Two views that share a chunk hold the same leases in it."""

    def __init__(self, chunks: Mapping[int, tuple[Lease, ...]]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[Lease]:
        return chain.from_iterable(self.chunks.values())

    def __len__(self) -> int:
        return sum(map(len, self.chunks.values()))

    def __contains__(self, one: object) -> bool:
        return any(one in some for some in self.chunks.values())


def changed_leases(before: Collection[Lease], after: Collection[Lease]) -> tuple[list[Lease], list[Lease]]:
    """Return the leases of each that are not in a chunk of both."""
    old, new = _chunks(before), _chunks(after)
    return _without(old, new), _without(new, old)


def _chunks(leases: Collection[Lease]) -> Mapping[int, Collection[Lease]]:
    return leases.chunks if isinstance(leases, LeaseView) else {0: leases}


def _without(some: Mapping[int, Collection[Lease]], others: Mapping[int, Collection[Lease]]) -> list[Lease]:
    return [lease for number, chunk in some.items() if others.get(number) is not chunk for lease in chunk]


class LiveLeases:
    """Leases by id, in the order in which they came."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        self._number: dict[str, int] = {}
        self._chunks: dict[int, dict[str, Lease]] = {}
        self._seen: dict[int, tuple[Lease, ...]] = {}
        self._changed: set[int] = set()
        """The chunks that have changed since the last view."""
        self._came = 0
        for lease in leases:
            self.put(lease)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.seen())

    def get(self, name: str) -> Lease | None:
        """Return the lease with an id."""
        number = self._number.get(name)
        return None if number is None else self._chunks[number][name]

    def put(self, lease: Lease) -> None:
        """Add a lease. It replaces the lease with its id."""
        number = self._number.get(lease.id)
        if number is None:
            number = self._number[lease.id] = self._came // CHUNK_LEASES
            self._came += 1
        self._chunks.setdefault(number, {})[lease.id] = lease
        self._changed.add(number)

    def remove(self, name: str) -> None:
        """Remove the lease with an id, if there is one."""
        if (number := self._number.pop(name, None)) is not None:
            del self._chunks[number][name]
            self._changed.add(number)

    def seen(self) -> LeaseView:
        """Return a view of the leases as they are now."""
        for number in self._changed:
            if some := self._chunks[number]:
                self._seen[number] = tuple(some.values())
            else:
                del self._chunks[number]
                self._seen.pop(number, None)
        self._changed.clear()
        return LeaseView(dict(self._seen))


# --- snapshot


NO_LIMIT = 1_000_000
ALL_KINDS = ""
"""Stands for all kinds of GPU, and for requests without a GPU."""


@dataclass(frozen=True)
class PreemptedGpus:
    """GPUs that were freed for a preemption. No other request is granted them before ``until``.

    ``account`` gets the GPUs. It is None for a claim by the API from outside.
    """

    preemption: str
    slots: tuple[Slot, ...]
    account: Account | None
    until: float


class Claim(NamedTuple):
    """A waiting request, or one that could be made. ``user_created`` identifies the user, as in ``lease.Owner``.

    ``attended`` means that a waiter in the hub listens. An unattended request is granted only while its hub answers.
    Nothing is granted before ``not_before``. ``tried_nodes`` had no room for the request, the last tried last.
    ``attempt`` counts its start attempts.
    """

    id: str
    user_created: str
    request: Request
    asked_at: float
    attended: bool = True
    not_before: float = 0.0
    tried_nodes: tuple[str, ...] = ()
    attempt: int = 0
    user: str = ""
    waiting_since: float = inf
    waiting_until: float = inf
    """The time in which the request could have been granted: see ``waited_seconds``."""
    replaces: str = ""
    """The running lease whose new size this is."""
    queue_move: int = 0
    """An administrator's order: the higher goes first."""

    @property
    def revision(self) -> str:
        """A text that changes with the request, the attempt and each lost grant (which sets ``not_before``).

        An answer of a scheduler counts only for its own revision.
        """
        return f"{self.attempt} {self.not_before} {self.request.digest}"

    def waited_seconds(self, now: float) -> float:
        """Return the seconds that the request has waited while it could have been granted."""
        return max(0.0, min(now, self.waiting_until) - self.waiting_since)


def claim_of(lease: Lease) -> Claim:
    """Return the request of a lease.

    Its waiting time begins when it was made or came back. It excludes the time in which a rule held it back or in which
    it could not start at all. A preempted workspace that comes back counts as overdue.
    """
    since = lease.asked_at if lease.waiting_since is None else lease.waiting_since
    held_since = None if lease.wait_reason is None else lease.wait_reason.since
    stops = [at for at in (lease.impossible_since, held_since) if at is not None]
    return Claim(
        lease.id,
        lease.key.user_created,
        lease.request,
        lease.asked_at,
        lease.phase is not Phase.PARKED,
        lease.not_before,
        lease.tried_nodes,
        lease.attempt,
        lease.user,
        -inf if lease.came_back else since + lease.blocked_seconds,
        inf if lease.came_back else min(stops, default=inf),
        queue_move=lease.queue_move,
    )


@dataclass(frozen=True)
class Snapshot:
    """Leases, GPUs and other usage at one instant.

    Args:
        now: seconds of the service's clock.
        kinds: the catalog's GPU kinds by name.
        leases: all live leases, in no order.
        fleet: the GPUs at the last look.
        others: slots that may not be granted, for example GPUs in use that the workspace's lease does not hold.
        room: the quotas and limits of the cluster's namespace.
        hub_answers: whether a server could be started now.
        processes_known: whether it is known which workspaces run. If not, nothing is granted: a process that a crash
            left behind may use a GPU that no lease holds.
        most_starts: the most workspaces that may start at the same time, ``most_starts_each`` of one user.
        rules: the catalog's teams, quotas, budgets, class holds and hours.
        policies: the catalog's policies by name.
        accounts: the usage of ended workspaces.
        quota_grants: amounts that administrators added to limits and budgets.
        fast: the factor by which the catalog's times were shortened.
        kept: GPUs that were freed for a preemption.
        paused: the sentence of each paused kind by its name. ALL_KINDS pauses all kinds and requests without a GPU.
        demand: the expected later requests.
    """

    now: float
    kinds: Kinds
    leases: Collection[Lease] = ()
    fleet: Fleet = field(default_factory=Fleet)
    others: tuple[Slot, ...] = ()
    room: NamespaceBounds = field(default_factory=NamespaceBounds)
    hub_answers: bool = True
    processes_known: bool = True
    most_starts: int = NO_LIMIT
    most_starts_each: int = NO_LIMIT
    rules: Rules = field(default_factory=Rules)
    policies: Mapping[str, LifecyclePolicy] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)
    quota_grants: tuple[QuotaGrant, ...] = ()
    kept: tuple[PreemptedGpus, ...] = ()
    demand: Demand = UNKNOWN_DEMAND
    paused: Mapping[str, str] = field(default_factory=dict)
    fast: float = 1.0

    def paused_words(self, kind: str | None) -> str:
        """Return the sentence why a kind is paused, or "". ``kind`` is None for requests without a GPU."""
        return self.paused.get(ALL_KINDS) or self.paused.get(kind or ALL_KINDS, "")

    def priority_of(self, request: Request) -> int:
        """Return the sum of the priorities of a request's team and template."""
        team = self.rules.teams.get(request.team)
        return request.priority + (team.priority if team is not None else 0)

    def may_grant(self, claim: Claim) -> bool:
        """Return whether a request may be granted now: its hub answers and its back-off is over.

        A request that may not be granted reserves no GPUs.
        """
        return (claim.attended or self.hub_answers) and claim.not_before <= self.now

    @cached_property
    def used(self) -> Mapping[str, Fraction]:
        """The share in use of each GPU, by id."""
        return used_shares(self.leases, self.others)

    @cached_property
    def host_resources_left(self) -> Mapping[NodeName, HostResources]:
        """The free CPU and memory of nodes whose capacity is known."""
        return host_resources_left(self.fleet, self.leases)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The waiting requests by time. ``core.queue.order`` has the order in which they are granted."""
        waiting = (claim_of(lease) for lease in self.leases if lease.phase in WAITING)
        return tuple(sorted(waiting, key=lambda claim: (claim.asked_at, claim.id)))

    @cached_property
    def placement_fleet(self) -> Fleet:
        """The fleet with the nodes that an autoscaler may add. Counted marks apply to GPUs that no lease holds."""
        seen = move_marks_to_free_gpus(self.fleet, self.used)
        coming = coming_gpus(self.kinds.values(), seen.gpus, self.leases)
        return replace(seen, gpus=(*seen.gpus, *coming)) if coming else seen
