"""The queue: first come, first served, for each pool of GPUs; places and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuspawner.core.gpus import Fleet, GpuKind, Slot
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
    """What grants depend on besides leases and fleet, at one instant."""

    now: float
    hub_answers: bool = True
    starts_left: int = 1_000_000
    others: tuple[Slot, ...] = ()


def next_grants(
    leases: Sequence[Lease], fleet: Fleet, kinds: Kinds, at: Conditions
) -> list[tuple[Lease, tuple[Slot, ...]]]:
    """Return the grants to make now, in order.

    A request without a GPU is granted at once. Within a pool nobody overtakes: the first that does not fit makes the
    rest wait, so that a large request is never starved by small ones. Passed over, and not blocking: a parked lease
    while its hub does not answer, one that backs off, and one that the whole fleet could not serve.
    """
    used = used_shares(leases, at.others)
    grants: list[tuple[Lease, tuple[Slot, ...]]] = []
    blocked: set[str] = set()
    for lease in in_order(leases):
        if len(grants) >= at.starts_left:
            break
        if lease.not_before > at.now or (lease.phase is Phase.PARKED and not at.hub_answers):
            continue
        pool = pool_of(lease, kinds)
        if pool is None:
            grants.append((lease, ()))
            continue
        kind = kinds.get(lease.request.gpu or "")
        if kind is None or pool in blocked:
            continue
        if fleet.complete and lease.request.count > largest_fit(kind, fleet):
            continue
        slots = place(kind, lease.request.count, fleet, used)
        if slots is None:
            blocked.add(pool)
            continue
        grants.append((lease, slots))
        for slot in slots:
            used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
    return grants


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
    ahead = line[:number]
    holders = [x for x in leases if x.id != lease.id]
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
    """Replay the coming ends in order, granting the line each time, until its last lease is served."""
    used = used_shares(holders, others)
    ends = sorted(
        ((_end_at(x, now, use_grace=use_grace), x.id, x.slots) for x in holders if x.phase in HOLDING and x.slots),
        key=lambda e: (e[0] if e[0] is not None else float("inf"), e[1]),
    )
    waiting = list(ahead)
    at: float | None = now
    while waiting:
        while waiting:
            kind = kinds.get(waiting[0].request.gpu or "")
            slots = place(kind, waiting[0].request.count, fleet, used) if kind else None
            if slots is None:
                break
            first = waiting.pop(0)
            for slot in slots:
                used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
            if at is not None and waiting:
                ends.append((at + first.request.lifetime_seconds, first.id, slots))
                ends.sort(key=lambda e: (e[0] if e[0] is not None else float("inf"), e[1]))
        if not waiting:
            break
        if not ends or ends[0][0] is None:
            return None
        at, _, freed = ends.pop(0)
        for slot in freed:
            used[slot.gpu] -= slot.share
    return None if at is None else max(0.0, at - now)


def _end_at(lease: Lease, now: float, *, use_grace: bool) -> float | None:
    if lease.phase is Phase.STOPPING:
        return now
    if use_grace and lease.phase is Phase.RECLAIMING and lease.streak.grace_left_seconds is not None:
        return now + lease.streak.grace_left_seconds
    if lease.phase in UP:
        return lease.deadline_at
    return now + lease.request.lifetime_seconds


def usable(fleet: Fleet, kind: GpuKind) -> bool:
    """Whether the fleet has any device of the kind's pool that may be given."""
    return any(gpu.pool == kind.pool and grantable(gpu) for gpu in fleet.gpus)
