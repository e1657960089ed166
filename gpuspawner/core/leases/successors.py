"""Successors: leases that continue others, for example with a new size or after a preemption."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.leases.transitions import require_phase


def begin_size_change(lease: Lease, slots: tuple[Slot, ...], now: float) -> Lease:
    """Return a running lease that holds the GPUs of its new size, to be stopped and to start again with these.

    The new size runs until the present end. Without ``slots``, it waits in the queue once the workspace has ended.
    """
    require_phase(lease, UP, "changed")
    assert lease.size_change is not None, "only a lease with a change of size begins it"
    change, after = lease.size_change, lease.size_change.after
    left_seconds = after.request.lifetime_seconds if lease.deadline_at is None else round(lease.deadline_at - now)
    least_seconds = max(after.request.least_lifetime_seconds, LEAST_RUN_SECONDS)
    request = replace(after.request, lifetime_seconds=max(left_seconds, least_seconds))
    goes_on = replace(after, request=request, slots=slots, asked_at=change.asked_at)
    return replace(lease, goes_on=goes_on, slots=slots_to_hold(lease.slots, slots))


ASSIGNED_SECONDS = 120.0
"""How long GPUs are held for a new size once its workspace has ended. Arbitrary: far longer than a look at the GPUs."""
LEAST_RUN_SECONDS = 600
"""A workspace that changes its size shortly before its end runs at least this long. Arbitrary: the least notice."""


def slots_to_hold(own: tuple[Slot, ...], new: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return a workspace's slots and the additional slots of its new size, which are reserved for it."""
    return (*own, *additional_slots(own, new))


def additional_slots(own: tuple[Slot, ...], new: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return what a new size needs in addition to a workspace's own slots."""
    held = {slot.gpu: slot.share for slot in own}
    more = ((slot, slot.share - held.get(slot.gpu, 0)) for slot in new)
    return tuple(replace(slot, share=share) for slot, share in more if share > 0)


def with_next_request(lease: Lease) -> Lease:
    """Return a lease with the request that continues in its place, if there is one."""
    after = lease.goes_on
    return replace(lease, request=after.request, options=after.options, with_gpu=after.with_gpu) if after else lease


def is_by_share(lease: Lease) -> bool:
    """Return whether a lease was preempted, or will be, because its user is above the fair share.

    Its successor does not go before later requests. It would get the GPUs that users below their share wait for, and
    would be preempted again.
    """
    if lease.reason is None:
        return lease.notice is not None and bool(lease.notice.preemption) and lease.notice.by == exits.GPUSPAWNER
    return lease.reason is ExitReason.MADE_ROOM and lease.ended_by == exits.GPUSPAWNER


def successor_id(lease: Lease) -> str:
    """Return the id of the lease that continues another one. Every call returns the same id."""
    return hashlib.sha256(f"{lease.id} again".encode()).hexdigest()[:32]


def successor(lease: Lease, name: str, now: float) -> Lease:
    """Return the lease that waits in the place of a preempted, moved or changed one.

    It keeps the time of its request, so that it goes before later requests of the same priority. If its user is over
    their fair share, that share decides instead. A changed request counts as new and goes behind all others.
    """
    asked, changed, after = with_next_request(lease), lease.goes_on is not None, lease.goes_on
    assigned = () if after is None else after.slots
    return Lease(
        id=name,
        follows=lease.id,
        title=lease.title,
        key=lease.key,
        user=lease.user,
        request=asked.request,
        options=asked.options,
        with_gpu=asked.with_gpu,
        asked_at=lease.asked_at if after is None else now if after.asked_at is None else after.asked_at,
        assigned=assigned,
        not_before=now + ASSIGNED_SECONDS if assigned else 0.0,
        keeps_used=lease.keeps_used if after is not None and after.asked_at is not None else 0,
        phase=Phase.PARKED,
        phase_since=now,
        boot_id=lease.boot_id,
        heard_at=now,
        unattended=True,
        waiting_since=now,
        tried_nodes=lease.tried_nodes if lease.reason is ExitReason.MOVED else (),
        granted_until=None if changed else lease.granted_until,
        came_back=not changed and not is_by_share(lease),
        made_room_at=now if lease.reason is ExitReason.MADE_ROOM else lease.made_room_at,
    )
