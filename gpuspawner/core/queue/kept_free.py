"""Why GPUs that are free are not given to who waits: they are kept for a request that goes first, until it has all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.placement.placement import beside_of, place, used_shares
from gpuspawner.core.queue.backfill import BACKFILL, Reservation
from gpuspawner.core.queue.snapshot import Claim, Snapshot


class KeptFree(NamedTuple):
    """GPUs that a request could have, but for one that goes first: ``free`` of the ``first`` that this one asks for.

    What ends before ``until``, in seconds since the epoch, may have them now; None where it is not known when the other
    needs them.
    """

    free: int
    first: int
    until: float | None


def kept_free(claim: Claim, seen: Snapshot, reservations: Iterable[Reservation]) -> KeptFree | None:
    """Return what is kept from a claim that is free; None where it would not get it in any case, or gets it.

    Args:
        claim: who waits, or would.
        seen: of which the reservations were made.
        reservations: of the decision.
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
    """Whether a request that goes first keeps GPUs of a kind that are free."""
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
