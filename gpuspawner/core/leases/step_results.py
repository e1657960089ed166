"""The rules that a step of a lease takes, and the result that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from gpuspawner.core import events
from gpuspawner.core.events import Event
from gpuspawner.core.idle.policies import IdlePolicy, LifecyclePolicy
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import GPUSPAWNER, Exit, ExitReason
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.leases.observations import Effect
from gpuspawner.core.rules import LatestEnd

EVIDENCE_SECONDS = 3 * 3600.0
"""Readings of at least this long before a stop are kept with it: an idle time, a grace, and the time before them."""


class Note(NamedTuple):
    """One line of the audit: the event, the actor, and from where the actor acted, in words."""

    event: Event
    actor: str = GPUSPAWNER
    where: str = ""


@dataclass(frozen=True)
class Step:
    """The next state of a lease, and everything that is written or done with it.

    Attributes:
        lease: the lease from now on.
        notes: the events that the audit records with it.
        effect: the action that the service takes once the lease is stored; None for no action.
        successor: a lease that waits in its place, created in the same write.
        evidence_since: from when its readings are kept as long as its audit; None for no readings.
        retold: events that are sent once more. They were recorded before.
        wake_at: no step is needed before this time, unless something new is observed.
    """

    lease: Lease
    notes: tuple[Note, ...] = ()
    effect: Effect | None = None
    successor: Lease | None = None
    evidence_since: float | None = None
    retold: tuple[Note, ...] = ()
    wake_at: float = inf

    def then(self, following: Step) -> Step:
        """Return both as one step. ``following`` must have begun with this step's lease."""
        return replace(
            following,
            notes=self.notes + following.notes,
            effect=following.effect or self.effect,
            evidence_since=self.evidence_since if following.evidence_since is None else following.evidence_since,
        )


class Timing(NamedTuple):
    """The times that steps use, in seconds. ``service.settings.Settings`` explains each of them."""

    listen_seconds: float
    reserved_seconds: float
    heartbeat_seconds: float
    no_room_seconds: float
    no_room_wait_seconds: float
    settle_seconds: float
    stop_retry_seconds: float
    back_off_seconds: tuple[float, ...]


class Recovery(NamedTuple):
    """A lease whose server was found to run, with the GPUs, the kind and the rate of that server, and its attempt."""

    lease: Lease
    attempt: int


class Extension(NamedTuple):
    """A longer run that an administrator granted before the workspace came back.

    ``deadline_at`` is the deadline that it moves to ``end``; ``bound`` limits the new one.
    """

    deadline_at: float
    end: float
    bound: LatestEnd | None


class LeaseRules(NamedTuple):
    """The rules of the catalog and of administrators for one lease now. Expensive answers are callables.

    Attributes:
        lifecycle: its lifecycle policy, by the present hours and with the terms of its grant.
        idle: the policy that judges its idleness; None if nothing does.
        exempt_until: until when an administrator exempts it from idleness; None for no exemption.
        pod_waits_seconds: how long its pod may wait in the queue of a scheduler that owns that queue; 0 for no queue.
        node_seconds: how long a node may take that is started for it; 0 if no node is started.
        queue_title: the name of the scheduler that owns its queue.
        node: returns the node of its GPUs.
        returns_to_queue: returns whether it waits again once it has ended.
        budget_used_up: returns which budget ends it, in a sentence.
        running: returns the lease, whose server answers now, with the bound that budgets set on its end.
        recovered: returns the lease of a server that runs although its start was given up.
        extension: returns the run that an administrator granted before it came back; None if budgets leave no more.
    """

    timing: Timing
    lifecycle: LifecyclePolicy
    idle: IdlePolicy | None
    exempt_until: float | None
    pod_waits_seconds: float
    node_seconds: float
    queue_title: str
    node: Callable[[], str]
    returns_to_queue: Callable[[], bool]
    budget_used_up: Callable[[], str]
    running: Callable[[], Lease]
    recovered: Callable[[], Recovery]
    extension: Callable[[], Extension | None]


def finish(lease: Lease, how: Exit, now: float, *, gone: bool = False, evidence: bool = False) -> Step:
    """End a lease: it is stopping, or has ended if nothing of it can run. The first reason stands.

    Args:
        lease: a live lease.
        how: the exit: its reason, its actor and the message for the user.
        now: seconds of the service's clock.
        gone: whether the hub has no server of it any more.
        evidence: whether the readings behind the decision are kept as long as the audit.
    """
    stopped = Note(events.Stopped(how.reason.value, how.message), how.by, how.where)
    notes = () if lease.phase is Phase.STOPPING else (stopped,)
    since = now - max(EVIDENCE_SECONDS, 2 * lease.streak.observed_seconds)
    kept_since = since if evidence and how.reason is not ExitReason.STOPPED else None
    return Step(transitions.finish(lease, how, now, gone=gone), notes, evidence_since=kept_since)


def drop_start(lease: Lease, timing: Timing, now: float) -> Step:
    """Move a start that never came up back to its place in the queue. The third one ends the lease."""
    dropped = transitions.drop_start(lease, now, timing.back_off_seconds)
    if dropped.reason is not None:
        return Step(dropped, (Note(events.Stopped(dropped.reason.value, dropped.message)),))
    return Step(dropped, (Note(events.Parked(lease.failed_starts + 1)),))
