"""Which GPUs what runs holds: as its lease says or, where the backend only counts, as many as it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuspawner.backends.base import Running
from gpuspawner.core.gpus.fleet import Group, Slot
from gpuspawner.core.gpus.pools import Occupant, seats
from gpuspawner.core.leases.lease import HOLDING, UP, Lease, Phase
from gpuspawner.service.engine.lease_documents import claimed_slots

CORRECTABLE = UP | {Phase.STARTING}


def assign_slots(running: Sequence[Running], leases: Iterable[Lease]) -> list[tuple[Running, tuple[Slot, ...]]]:
    """Return the slots that each attempt uses. What only says what it uses is believed."""
    holding = {lease.id: lease for lease in leases if lease.phase in HOLDING}
    occupants, given = [], set()
    for one in running:
        lease = holding.get(one.lease_id)
        is_own = lease is not None and lease.attempt == one.attempt
        counts = None if one.given is None else dict(one.given)
        slots = lease.slots if lease is not None and is_own and counts is not None else claimed_slots(one)
        occupants.append(Occupant(slots, counts))
        if is_own and counts is not None:
            given.add(one.lease_id)
    reserved = (slot for lease in holding.values() if lease.id not in given for slot in lease.slots)
    return list(zip(running, seats(occupants, reserved), strict=True))


def corrected_leases(
    found: Iterable[tuple[Running, tuple[Slot, ...]]], leases: Iterable[Lease], pools: Mapping[Group, str]
) -> list[Lease]:
    """Return the leases that hold other GPUs than were given, with those that were.

    ``pools`` are the kinds of the fleet's groups: a lease that was given one that its user takes instead is of it.
    """
    known = {lease.id: lease for lease in leases if lease.phase in CORRECTABLE}
    return [
        _given(replace(lease, slots=slots), pools)
        for one, slots in found
        if one.given is not None
        and (lease := known.get(one.lease_id)) is not None
        and lease.attempt == one.attempt
        and set(slots) != set(lease.slots)
    ]


def _given(lease: Lease, pools: Mapping[Group, str]) -> Lease:
    """Return a lease with the kind that its slots are of; where it had another, without a rate: that is another too."""
    kind = next((pools.get(slot.group, "") for slot in lease.slots if slot.group), "")
    if kind == lease.kind or kind not in {lease.request.gpu, *lease.request.substitutes}:
        return lease
    return replace(lease, given="" if kind == lease.request.gpu else kind, rate=None)
