"""Observations of one lease from outside: its processes, its server in the hub, and its newest sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from gpuspawner.core.gpus.fleet import Group
from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.class_holds import HeldGpus


@dataclass(frozen=True)
class Running:
    """A running start attempt of a lease.

    Args:
        lease_id: id of the lease.
        attempt: number of the start attempt.
        pids: its processes, oldest first.
        age_seconds: time since the oldest process started.
        environment: the ``GPUSPAWNER_*`` variables of the oldest process, which rebuild the lease.
        given: (group, number of GPUs) pairs that a counting backend allocated. None if nothing is allocated yet, or if
            the backend allocates exactly the requested GPUs.
        waiting_seconds: how long the backend has found no free resources for it.
        waiting: why it waits.
        ending: it is being ended.
        disruption: a sentence if the backend itself ends it or is about to.
        ends_in_seconds: time until its end, if known.
        unhealthy: its unhealthy GPUs, by the backend's names.
        uuids: its GPUs, if ``given`` only counts them and the backend knows them.
        kept_since: time, in seconds since the epoch, since when no user can change ``environment``. None if its user
            may have written it.
    """

    lease_id: str
    attempt: int
    pids: tuple[int, ...] = ()
    age_seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    given: tuple[tuple[Group, int], ...] | None = None
    waiting_seconds: float = 0.0
    waiting: str = ""
    ending: bool = False
    disruption: str = ""
    ends_in_seconds: float | None = None
    unhealthy: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    kept_since: float | None = None


@dataclass(frozen=True)
class HubServer:
    """One server in the hub's list. ``user_created`` and ``name`` are the part of the key that the hub knows.

    ``last_activity`` is when the hub last noted activity of it, in seconds since the epoch.
    """

    user: str
    user_created: str
    name: str
    started: str
    ready: bool
    pending: str | None
    url: str
    last_activity: float | None = None


def is_of_user(server: HubServer | None, lease: Lease) -> bool:
    """Return whether a server with this lease's name belongs to the lease's user, not to a later user of that name."""
    return server is not None and server.user_created == lease.key.user_created


def is_ready(server: HubServer | None, lease: Lease) -> bool:
    """Return whether a server of this lease's user answers."""
    return server is not None and server.ready and is_of_user(server, lease)


def is_own(server: HubServer | None, lease: Lease) -> bool:
    """Return whether a server is this lease's, not a newer one with its name.

    A lease that was made for a listed server knows that server's start. It is "" for one that never started.
    """
    if server is None or not is_of_user(server, lease):
        return False
    return lease.server_started == server.started or not (lease.server_started or lease.unasked)


class Effect(Enum):
    """The next action that the service takes for a lease. Repeating an effect is harmless."""

    ASK_SERVER = "ask the hub about its server"
    START_SERVER = "start its server"
    RUN_ON_STOP = "run the template's commands before a stop"
    STOP_SERVER = "stop its server"
    END_OLDER = "end the processes of earlier attempts"
    END_ATTEMPT = "end this attempt"
    END_ALL = "end everything that carries its id"
    ASK_EXTENSION = "ask the scheduler for a longer run"


class Outcome(NamedTuple):
    """The result of an effect: a server or None, whether all has ended, or why a start was refused."""

    effect: Effect
    value: Any


class TakenSample(NamedTuple):
    """One sample of one server: its evidence, the policy and the mode that judge it, and when it was taken.

    ``memory_kills`` and ``kernels`` are those of the sample.
    """

    evidence: Evidence
    policy: IdlePolicy
    mode: Mode
    at: float
    server_started: str
    memory_kills: int | None = None
    kernels: tuple[str, ...] | None = None


class Observation(NamedTuple):
    """The state of the world around one lease at one moment.

    Attributes:
        hub_answers: whether the hub answered the last question for all its servers.
        hub_in_doubt: whether the hub failed to answer any question since then.
        server: this lease's server in the hub's last list.
        processes: the processes of the lease, of all attempts, as of ``looked_at``.
        sees_since: when the backend could be observed again after an outage.
        heard_at: time of the last heartbeat, or when the service woke up if that is later.
        missing_since: since when neither hub nor backend shows the lease; None while one of them does.
        is_orphan: whether the hub lacked the lease's server twice, five minutes apart.
        start_sent: whether the start of this grant was sent to the hub.
        on_stop_done: whether the template's commands before a stop have run.
        failed_gpus: the GPUs that the backend reports as unhealthy.
        away_gpus: how many of its GPUs are on nodes that do not answer; None if that is not known.
        holds_known: whether ``held`` was computed for this step.
        held: the class hold that the lease runs into; None for no hold.
        claim_is_over: whether the stronger claim of the lease's notice no longer needs its GPUs; None if the claims
            were not evaluated just now.
        sample: a new sample to judge.
        catalog_changed: whether another catalog came into force.
        outcome: the result of the last effect, passed once.
    """

    hub_answers: bool = False
    hub_in_doubt: bool = False
    server: HubServer | None = None
    processes: tuple[Running, ...] = ()
    looked_at: float = 0.0
    sees_since: float = 0.0
    heard_at: float = 0.0
    missing_since: float | None = None
    is_orphan: bool = False
    start_sent: bool = False
    on_stop_done: bool = False
    failed_gpus: frozenset[str] = frozenset()
    away_gpus: int | None = None
    holds_known: bool = False
    held: HeldGpus | None = None
    claim_is_over: bool | None = None
    sample: TakenSample | None = None
    catalog_changed: bool = False
    outcome: Outcome | None = None

    def answered(self, effect: Effect) -> bool:
        """Return whether the last effect was this one."""
        return self.outcome is not None and self.outcome.effect is effect

    @property
    def asked_server(self) -> HubServer | None:
        """The server as the hub has just described it; None if there is no such server."""
        return self.outcome.value if self.outcome is not None else None
