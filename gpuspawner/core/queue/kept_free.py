"""Free GPUs that a request does not get, because they are reserved for a request that goes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.gpus.placement import beside_of, place, used_shares
from gpuspawner.core.queue.backfill import BACKFILL, Reservation
from gpuspawner.core.queue.snapshot import Claim, Snapshot


class KeptFree(NamedTuple):
    """``free`` GPUs that are reserved for a request that goes first and asks for ``first`` GPUs.

    A workspace that ends before ``until`` (seconds since the epoch) may use them now. ``until`` is None if it is not
    known when the other request needs them.
    """

    free: int
    first: int
    until: float | None


def kept_free(claim: Claim, seen: Snapshot, reservations: Iterable[Reservation]) -> KeptFree | None:
    """Return the free GPUs that are kept from a request, or None if it gets them or could not use them.

    Args:
        claim: the request.
        seen: the snapshot of the decision.
        reservations: the reservations of the decision.
    """
    kind = seen.kinds.get(claim.request.gpu or "")
    others = [one for one in reservations if claim.id not in one.whom]
    first = next((one for one in others if kind is not None and _keeps_free(one, kind, seen)), None)
    if kind is None or first is None:
        return None
    rest = [slot for one in others if one is not first for slot in one.slots]
    if _fits(claim, kind, seen, [*rest, *first.slots]) or not _fits(claim, kind, seen, rest):
        return None
    free = sum(seen.used.get(slot.gpu, Fraction(0)) + slot.share <= 1 for slot in first.slots)
    return KeptFree(free, len(first.slots), first.at)


def _keeps_free(one: Reservation, kind: GpuKind, seen: Snapshot) -> bool:
    """Return whether a reservation contains free GPUs of a kind."""
    if one.rule != BACKFILL:
        return False
    gpus = seen.gpus_as_held.by_id
    mine = (slot for slot in one.slots if slot.gpu in gpus and gpus[slot.gpu].pool == kind.pool)
    return any(seen.used.get(slot.gpu, Fraction(0)) + kind.share <= 1 for slot in mine)


def _fits(claim: Claim, kind: GpuKind, seen: Snapshot, kept: Iterable[Slot]) -> bool:
    used: Mapping[str, Fraction] = used_shares((), [*kept, *(Slot(gpu, share) for gpu, share in seen.used.items())])
    needs, left = beside_of(claim.request), seen.beside_left
    return (
        place(kind, claim.request.count, seen.gpus_as_held, used, claim.tried_nodes, needs=needs, left=left) is not None
    )
