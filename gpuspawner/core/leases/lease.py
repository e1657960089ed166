"""The lease: a granted or queued right to GPUs, and every step it can take.

Phases: ``queued`` (a start in the hub waits for it) ⇄ ``parked`` (no start waits) → ``reserved`` → ``starting`` →
``running`` ⇄ ``reclaiming`` (grace) → ``stopping`` → ``ended`` with one reason. ``transitions`` has the functions from
a lease to a new one. A transition that the phase does not allow raises Conflict, so that no caller can skip a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.idle.policies import Terms
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.request import Next, Request, SizeChange
from gpuspawner.core.rules import EndNotice, LatestEnd, LostInterval, Rate, WaitReason


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
    """The owner of a workspace. ``user_created`` is in the format of ``jupyterhub.utils.isoformat``."""

    hub: str
    user_created: str


DEFAULT_NAME = "default workspace"
"""The name that people read for a workspace on the default server."""
NOBODY = Owner("", "")
"""Owns nothing: every key has a hub."""


@dataclass(frozen=True)
class Key:
    """Identifies a workspace. A key has at most one live lease. Names are reused, ``user_created`` is not."""

    hub: str
    user_created: str
    server: str

    @property
    def owner(self) -> Owner:
        """The owner, independent of the user's present name."""
        return Owner(self.hub, self.user_created)


@dataclass(frozen=True)
class PlannedEnd:
    """The answer of a user who was asked when they will be done with a workspace: a time, or None for not soon."""

    at: float | None


LONGEST_DISPUTE_CHARACTERS = 500
"""The longest text of a dispute or of its answer. Arbitrary: a few sentences. The readings are attached."""


@dataclass(frozen=True)
class Dispute:
    """Times in seconds since the epoch. ``since`` and ``until`` bound the readings that decided.

    ``sentence`` may be empty: the readings are attached anyway. ``answer`` is empty until an administrator answers.
    """

    at: float
    sentence: str
    since: float
    until: float
    answer: str = ""
    answered_by: str = ""
    answered_at: float | None = None


def parse_dispute_text(text: object, *, needed: bool = False) -> str:
    """Return the text of a dispute or of its answer as it is stored: one paragraph of printable characters.

    Raises:
        RequestRefused: it is no text, too long, or empty where it is ``needed``.
    """
    remedy = "Say it in a few sentences."
    limit = f"{'1' if needed else 'none'} to {LONGEST_DISPUTE_CHARACTERS} characters of text"
    if not isinstance(text, str):
        raise RequestRefused("sentence", f"a {type(text).__name__}", limit, remedy)
    kept = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(kept) > LONGEST_DISPUTE_CHARACTERS or (needed and not kept):
        raise RequestRefused("sentence", f"{len(kept)} characters", limit, remedy)
    return kept


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
    billed_until: float | None = None  # the ledger has its lines until then, because a month was closed
    server_started: str = ""
    deadline_at: float | None = None
    extended_seconds: float = 0.0
    keeps_used: int = 0
    kept_until: float | None = None
    planned_end: PlannedEnd | None = None  # None: its user has not said when they will be done
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
    unwatched: bool = False  # granted while no start waited in the hub: its user may be away
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
    told_near_start: bool = False  # its user was told that its start is about ten minutes away
    given: str = ""  # the kind that was given in place of the one asked for
    rate: Rate | None = None
    latest_end: LatestEnd | None = None
    fixed_end: LatestEnd | None = None  # of another rule than a budget's, fixed at the grant; budgets may move
    lost: tuple[LostInterval, ...] = ()
    notice: EndNotice | None = None
    waiting_since: float | None = None  # None: since it was asked
    wait_reason: WaitReason | None = None
    blocked_seconds: float = 0.0  # waited, before the present rule, while it could not have been granted
    terms: Terms | None = None  # of its policy, as it was granted; None: those of the present catalog
    judged: str = ""  # a fingerprint of what judged its last sample
    came_back: bool = False  # others took its GPUs, or its user moved it: it goes before what was asked after it
    made_room_at: float | None = None  # when it last ended for a stronger claim
    reaches_into: LatestEnd | None = None  # the hold for a class that it runs into, and was told of
    maintenance_told_at: float | None = None  # when it was last told of the maintenance that it runs into
    arrival: Arrival | None = None  # it became ready while its user was away, and they have not come yet
    claimed_at: float | None = None  # when its user came to a workspace that became ready while they were away
    unclaimed: bool = False  # its user did not come in time, as readings of nearly all of that time show
    lacks: tuple[str, ...] = ()  # what its image lacks: the monitor, or what its template opens; it told so itself
    granted_until: float | None = None  # an administrator has it run until then, also where it came back meanwhile
    ready_at: float | None = None  # its user wished it for then, and is not to come before
    goes_on: Next | None = None  # of what its user stops to go on with or without a GPU
    title: str = ""  # the name that its user gave it for people; its server keeps its own
    size_change: SizeChange | None = None  # the size that it changes to as soon as that can start
    assigned: tuple[Slot, ...] = ()  # GPUs that are held for its new size, before its workspace stops and after
    follows: str = ""  # the lease that it continues, without a new request of its user
    queue_move: int = 0  # an administrator's order of the queue: the higher goes first
    passed_why: str = ""  # why an administrator moved another request before this one
    memory_kills: int = 0  # processes of its container that were killed because memory ran out, as last read
    memory_killed_at: float | None = None  # when the last of them was seen
    kernels: tuple[str, ...] | None = None  # the names of its running kernels, as last read; None: not known
    with_gpu: Mapping[str, Any] | None = None  # what its user had before they went on without a GPU, as options

    @property
    def name(self) -> str:
        """The name that people read."""
        return self.title or self.key.server or DEFAULT_NAME

    @property
    def kind(self) -> str | None:
        """The kind of GPU that it has, or waits for; None without one."""
        return self.given or self.request.gpu

    @property
    def unbilled_since(self) -> float | None:
        """From when on the ledger has no lines of it; None before it runs."""
        return self.running_at if self.billed_until is None else self.billed_until

    @property
    def unasked(self) -> bool:
        """Whether the server was started without gpuspawner. Then little is known about it."""
        return self.adopted and not self.request.template

    @property
    def disputable(self) -> bool:
        """Whether the user may dispute the end: once, and only if others decided it."""
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
