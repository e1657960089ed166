"""Transitions: functions from a lease to the lease after one change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuspawner.core.errors import Conflict
from gpuspawner.core.events import KilledForMemory
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.idle.policies import Terms
from gpuspawner.core.idle.verdicts import reset_idle_time
from gpuspawner.core.leases import exits, lifetimes
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import JOINABLE, UP, WAITING, Dispute, Lease, Phase, PlannedEnd
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import LatestEnd, WaitReason


def require_phase(lease: Lease, allowed: frozenset[Phase] | set[Phase], what: str) -> None:
    """Raise Conflict unless a lease is in one of these phases. ``what`` completes "it cannot be"."""
    if lease.phase not in allowed:
        raise Conflict(f"This workspace is {lease.phase.value}: it cannot be {what} now.")


def to_phase(lease: Lease, phase: Phase, now: float, **changes: Any) -> Lease:
    """Return a lease in a phase from now on."""
    return replace(lease, phase=phase, phase_since=now, **changes)


def join(
    lease: Lease, request: Request, options: Mapping[str, Any], *, start_id: str, boot_id: str, now: float
) -> Lease:
    """Return the live lease for a new ``start()`` of the same key.

    The same ``start_id`` is a repeated message, and counts as a heartbeat. Otherwise a new attempt begins. The same
    request keeps its GPUs and its place. A changed request releases the GPUs. It keeps its place only if it asks for
    the same kind and no more GPUs.

    Raises:
        Conflict: the lease runs or ends already. The new attempt must wait for its end.
    """
    require_phase(lease, JOINABLE, "joined by a new start")
    if lease.start_id == start_id:
        return note_heard(lease, now)
    same = lease.request.digest == request.digest
    asked_at = lease.asked_at if same or request.keeps_place_of(lease.request) else now
    joined = replace(
        lease,
        user=request.user,
        request=request,
        options=options,
        asked_at=asked_at,
        first_granted_at=lease.first_granted_at if asked_at == lease.asked_at else None,
        queue_move=lease.queue_move if asked_at == lease.asked_at else 0,
        passed_why=lease.passed_why if asked_at == lease.asked_at else "",
        attempt=lease.attempt + 1,
        start_id=start_id,
        boot_id=boot_id,
        heard_at=now,
        unattended=False,
        lacks=(),
        assigned=lease.assigned if same else (),
        unwatched=lease.phase not in WAITING and (lease.unattended or lease.unwatched),
        not_before=0.0 if lease.failed_starts else lease.not_before,  # pressing Start again makes no room
    )
    if same and lease.phase not in WAITING:
        return to_phase(joined, Phase.RESERVED, now)
    if asked_at == lease.asked_at and lease.phase in WAITING:
        return to_phase(joined, Phase.QUEUED, now)
    return _back(joined, Phase.QUEUED, now)


def _back(lease: Lease, phase: Phase, now: float, **changes: Any) -> Lease:
    """Return a lease that waits from now on. It has no GPUs and no bounds of an earlier grant."""
    return to_phase(
        lease,
        phase,
        now,
        slots=(),
        granted_at=None,
        given="",
        latest_end=None,
        waiting_since=now,
        wait_reason=None,
        blocked_seconds=0.0,
        **changes,
    )


def grant(
    lease: Lease, slots: tuple[Slot, ...], now: float, *, given: str = "", latest_end: LatestEnd | None = None
) -> Lease:
    """Queued or parked → reserved, with ``slots``. ``given`` is their kind if it is not the requested one."""
    require_phase(lease, WAITING, "granted")
    return to_phase(
        lease,
        Phase.RESERVED,
        now,
        slots=slots,
        granted_at=now,
        first_granted_at=now if lease.first_granted_at is None else lease.first_granted_at,
        given=given,
        latest_end=latest_end,
        wait_reason=None,
        assigned=(),
    )


def acknowledge(lease: Lease, token_hash: str, now: float) -> Lease:
    """Reserved → starting: the spawner has the grant and creates the server."""
    require_phase(lease, {Phase.RESERVED, Phase.STARTING}, "started")
    phase_since = now if lease.phase is Phase.RESERVED else lease.phase_since
    return replace(lease, phase=Phase.STARTING, phase_since=phase_since, heard_at=now, token_hash=token_hash)


def note_heard(lease: Lease, now: float) -> Lease:
    """Record a heartbeat of the waiting or starting spawner. A parked lease is queued again."""
    phase = Phase.QUEUED if lease.phase is Phase.PARKED else lease.phase
    return replace(lease, phase=phase, heard_at=now, unattended=False)


def park(lease: Lease, now: float) -> Lease:
    """Queued or reserved → parked at the same place, because no start waits. Reserved GPUs are released."""
    require_phase(lease, {Phase.QUEUED, Phase.PARKED, Phase.RESERVED}, "parked")
    waiting = lapse(lease, now) if lease.phase is Phase.RESERVED else lease
    return to_phase(waiting, Phase.PARKED, now, unattended=True)


def lapse(lease: Lease, now: float) -> Lease:
    """Reserved → queued or parked at the same place, because the grant was withdrawn before a start used it."""
    require_phase(lease, {Phase.RESERVED}, "made to wait again")
    phase = Phase.PARKED if lease.unattended else Phase.QUEUED
    return _back(lease, phase, now, not_before=now)


MOST_TRIED = 100
"""The most nodes without room that are remembered. Arbitrary: this many tries take an hour and more."""
BACK_OFF_SECONDS = (60.0, 120.0)
"""How long other requests go first after the first and the second dropped start."""
START_LIMIT = 3
"""The number of dropped starts that ends a lease. No wait follows the last one."""


def drop_start(lease: Lease, now: float, back_off_seconds: tuple[float, ...] = BACK_OFF_SECONDS) -> Lease:
    """Reserved or starting → parked at the same place, because the start was dropped. The third drop ends the lease.

    Other requests go first for a while. The attempt of a dropped start is over, and its later reports do not count.
    """
    require_phase(lease, {Phase.RESERVED, Phase.STARTING}, "taken back")
    failed = lease.failed_starts + 1
    if failed >= START_LIMIT:
        last = exits.not_started(failed)
        return end(stop(lease, last.reason, last.by, last.message, now), now)
    wait = back_off_seconds[min(failed, len(back_off_seconds)) - 1]
    return _back(
        lease,
        Phase.PARKED,
        now,
        unattended=True,
        attempt=lease.attempt + (lease.phase is Phase.STARTING),
        failed_starts=failed,
        not_before=now + wait,
        token_hash="",
    )


def requeue(lease: Lease, message: str, wait_seconds: float, now: float, node: str = "") -> Lease:
    """Starting → parked at the same place: the granted GPUs were not available on ``node``. ``message`` says why.

    Other requests go first for ``wait_seconds``. This is no failure: the next attempt may go to another node. Starts
    that were dropped before no longer count, because the hub has started this one.
    """
    require_phase(lease, {Phase.STARTING}, "moved back to the queue")
    return _back(
        lease,
        Phase.PARKED,
        now,
        unattended=True,
        attempt=lease.attempt + 1,
        failed_starts=0,
        not_before=now + wait_seconds,
        tried_nodes=(*(x for x in lease.tried_nodes if x != node), node)[-MOST_TRIED:] if node else lease.tried_nodes,
        message=message,
        token_hash="",
    )


def run(lease: Lease, server_started: str, now: float) -> Lease:
    """Starting → running, on the observation of the server with this lease's id and attempt.

    The lifetime counts from now, or from the grant for a rebuilt lease. The latest end bounds the deadline.
    """
    require_phase(lease, {Phase.STARTING}, "running")
    since = lease.granted_at if lease.adopted and lease.granted_at is not None else now
    ends_at = lifetimes.deadline(since, lease.request.lifetime_seconds)
    ends_at = ends_at if lease.latest_end is None else min(ends_at, lease.latest_end.at)
    # If the lease was rebuilt, its user may have come meanwhile.
    awaited = lease.unwatched and bool(lease.slots) and not lease.adopted
    arrival = Arrival((lease.terms or Terms()).claim_seconds) if awaited else None
    started = replace(
        lease,
        running_at=now,
        billed_until=None,
        server_started=server_started,
        failed_starts=0,
        unwatched=False,
        kernels=None,
    )
    return to_phase(started, Phase.RUNNING, now, deadline_at=ends_at, arrival=arrival, claimed_at=None, unclaimed=False)


def disrupt(lease: Lease, why: str, until: float | None) -> Lease:
    """Note that the backend will end the workspace by ``until``. An empty ``why`` withdraws that."""
    require_phase(lease, UP | {Phase.STARTING}, "ended by its place")
    return replace(lease, disruption=why, disrupted_until=until)


def begin_grace(lease: Lease, now: float) -> Lease:
    """Running → reclaiming: the grace period begins."""
    require_phase(lease, {Phase.RUNNING}, "warned")
    return to_phase(lease, Phase.RECLAIMING, now)


def end_grace(lease: Lease, now: float) -> Lease:
    """Reclaiming → running: the workspace is used again, or its user keeps it."""
    require_phase(lease, {Phase.RECLAIMING}, "returned to running")
    return to_phase(lease, Phase.RUNNING, now)


def keep(lease: Lease, until: float, now: float) -> Lease:
    """Keep the workspace running. No idle time counts before ``until``, and a grace period ends."""
    require_phase(lease, UP, "kept")
    claimed_at = lease.claimed_at if lease.arrival is None else now
    kept_lease = replace(lease, keeps_used=lease.keeps_used + 1, kept_until=until, streak=reset_idle_time(lease.streak))
    return to_phase(kept_lease, Phase.RUNNING, now, arrival=None, claimed_at=claimed_at)


def plan_end(lease: Lease, seconds: float | None, now: float) -> Lease:
    """Return a lease with the time in which its user will be done, None for not soon. Nothing ends then."""
    require_phase(lease, UP, "planned")
    return replace(lease, planned_end=PlannedEnd(None if seconds is None else now + seconds))


def stop(lease: Lease, reason: ExitReason, by: str, message: str, now: float) -> Lease:
    """Any live phase → stopping. The first reason stays: another stop changes nothing."""
    if lease.phase is Phase.STOPPING:
        return lease
    require_phase(lease, frozenset(Phase) - {Phase.ENDED}, "stopped")
    return to_phase(lease, Phase.STOPPING, now, reason=reason, ended_by=by, message=message)


def end(lease: Lease, now: float) -> Lease:
    """Stopping → ended: neither backend nor hub has it any more. Its GPUs are free."""
    require_phase(lease, {Phase.STOPPING}, "ended")
    # Without the slots that are reserved for its successor.
    own = lease.slots if lease.goes_on is None else lease.slots[: lease.request.count]
    return to_phase(lease, Phase.ENDED, now, ended_at=now, token_hash="", slots=own)


def finish(lease: Lease, how: Exit, now: float, *, gone: bool = False) -> Lease:
    """Any live phase → stopping, or ended if nothing of the workspace can run. Every end uses this transition.

    ``gone`` says that the hub no longer has its server. A second end changes only this: the first reason stands.
    """
    stopping = replace(stop(lease, how.reason, how.by, how.message, now), size_change=None, assigned=())
    if lease.phase in WAITING or (gone and lease.phase is Phase.RESERVED):
        return end(replace(stopping, unattended=lease.unattended or how.unseen), now)
    return replace(stopping, hub_gone=lease.hub_gone or gone)


def recover(lease: Lease, server_started: str, attempt: int, slots: tuple[Slot, ...], now: float) -> Lease:
    """Return a running lease whose start was dropped, or that ended for that, although its server runs.

    ``attempt`` and ``slots`` are those of the running server. The lifetime counts from now, because its start was not
    seen.
    """
    require_phase(lease, WAITING | {Phase.RESERVED, Phase.ENDED}, "running")
    alive = replace(lease, reason=None, ended_by="", ended_at=None, message="", hub_gone=False, seen_by_user=False)
    up = replace(alive, attempt=attempt, slots=slots, adopted=True, granted_at=now, not_before=0.0, unattended=False)
    up = replace(up, latest_end=None, fixed_end=None)  # those of a grant that lapsed
    return run(to_phase(up, Phase.STARTING, now), server_started, now)


def ended_by_dropped_starts(lease: Lease) -> bool:
    """Return whether a lease ended because its starts were dropped. Its server may have come up unseen."""
    return lease.phase is Phase.ENDED and lease.ended_by == "gpuspawner" and lease.failed_starts == START_LIMIT - 1


def stops_to_start_again(lease: Lease) -> bool:
    """Return whether a workspace stops only to start again, because its user moved or changed it."""
    if lease.phase is not Phase.STOPPING or lease.reason is None:
        return False
    return EXIT_KINDS[lease.reason].returns is QueueReturn.ALWAYS


def end_for_good(lease: Lease, how: Exit) -> Lease:
    """Return a lease that does not start again after all, because its user stopped it meanwhile."""
    if not stops_to_start_again(lease):
        return lease
    own = lease.slots[: lease.request.count]
    return replace(lease, reason=how.reason, ended_by=how.by, message=how.message, goes_on=None, slots=own)


def stopped_in_hub(lease: Lease, outcome: str) -> Lease:
    """Return a lease whose server ended by ``outcome``. A stop before the service sent its own was a person's."""
    by_hub = outcome == "stopped" and lease.stop_sent_at is None
    return end_for_good(lease, exits.stopped_from_hub("")) if by_hub else lease


def set_wait_reason(lease: Lease, rule: str, words: str, now: float) -> Lease:
    """Note that a rule holds a waiting request back. ``words`` is the sentence for its user."""
    if lease.phase not in WAITING:
        raise Conflict(f"This workspace is {lease.phase.value}: no rule holds it back.")
    return replace(clear_wait_reason(lease, now), wait_reason=WaitReason(rule, words, now))


def clear_wait_reason(lease: Lease, now: float) -> Lease:
    """Note that no rule holds a request back any more."""
    if lease.wait_reason is None:
        return lease
    held_seconds = lease.blocked_seconds + max(0.0, now - lease.wait_reason.since)
    return replace(lease, wait_reason=None, blocked_seconds=held_seconds)


def dispute(lease: Lease, sentence: str, since: float, now: float) -> Lease:
    """Record that the user disputes an end. This is possible once for each end.

    Raises:
        Conflict: it has not ended, its end was disputed before, or its user or its own failure ended it.
    """
    if lease.dispute is not None:
        raise Conflict("You have said so already. The administrator sees it; the answer comes on this page.")
    if not lease.disputable:
        what = "has not ended" if lease.live else f"ended as {lease.reason.value if lease.reason else 'unknown'}"
        raise Conflict(
            f"This workspace {what}: only an end that gpuspawner or the cluster decided can be called wrong."
        )
    return replace(lease, dispute=Dispute(now, sentence, since, lease.ended_at if lease.ended_at is not None else now))


def answer(lease: Lease, text: str, by: str, now: float) -> Lease:
    """Record an administrator's answer to a dispute. Its user has not read it yet.

    Raises:
        Conflict: the end was not disputed, or the dispute was answered before.
    """
    if lease.dispute is None:
        raise Conflict("Its user has not called this end wrong: there is nothing to answer.")
    if lease.dispute.answered_at is not None:
        raise Conflict(f"{lease.dispute.answered_by} has answered it already.")
    return replace(
        lease, seen_by_user=False, dispute=replace(lease.dispute, answer=text, answered_by=by, answered_at=now)
    )


KILL_SHOWN_SECONDS = 3600.0
"""How long the page of a workspace shows a memory kill, and the least time between two messages. Arbitrary."""


def count_kills(lease: Lease, count: int | None, now: float) -> tuple[Lease, KilledForMemory | None]:
    """Return the lease with its new memory kills, and an event if its user gets a message.

    Args:
        lease: one that runs.
        count: how many processes of its container were killed so far; None if that is not known. A count that fell
            belongs to a restarted container.
        now: seconds since the epoch.
    """
    if count is None or count == lease.memory_kills:
        return lease, None
    new = count - lease.memory_kills if count > lease.memory_kills else count
    counted = replace(lease, memory_kills=count)
    if not new:
        return counted, None
    event = None if has_recent_memory_kill(lease, now) else KilledForMemory(new, lease.request.memory_bytes)
    return replace(counted, memory_killed_at=now), event


def has_recent_memory_kill(lease: Lease, now: float) -> bool:
    """Return whether the page of a workspace shows that a program was killed."""
    return lease.memory_killed_at is not None and now - lease.memory_killed_at < KILL_SHOWN_SECONDS
