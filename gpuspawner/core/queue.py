"""The queue: first come, first served, for each pool of GPUs; places and estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import inf

from gpuspawner.core.autoscale import is_coming
from gpuspawner.core.gpus import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.placement import grantable, largest_fit, place, used_shares

Kinds = Mapping[str, GpuKind]


def in_order(leases: Iterable[Lease]) -> list[Lease]:
    """Return the waiting leases in the order in which they are served.

    1. ``asked_at``, the earliest first;
    2. the lease's id.
    """
    return sorted((x for x in leases if x.phase in WAITING), key=lambda x: (x.asked_at, x.id))


def pool_of(lease: Lease, kinds: Kinds) -> str | None:
    """Return the pool a lease draws on, None without a GPU; a kind that left the catalog is its own pool."""
    name = lease.request.gpu
    return None if name is None else kinds[name].pool if name in kinds else name


@dataclass(frozen=True)
class Conditions:
    """What grants depend on besides leases and fleet, at one instant.

    At most ``most_starts`` workspaces start at the same time, at most ``most_starts_each`` of one user.
    """

    now: float
    hub_answers: bool = True
    most_starts: int = 1_000_000
    most_starts_each: int = 1_000_000
    others: tuple[Slot, ...] = ()


def starts_under_way(leases: Iterable[Lease]) -> Counter[str]:
    """Return how many starts of each user, by ``created``, are under way: granted, and not running yet.

    One that waits for a node to come is none: nothing starts for it yet, and it may wait for many minutes.
    """
    return Counter(
        x.key.user_created for x in leases if x.phase in {Phase.RESERVED, Phase.STARTING} and not _comes(x.slots)
    )


def _comes(slots: Iterable[Slot]) -> bool:
    return any(is_coming(slot.gpu) for slot in slots)


def next_grants(
    leases: Sequence[Lease], fleet: Fleet, kinds: Kinds, at: Conditions
) -> list[tuple[Lease, tuple[Slot, ...]]]:
    """Return the grants to make now, in order.

    A request without a GPU is granted at once. Within a pool nobody overtakes: the first that does not fit makes the
    rest wait, so that a large request is never starved by small ones. Passed over, and not blocking: a parked lease
    while its hub does not answer, one that backs off, and one that the whole fleet could not serve as it is: for GPUs
    of strangers, which nobody knows the end of, a pool would stand still for days. A lease whose user
    has as many starts under way as one may have keeps its GPUs from those behind it, and gets them a moment later.
    """
    used = used_shares(leases, at.others)
    grants: list[tuple[Lease, tuple[Slot, ...]]] = []
    blocked: set[str] = set()
    starts = starts_under_way(leases)
    for lease in in_order(leases):
        if starts.total() >= at.most_starts:
            break
        if lease.not_before > at.now or (lease.phase is Phase.PARKED and not at.hub_answers):
            continue
        pool = pool_of(lease, kinds)
        may_start = starts[lease.key.user_created] < at.most_starts_each
        kind = kinds.get(lease.request.gpu or "")
        if pool is None and may_start:
            starts[lease.key.user_created] += 1
            grants.append((lease, ()))
        if kind is None or pool is None or pool in blocked:
            continue
        if fleet.complete and lease.request.count > largest_fit(kind, fleet):
            continue
        slots = place(kind, lease.request.count, fleet, used, lease.tried_nodes)
        if slots is None:
            blocked.add(pool)
            continue
        if may_start:
            starts[lease.key.user_created] += not _comes(slots)
            grants.append((lease, slots))
        for slot in slots:
            used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
    return grants


LEAST_WAIT_SECONDS = 1.0
"""GPUs that are held, though their holder's time is over, are not free now: a stop takes at least this."""


@dataclass(frozen=True)
class Place:
    """A place in the queue: ``number`` counts from 1 among ``of`` that wait for the same pool.

    ``at_most_seconds`` is when the GPUs are free at the latest if nobody extends: None where nothing tells (a holder
    without a deadline, or more asked than the fleet has). ``likely_seconds`` counts grace periods that run already.
    """

    number: int
    of: int
    at_most_seconds: float | None
    likely_seconds: float | None


def queue_place(
    lease: Lease, leases: Sequence[Lease], fleet: Fleet, kinds: Kinds, others: Sequence[Slot], now: float
) -> Place:
    """Return where ``lease`` stands among those that wait for the same GPUs, and for how long at most."""
    pool = pool_of(lease, kinds)
    line = [x for x in in_order([*(x for x in leases if x.id != lease.id), lease]) if pool_of(x, kinds) == pool]
    number = next(i for i, x in enumerate(line, 1) if x.id == lease.id)
    if pool is None:
        wait_seconds = max(0.0, lease.not_before - now)
        return Place(number, len(line), wait_seconds, wait_seconds)
    holders = [x for x in leases if x.id != lease.id]
    ahead = line[:number]
    passing = [x for x in ahead if x.not_before <= now or x is lease]
    if len(passing) < number and _wait_seconds(passing, holders, fleet, kinds, others, now, use_grace=False) == 0:
        ahead = passing  # those ahead who back off are passed over, as next_grants does
    return Place(
        number,
        len(line),
        _wait_seconds(ahead, holders, fleet, kinds, others, now, use_grace=False),
        _wait_seconds(ahead, holders, fleet, kinds, others, now, use_grace=True),
    )


def _wait_seconds(
    ahead: Sequence[Lease],
    holders: Sequence[Lease],
    fleet: Fleet,
    kinds: Kinds,
    others: Sequence[Slot],
    now: float,
    *,
    use_grace: bool,
) -> float | None:
    """Replay the coming ends in order, serving the line in turn, until its last lease is served."""
    pool = pool_of(ahead[-1], kinds)
    room = _Room([gpu for gpu in fleet.gpus if gpu.pool == pool and grantable(gpu)], used_shares(holders, others))
    soon = now + LEAST_WAIT_SECONDS
    ends = [
        (max(soon, _end_at(x, now, use_grace=use_grace)), x.id, x.slots)
        for x in holders
        if x.phase in HOLDING and x.slots
    ]
    heapify(ends)
    at, served = now, True
    for lease in ahead:
        kind = kinds.get(lease.request.gpu or "")
        served = kind is not None and lease.request.count <= room.largest
        if kind is None or not served:
            continue  # nothing that ends could serve it; it blocks nobody
        while (slots := room.take(kind.share, lease.request.count)) is None:
            if not ends or ends[0][0] == inf:
                return None
            end, _, freed = heappop(ends)
            at = max(at, end)
            room.give(freed)
        heappush(ends, (at + lease.request.lifetime_seconds, lease.id, slots))
    return max(at, ahead[-1].not_before) - now if served and fleet.complete else None


class _Room:
    """What is left of the GPUs of one pool while coming ends are replayed: quick for whole GPUs, exact for shares."""

    def __init__(self, gpus: Sequence[Gpu], used: Mapping[str, Fraction]) -> None:
        whole = Fraction(1)
        self._left = {gpu.id: 1 - used[gpu.id] if gpu.id in used else whole for gpu in gpus}
        self._node = {gpu.id: gpu.node for gpu in gpus}
        self._whole: dict[str, list[str]] = {gpu.node: [] for gpu in gpus}
        for gpu in gpus:
            if self._left[gpu.id] == 1:
                self._whole[gpu.node].append(gpu.id)
        self.largest = max(Counter(self._node.values()).values(), default=0)

    def take(self, share: Fraction, count: int) -> tuple[Slot, ...] | None:
        """Take ``count`` shares of distinct GPUs of one node, the fullest node and the most used GPUs first."""
        by_node = self._whole if share == 1 else self._with_room(share)
        fitting = [node for node, ids in by_node.items() if len(ids) >= count]
        if not fitting:
            return None
        ids = by_node[min(fitting, key=lambda node: (len(by_node[node]), node))][:count]
        for gpu in ids:
            self._change(gpu, -share)
        return tuple(Slot(gpu, share) for gpu in ids)

    def give(self, slots: Sequence[Slot]) -> None:
        """Take back what a lease held; GPUs that may not be given meanwhile stay away."""
        for slot in slots:
            if slot.gpu in self._left:
                self._change(slot.gpu, slot.share)

    def _with_room(self, share: Fraction) -> dict[str, list[str]]:
        by_node: dict[str, list[str]] = {}
        for gpu, left in sorted(self._left.items(), key=lambda item: item[1]):
            if left >= share:
                by_node.setdefault(self._node[gpu], []).append(gpu)
        return by_node

    def _change(self, gpu: str, share: Fraction) -> None:
        was_whole = self._left[gpu] == 1
        self._left[gpu] += share
        if was_whole:
            self._whole[self._node[gpu]].remove(gpu)
        elif self._left[gpu] == 1:
            self._whole[self._node[gpu]].append(gpu)


def _end_at(lease: Lease, now: float, *, use_grace: bool) -> float:
    if lease.phase is Phase.STOPPING:
        return now
    if use_grace and lease.phase is Phase.RECLAIMING and lease.streak.grace_left_seconds is not None:
        return now + lease.streak.grace_left_seconds
    if lease.phase in UP:
        return inf if lease.deadline_at is None else lease.deadline_at
    return now + lease.request.lifetime_seconds
