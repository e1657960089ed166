"""Which kinds of GPU a request takes: the one asked for, and those that its user accepts instead.

A substitute is never below what the template needs, whatever was consented to.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import takewhile

from gpuspawner.core.gpus.fleet import GpuKind, Kinds
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.rules import Quota


def kinds_of(request: Request, kinds: Kinds) -> tuple[GpuKind, ...]:
    """Return the kinds that a request takes, in the order of its wishes; those that left the catalog are left out."""
    if request.gpu is None:
        return ()
    if not request.substitutes:
        return (kinds[request.gpu],) if request.gpu in kinds else ()
    found = dict.fromkeys((request.gpu, *request.substitutes))
    known = (kinds[name] for name in found if name in kinds)
    return tuple(kind for kind in known if kind.name == request.gpu or is_enough(kind, request))


def is_enough(kind: GpuKind, request: Request) -> bool:
    """Whether GPUs of a kind have the memory, for themselves, and the compute capability that a request needs."""
    return kind.own_memory_bytes >= request.needs_memory_bytes and (
        not request.needs_compute or _version(kind.compute) >= _version(request.needs_compute)
    )


def also_given(lease: Lease, kinds: Kinds, quotas: Iterable[Quota]) -> tuple[GpuKind, ...]:
    """Return the kinds that the cluster may give a granted lease, where its own was taken a moment before.

    They are claimed as the granted one is, in the same cluster, and its user takes them. They count and cost no more,
    and no quota names them: what the grant was bound by has room for them.
    """
    own = kinds.get(lease.kind or "")
    if own is None or own.claim is None:
        return ()
    named = {limit.kind for quota in quotas for limit in quota.limits if limit.kind}
    return tuple(
        kind
        for kind in kinds_of(lease.request, kinds)
        if kind.claim is not None
        and kind.cluster == own.cluster
        and kind.name not in named | {own.name}
        and (kind.counts or kind.share) <= (own.counts or own.share)
        and (kind.price_per_hour or 0.0) <= (own.price_per_hour or 0.0)
    )


def _version(compute: str) -> tuple[int, ...]:
    """Return a compute capability to compare: 9.0 before 10.0. Unknown is less than any."""
    return tuple(int(part) for part in takewhile(str.isdigit, compute.split(".")))


def pool_of(claim: Claim | Lease, kinds: Kinds) -> str | None:
    """Return the pool of the kind asked for, None without a GPU; a kind that left the catalog is its own pool."""
    name = claim.request.gpu
    return None if name is None else kinds[name].pool if name in kinds else name


def pools_of(claim: Claim | Lease, kinds: Kinds) -> tuple[str | None, ...]:
    """Return the pools that a claim draws on: it stands in a line for each. (None,) without a GPU."""
    own = pool_of(claim, kinds)
    if not claim.request.substitutes:
        return (own,)
    return (own, *dict.fromkeys(kind.pool for kind in kinds_of(claim.request, kinds) if kind.pool != own))


def others_wait_for(lease: Lease, leases: Iterable[Lease], kinds: Kinds) -> bool:
    """Whether somebody else waits for GPUs of the pool that a lease holds."""
    kind = kinds.get(lease.kind or "")
    if kind is None:
        return False
    waiting = (x for x in leases if x.phase in WAITING and x.key.owner != lease.key.owner)
    return any(kind.pool in pools_of(one, kinds) for one in waiting)


def counts_of(kind: GpuKind | None) -> Fraction:
    """Return how much one GPU of a kind counts in quotas and GPU hours; 1 where the kind left the catalog."""
    if kind is None:
        return Fraction(1)
    return kind.share if kind.counts is None else kind.counts
