"""The lease: a granted or queued right to GPUs, and every step it can take.

Phases: ``queued`` (a waiter in the hub listens) ⇄ ``parked`` (nobody listens) → ``reserved`` → ``starting`` →
``running`` ⇄ ``reclaiming`` (grace) → ``stopping`` → ``ended`` with one reason. Each transition is a function from a
lease to a new one; a transition that the phase does not allow raises Conflict, so that no caller can skip a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from gpuspawner.core.errors import Conflict
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.policies import Terms
from gpuspawner.core.idle.verdicts import Arrival, Streak, kept
from gpuspawner.core.leases import exits, lifetimes
from gpuspawner.core.leases.disputes import Dispute
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason
from gpuspawner.core.leases.request import Next, Request
from gpuspawner.core.rules import Estimate, HeldBack, LatestEnd, Lost, Notice, Rate


class Phase(str, Enum):
    """Where a lease stands."""

    QUEUED = "queued"
    PARKED = "parked"
    RESERVED = "reserved"
    STARTING = "starting"
    RUNNING = "running"
    RECLAIMING = "reclaiming"
    STOPPING = "stopping"
    ENDED = "ended"


WAITING = frozenset({Phase.QUEUED, Phase.PARKED})
JOINABLE = WAITING | {Phase.RESERVED, Phase.STARTING}
UP = frozenset({Phase.RUNNING, Phase.RECLAIMING})
HOLDING = frozenset({Phase.RESERVED, Phase.STARTING, Phase.STOPPING}) | UP


class Owner(NamedTuple):
    """Whose a workspace is. ``user_created`` is as the hub's REST API writes it (``jupyterhub.utils.isoformat``)."""

    hub: str
    user_created: str


NOBODY = Owner("", "")
"""Owns nothing: every key has a hub."""


@dataclass(frozen=True)
class Key:
    """Which workspace: at most one live lease a key. Names and numeric ids are reused; ``user_created`` is not."""

    hub: str
    user_created: str
    server: str

    @property
    def owner(self) -> Owner:
        """Whose it is, whatever the user is called now."""
        return Owner(self.hub, self.user_created)


@dataclass(frozen=True)
class Lease:
    """One lease. Times are seconds of the service's clock (see service.clock); None where it has not happened."""

    id: str
    key: Key
    user: str
    request: Request
    options: Mapping[str, Any]
    asked_at: float
    phase: Phase = Phase.QUEUED
    phase_since: float = 0.0
    attempt: int = 1
    start_id: str = ""
    boot_id: str = ""
    heard_at: float = 0.0
    slots: tuple[Slot, ...] = ()
    granted_at: float | None = None
    first_granted_at: float | None = None
    running_at: float | None = None
    server_started: str = ""
    deadline_at: float | None = None
    extended_seconds: float = 0.0
    keeps_used: int = 0
    kept_until: float | None = None
    warned_seconds: tuple[float, ...] = ()
    streak: Streak = field(default_factory=Streak)
    sampled_at: float | None = None
    failed_starts: int = 0
    not_before: float = 0.0
    adopted: bool = False
    reason: ExitReason | None = None
    ended_by: str = ""
    message: str = ""
    unattended: bool = False
    unwatched: bool = False  # its turn came while nobody listened: the service had it started, nobody may be looking
    hub_gone: bool = False
    stop_sent_at: float | None = None
    ended_at: float | None = None
    token_hash: str = ""
    seen_by_user: bool = False
    disruption: str = ""
    disrupted_until: float | None = None
    unhealthy: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()  # of its GPUs, where its slots only count them
    tried_nodes: tuple[str, ...] = ()
    dispute: Dispute | None = None
    impossible: str = ""  # why a waiting request could not start as things are, however much were free
    impossible_since: float | None = None
    given: str = ""  # the kind that was given in place of the one asked for
    rate: Rate | None = None
    latest_end: LatestEnd | None = None
    fixed_end: LatestEnd | None = None  # of another rule than a budget's, fixed at the grant; budgets may move
    lost: tuple[Lost, ...] = ()
    notice: Notice | None = None
    waiting_since: float | None = None  # None: since it was asked
    held_back: HeldBack | None = None
    held_back_seconds: float = 0.0  # waited, before the present rule, while it could not have been granted
    estimate: Estimate | None = None
    terms: Terms | None = None  # of its policy, as it was granted; None: those of the present catalog
    judged: str = ""  # a fingerprint of what judged its last sample
    came_back: bool = False  # others took its GPUs, or its user moved it: it goes before what was asked after it
    made_room_at: float | None = None  # when it last made room for a stronger claim
    reaches_into: LatestEnd | None = None  # the hold for a class that it runs into, and was told of
    arrival: Arrival | None = None  # it came while its user was away, and nobody has come to it so far
    claimed_at: float | None = None  # when somebody came to one that had come so
    unclaimed: bool = False  # nobody came to one within its time to come in, as is known of nearly all of that
    lacks: tuple[str, ...] = ()  # what its image lacks: the monitor, or what its template opens; it told so itself
    granted_until: float | None = None  # an administrator has it run until then, also where it came back meanwhile
    ready_at: float | None = None  # its user wished it for then, and is not to come before
    goes_on: Next | None = None  # of what its user stops to go on with or without a GPU
    follows: str = ""  # the lease that it goes on from: its user did not ask for it anew
    memory_kills: int = 0  # processes of its container that were killed for want of memory, as last read
    memory_killed_at: float | None = None  # when the last of them was seen
    with_gpu: Mapping[str, Any] | None = None  # what its user had before they went on without a GPU, as options

    @property
    def kind(self) -> str | None:
        """The kind of GPU that it has, or waits for; None without one."""
        return self.given or self.request.gpu

    @property
    def unasked(self) -> bool:
        """Whether its server was started without gpuspawner: nobody asked for it here, and little is known of it."""
        return self.adopted and not self.request.template

    @property
    def disputable(self) -> bool:
        """Whether its user may call its end wrong: once, and only an end that others decided."""
        return (
            self.phase is Phase.ENDED
            and self.reason is not None
            and EXIT_KINDS[self.reason].by_others
            and self.dispute is None
        )

    @property
    def live(self) -> bool:
        """Whether the lease has not ended."""
        return self.phase is not Phase.ENDED


def require_phase(lease: Lease, allowed: frozenset[Phase] | set[Phase], what: str) -> None:
    """Raise Conflict unless a lease is in one of these phases; ``what`` it cannot be, in words."""
    if lease.phase not in allowed:
        raise Conflict(f"This workspace is {lease.phase.value}: it cannot be {what} now.")


def to_phase(lease: Lease, phase: Phase, now: float, **changes: Any) -> Lease:
    """Return a lease in a phase from now on."""
    return replace(lease, phase=phase, phase_since=now, **changes)


def join(
    lease: Lease, request: Request, options: Mapping[str, Any], *, start_id: str, boot_id: str, now: float
) -> Lease:
    """Return the live lease for a new ``start()`` of the same key.

    The same ``start_id`` is a repeated message and changes nothing but when it was heard. Otherwise a new attempt
    begins: the same request keeps the phase's GPUs and the place; a changed one gives the GPUs back, and keeps its
    place only if it asks for the same kind and no more of it.

    Raises:
        Conflict: the lease is past the point where it could be joined; the new attempt must wait for its end.
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
        attempt=lease.attempt + 1,
        start_id=start_id,
        boot_id=boot_id,
        heard_at=now,
        unattended=False,
        lacks=(),
        unwatched=lease.phase not in WAITING and (lease.unattended or lease.unwatched),
        not_before=0.0 if lease.failed_starts else lease.not_before,  # pressing Start again makes no room
    )
    if same and lease.phase not in WAITING:
        return to_phase(joined, Phase.RESERVED, now)
    if asked_at == lease.asked_at and lease.phase in WAITING:
        return to_phase(joined, Phase.QUEUED, now)
    return _back(joined, Phase.QUEUED, now)


def _back(lease: Lease, phase: Phase, now: float, **changes: Any) -> Lease:
    """Let a lease wait, from now on: it holds nothing, and nothing of an earlier grant bounds it."""
    return to_phase(
        lease,
        phase,
        now,
        slots=(),
        granted_at=None,
        given="",
        latest_end=None,
        waiting_since=now,
        held_back=None,
        held_back_seconds=0.0,
        estimate=None,
        **changes,
    )


def grant(
    lease: Lease, slots: tuple[Slot, ...], now: float, *, given: str = "", latest_end: LatestEnd | None = None
) -> Lease:
    """Queued or parked → reserved, holding ``slots``: of the kind ``given`` where it is not the one asked for."""
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
        held_back=None,
    )


def acknowledge(lease: Lease, token_hash: str, now: float) -> Lease:
    """Reserved → starting: the waiter has the grant, and will create the server."""
    require_phase(lease, {Phase.RESERVED, Phase.STARTING}, "started")
    phase_since = now if lease.phase is Phase.RESERVED else lease.phase_since
    return replace(lease, phase=Phase.STARTING, phase_since=phase_since, heard_at=now, token_hash=token_hash)


def note_heard(lease: Lease, now: float) -> Lease:
    """The waiter or the starting spawner is there. A parked lease that is heard again is queued."""
    phase = Phase.QUEUED if lease.phase is Phase.PARKED else lease.phase
    return replace(lease, phase=phase, heard_at=now, unattended=False)


def park(lease: Lease, now: float) -> Lease:
    """Nobody listens any more: queued or reserved → parked, at the same place; a reserved GPU goes back."""
    require_phase(lease, {Phase.QUEUED, Phase.PARKED, Phase.RESERVED}, "parked")
    waiting = lapse(lease, now) if lease.phase is Phase.RESERVED else lease
    return to_phase(waiting, Phase.PARKED, now, unattended=True)


def lapse(lease: Lease, now: float) -> Lease:
    """Reserved → queued or parked, at the same place: its grant was taken back before a start took it."""
    require_phase(lease, {Phase.RESERVED}, "made to wait again")
    phase = Phase.PARKED if lease.unattended else Phase.QUEUED
    return _back(lease, phase, now, not_before=now)


MOST_TRIED = 100
"""Nodes remembered where a start found no room. Arbitrary: as many tries take an hour and more."""
BACK_OFF_SECONDS = (60.0, 120.0)
"""How long a lease whose start was dropped lets others pass: after the first, and after the second."""
START_LIMIT = 3
"""So many dropped starts end the lease: the last is followed by no wait."""


def drop_start(lease: Lease, now: float, back_off_seconds: tuple[float, ...] = BACK_OFF_SECONDS) -> Lease:
    """A reservation lapsed or the hub dropped the start: park at ``asked_at``, backing off; the third one ends it.

    The attempt of a dropped start is over: whatever it still says is old, and whatever it still creates is left over.
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
    """Starting → parked at ``asked_at``: what it was granted, on ``node``, could not be had. ``message`` says why.

    Others pass for ``wait_seconds``. It is nobody's failure: the attempt is over, and the start may go on with another,
    on another node where there is one.
    Whatever was dropped before counts no more: its hub has started it.
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

    The lifetime counts from here; that of a lease rebuilt from what runs from its grant, which is all that is known.
    It ends at its latest end, if that is earlier.
    """
    require_phase(lease, {Phase.STARTING}, "running")
    since = lease.granted_at if lease.adopted and lease.granted_at is not None else now
    ends_at = lifetimes.deadline(since, lease.request.lifetime_seconds)
    ends_at = ends_at if lease.latest_end is None else min(ends_at, lease.latest_end.at)
    # Of one that is rebuilt from what runs it is not known who came meanwhile.
    awaited = lease.unwatched and bool(lease.slots) and not lease.adopted
    arrival = Arrival((lease.terms or Terms()).claim_seconds) if awaited else None
    started = replace(lease, running_at=now, server_started=server_started, failed_starts=0, unwatched=False)
    return to_phase(started, Phase.RUNNING, now, deadline_at=ends_at, arrival=arrival, claimed_at=None, unclaimed=False)


def disrupt(lease: Lease, why: str, until: float | None) -> Lease:
    """The backend is about to end it, ``until`` when at the latest; an empty ``why`` takes that back."""
    require_phase(lease, UP | {Phase.STARTING}, "ended by its place")
    return replace(lease, disruption=why, disrupted_until=until)


def begin_grace(lease: Lease, now: float) -> Lease:
    """Running → reclaiming: the grace period begins."""
    require_phase(lease, {Phase.RUNNING}, "warned")
    return to_phase(lease, Phase.RECLAIMING, now)


def end_grace(lease: Lease, now: float) -> Lease:
    """Reclaiming → running: it is used again, or its user keeps it."""
    require_phase(lease, {Phase.RECLAIMING}, "returned to running")
    return to_phase(lease, Phase.RUNNING, now)


def keep(lease: Lease, until: float, now: float) -> Lease:
    """The user keeps it: no idle time counts before ``until``; a grace period ends."""
    require_phase(lease, UP, "kept")
    claimed_at = lease.claimed_at if lease.arrival is None else now
    kept_lease = replace(lease, keeps_used=lease.keeps_used + 1, kept_until=until, streak=kept(lease.streak))
    return to_phase(kept_lease, Phase.RUNNING, now, arrival=None, claimed_at=claimed_at)


def stop(lease: Lease, reason: ExitReason, by: str, message: str, now: float) -> Lease:
    """Any live phase → stopping. The first reason stands: a stop of what is stopping already changes nothing."""
    if lease.phase is Phase.STOPPING:
        return lease
    require_phase(lease, frozenset(Phase) - {Phase.ENDED}, "stopped")
    return to_phase(lease, Phase.STOPPING, now, reason=reason, ended_by=by, message=message)


def end(lease: Lease, now: float) -> Lease:
    """Stopping → ended: backend and hub both say gone. The GPUs are free from here."""
    require_phase(lease, {Phase.STOPPING}, "ended")
    return to_phase(lease, Phase.ENDED, now, ended_at=now, token_hash="")


def finish(lease: Lease, how: Exit, now: float, *, gone: bool = False) -> Lease:
    """Any live phase → stopping, or ended where nothing of it can run. Every end goes through here.

    ``gone``: the hub has no server of it any more. The first end stands: another changes nothing but that.
    """
    stopping = stop(lease, how.reason, how.by, how.message, now)
    if lease.phase in WAITING or (gone and lease.phase is Phase.RESERVED):
        return end(replace(stopping, unattended=lease.unattended or how.unseen), now)
    return replace(stopping, hub_gone=lease.hub_gone or gone)
