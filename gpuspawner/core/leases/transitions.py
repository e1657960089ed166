"""A lease that comes back: its server was found to run after all, or it waits again after its end."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import WAITING, Lease, Phase
from gpuspawner.core.leases.transitions import START_LIMIT, require_phase, run, to_phase


def recover(lease: Lease, server_started: str, attempt: int, slots: tuple[Slot, ...], now: float) -> Lease:
    """The server of a start that was dropped, or of a lease that ended for it, runs after all: → running, as asked.

    ``attempt`` and ``slots`` are those of what runs. Its lifetime counts from here: nobody saw when it came up.
    """
    require_phase(lease, WAITING | {Phase.RESERVED, Phase.ENDED}, "running")
    alive = replace(lease, reason=None, ended_by="", ended_at=None, message="", hub_gone=False, seen_by_user=False)
    up = replace(alive, attempt=attempt, slots=slots, adopted=True, granted_at=now, not_before=0.0, unattended=False)
    up = replace(up, latest_end=None, fixed_end=None)  # those of a grant that lapsed
    return run(to_phase(up, Phase.STARTING, now), server_started, now)


def ended_by_dropped_starts(lease: Lease) -> bool:
    """Whether it ended because its starts were dropped: nobody saw a server of it, which may have come up unseen."""
    return lease.phase is Phase.ENDED and lease.ended_by == "gpuspawner" and lease.failed_starts == START_LIMIT - 1


def stops_to_start_again(lease: Lease) -> bool:
    """Whether it stops because its user has it start again: moved, or changed."""
    if lease.phase is not Phase.STOPPING or lease.reason is None:
        return False
    return EXIT_KINDS[lease.reason].returns is QueueReturn.ALWAYS


def end_for_good(lease: Lease, how: Exit) -> Lease:
    """Let what stops to start again end ``how``, and start no more: it was stopped meanwhile."""
    if not stops_to_start_again(lease):
        return lease
    return replace(lease, reason=how.reason, ended_by=how.by, message=how.message, goes_on=None)


def stopped_in_hub(lease: Lease, outcome: str) -> Lease:
    """Return a lease whose server ended by ``outcome``: a stop in the hub, before ours was sent, was somebody's."""
    by_hub = outcome == "stopped" and lease.stop_sent_at is None
    return end_for_good(lease, exits.stopped_from_hub("")) if by_hub else lease


def with_next_request(lease: Lease) -> Lease:
    """Return a lease as its user asked for what goes on in its place."""
    after = lease.goes_on
    return replace(lease, request=after.request, options=after.options, with_gpu=after.with_gpu) if after else lease


def is_by_share(lease: Lease) -> bool:
    """Return whether a lease makes, or made, room because its user has more than their share.

    It comes back by its share, not before later requests: it would be granted what those within theirs wait for, and
    would have to make room for them again.
    """
    if lease.reason is None:
        return lease.notice is not None and bool(lease.notice.preemption) and lease.notice.by == exits.GPUSPAWNER
    return lease.reason is ExitReason.MADE_ROOM and lease.ended_by == exits.GPUSPAWNER


def successor(lease: Lease, name: str, now: float) -> Lease:
    """Return a new lease of what others ended, or its user moved, parked at the time at which the old one was asked.

    It goes before what was asked after it, within its priority; but one that is over its share by its share. What its
    user goes on with is asked anew, and stands behind all others.
    """
    asked, changed = with_next_request(lease), lease.goes_on is not None
    return Lease(
        id=name,
        follows=lease.id,
        key=lease.key,
        user=lease.user,
        request=asked.request,
        options=asked.options,
        with_gpu=asked.with_gpu,
        asked_at=now if changed else lease.asked_at,
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
