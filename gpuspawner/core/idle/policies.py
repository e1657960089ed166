"""Lifecycle policies of the catalog, and which one applies at this hour. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Opening, Window, find_opening
from gpuspawner.core.fields import Internal, Stored, choice_reader, list_reader, section, whole_number_reader
from gpuspawner.core.idle.readings import CPU, SOFT_EVIDENCE
from gpuspawner.core.number_fields import (
    Duration,
    Flag,
    IdleThreshold,
    LifetimeRange,
    PositiveDuration,
    SamplePeriod,
    WarningTimes,
)
from gpuspawner.core.rules import Rules
from gpuspawner.core.text_fields import Name

if TYPE_CHECKING:  # it imports this module
    from gpuspawner.core.leases.lease import Lease


class Mode(str, Enum):
    """The consequence of an idle verdict: a record, a warning, or a stop. Workspaces expire in each mode."""

    OBSERVE = "observe"
    WARN = "warn"
    ENFORCE = "enforce"


_MODE = choice_reader(
    "not a mode",
    "write observe (only record), warn (tell the user) or enforce (stop)",
    {mode.value: mode for mode in Mode},
)
_OTHERS_WAIT = choice_reader("neither allow nor refuse", "write allow or refuse", {"allow": True, "refuse": False})
_SOFT_EVIDENCE = list_reader(
    choice_reader(
        "not soft evidence", f"write a list of {', '.join(SOFT_EVIDENCE)}", {name: name for name in SOFT_EVIDENCE}
    ),
    "soft evidence",
    "[cpu, kernel]",
    may_be_empty=True,
)


@dataclass(frozen=True)
class IdlePolicy:
    """When a workspace with GPUs is idle, and how long it then has."""

    __pydantic_config__ = section()
    below_percent: IdleThreshold = 5.0
    """A GPU with less utilization than this is idle."""
    for_seconds: PositiveDuration = 1800.0
    """How long all its GPUs must be known to be idle before the warning."""
    sample_seconds: SamplePeriod = 60.0
    """How often GPUs are measured."""
    grace_seconds: PositiveDuration = 600.0
    """The time between the warning and the end."""
    start_up_seconds: Duration = 60.0
    """The time after its start in which a workspace is never idle."""
    soft_seconds: Duration = 3600.0
    """How long after the last GPU work soft evidence, and work that may have been missed, count as use."""
    soft_names: Annotated[tuple[str, ...], Internal] = (CPU,)
    """The policy's ``also_counts`` for the decisions."""
    coverage: Annotated[float, Internal] = 0.8
    """The part of the time since the idle time began that must be known idle."""
    cpu_bound_cores: Annotated[float, Internal] = 0.1
    """CPU use of a workspace above this, averaged over a period, is evidence of work."""
    held_bound_cores: Annotated[float, Internal] = 0.02
    """CPU use above this by processes that may use a GPU, averaged over a period, may be GPU work. An idle kernel uses
    less than 0.01 cores. A second of GPU work costs about one second of CPU."""
    by_activity: Annotated[bool, Internal] = False
    """The workspace has no GPU. Any activity counts as use (:meth:`LifecyclePolicy.idle_of`)."""


@dataclass(frozen=True)
class ActivityPolicy:
    """When a workspace without a GPU is idle, and how long it then has."""

    __pydantic_config__ = section()
    none_for_seconds: PositiveDuration = 7200.0
    """How long it must be known to have no activity before the warning."""
    grace_seconds: PositiveDuration = 600.0
    """The time between the warning and the end."""


@dataclass(frozen=True)
class KeepPolicy:
    """How a user may keep an idle workspace."""

    __pydantic_config__ = section()
    times: Annotated[int, whole_number_reader(0, 100)] = 3
    """How many times."""
    each_seconds: PositiveDuration = 7200.0
    """For how long each time."""


@dataclass(frozen=True)
class ExtendPolicy:
    """How a user may move the end of a workspace, and when the user is warned of it."""

    __pydantic_config__ = section()
    each_seconds: PositiveDuration = 4 * 3600.0
    """By how much each time."""
    total_seconds: Duration = 24 * 3600.0
    """By how much in total. 0 means that no user may extend."""
    warn_seconds: WarningTimes = (3600.0, 600.0)
    """How long before the end the user is warned."""
    others_wait: Annotated[bool, _OTHERS_WAIT] = True
    """Whether a workspace may be extended while others wait for the same GPUs."""


@dataclass(frozen=True)
class PreemptionPolicy:
    """How a workspace ends if a request with precedence needs its GPU, or the cluster takes its GPU."""

    __pydantic_config__ = section(notice_seconds="grace")
    protected_seconds: Duration = 1800.0
    """The time after its start in which a workspace is safe from preemption."""
    notice_seconds: PositiveDuration = 300.0
    """The time between the notice and the end."""
    back_in_queue: Flag = True
    """Whether it returns to its queue position and starts again by itself."""


@dataclass(frozen=True)
class QueuePolicy:
    """How long a request waits behind users who have used less."""

    __pydantic_config__ = section(longest_wait_seconds="wait")
    longest_wait_seconds: PositiveDuration = 43200.0
    """A request that has waited longer goes before users who have used less."""


@dataclass(frozen=True)
class Terms:
    """Promises that a workspace gets with its grant. A later catalog does not change them."""

    keep: Annotated[KeepPolicy, Stored()] = field(default_factory=KeepPolicy)
    extend: Annotated[ExtendPolicy, Stored()] = field(default_factory=ExtendPolicy)
    protected_seconds: float = 1800.0
    notice_seconds: float = 300.0
    claim_seconds: float = 1800.0


@dataclass(frozen=True)
class LifecyclePolicy:
    """A lifecycle policy: when workspaces are idle, how they may be kept and extended, and when they end."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = "default"
    extends: Name = field(default="", compare=False)
    """Another policy. Every key that is not written here is taken from it."""
    mode: Annotated[Mode, _MODE] = Mode.OBSERVE
    """What happens to an idle workspace. observe only records it, warn tells its user, enforce stops it."""
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    """When a workspace with GPUs is idle."""
    also_counts: Annotated[tuple[str, ...], _SOFT_EVIDENCE] = field(default=(CPU,), compare=False)
    """The soft evidence that counts as use for the time `idle.soft`: cpu, kernel, terminal, ssh, editor."""
    activity: ActivityPolicy | None = None
    """When a workspace without a GPU is idle. Without this section, it never is."""
    keep: KeepPolicy = field(default_factory=KeepPolicy)
    """How a user may keep an idle workspace."""
    extend: ExtendPolicy = field(default_factory=ExtendPolicy)
    """How a user may move the end of a workspace."""
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    """How a workspace ends for a request with precedence."""
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    """The order of waiting requests."""
    claim_seconds: PositiveDuration = 1800.0
    """How long the user has to come to a workspace that got its GPUs while the user was away: open it in a browser,
    connect by SSH, or use a GPU. Idle time does not count until then. The user is warned after half of this time. After
    all of it, `enforce` releases the GPUs. In the other modes idle time begins to count."""
    ready_at: Flag = True
    """Whether schedules may start workspaces while this policy applies. With `hours`, false excludes some times, for
    example holidays."""
    lifetime_seconds: LifetimeRange = (60, 30 * 86400)
    """The shortest and the longest lifetime of its workspaces. Default: 1m-30d."""

    def with_name(self, name: str) -> LifecyclePolicy:
        """Return the policy with its name, and with ``also_counts`` where the decisions read it."""
        idle = replace(self.idle, soft_names=self.also_counts)
        return replace(self, name=name, idle=idle)

    @property
    def terms(self) -> Terms:
        """The promises for a workspace that is granted now."""
        preemption = self.preemption
        return Terms(
            self.keep, self.extend, preemption.protected_seconds, preemption.notice_seconds, self.claim_seconds
        )

    def with_terms(self, terms: Terms | None) -> LifecyclePolicy:
        """Return the policy with earlier promises. None means no promises."""
        if terms is None:
            return self
        promised = replace(
            self.preemption, protected_seconds=terms.protected_seconds, notice_seconds=terms.notice_seconds
        )
        return replace(
            self, keep=terms.keep, extend=terms.extend, preemption=promised, claim_seconds=terms.claim_seconds
        )

    def idle_of(self, *, gpus: bool) -> IdlePolicy | None:
        """Return the idle policy for workspaces with or without GPUs, or None if they are never idle."""
        if gpus:
            return self.idle
        if self.activity is None:
            return None
        return replace(
            self.idle,
            for_seconds=self.activity.none_for_seconds,
            grace_seconds=self.activity.grace_seconds,
            soft_names=(),
            by_activity=True,
        )


# --- hours


MINUTE_SECONDS = 60
"""Windows open and close on whole minutes, and so do the clocks of every zone change."""

Policies = Mapping[str, LifecyclePolicy]


class EffectivePolicy(NamedTuple):
    """The policy that applies now ``instead_of`` the requested one ("" if it is the requested one).

    ``until`` is the next change by hours in seconds since the epoch, or None.
    """

    policy: LifecyclePolicy
    instead_of: str = ""
    until: float | None = None


def effective_policy(name: str, policies: Policies, rules: Rules, now: float) -> EffectivePolicy:
    """Return the policy that applies now to workspaces with the policy ``name``.

    The default policy replaces one that left the catalog. If several ``hours`` are open, the first in the catalog
    applies.
    """
    own = policies.get(name) or policies["default"]
    changes: list[float] = []
    found: EffectivePolicy | None = None
    for hours in rules.hours:
        if hours.instead_of != own.name:
            continue
        one = _opening(hours.window, int(now // MINUTE_SECONDS), rules.timezone)
        if one is None:
            continue
        is_open = one.covers(now)
        changes.append(one.ends_at if is_open else one.opens_at)
        if is_open:
            found = EffectivePolicy(policies[hours.policy], own.name)
            break
    until = min(changes, default=None)
    return (found or EffectivePolicy(own))._replace(until=until if until is not None and isfinite(until) else None)


def policy_of_lease(lease: Lease, policies: Policies, rules: Rules, now: float) -> LifecyclePolicy:
    """Return the present policy of a lease with the promises of its grant."""
    return effective_policy(lease.request.policy, policies, rules, now).policy.with_terms(lease.terms)


@lru_cache(maxsize=1024)
def _opening(window: Window, minute: int, zone: str) -> Opening | None:
    return find_opening(window, minute * MINUTE_SECONDS, ZoneInfo(zone))
