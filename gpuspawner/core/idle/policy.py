"""Lifecycle policies: what administrators write, and what the decisions read. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Annotated

from gpuspawner.core.fields import Internal, Stored, choice_reader, section, whole_number_reader
from gpuspawner.core.number_fields import (
    DURATION,
    Duration,
    Flag,
    IdleThreshold,
    LifetimeRange,
    PositiveDuration,
    SamplePeriod,
    WarningTimes,
)
from gpuspawner.core.text_fields import Name


class Mode(str, Enum):
    """How far an idle verdict goes: recorded, told, or carried out. Expiry always acts."""

    OBSERVE = "observe"
    WARN = "warn"
    ENFORCE = "enforce"


_MODE = choice_reader(
    "no mode",
    "write observe (only record), warn (tell people) or enforce (stop)",
    {mode.value: mode for mode in Mode},
)
_OTHERS_WAIT = choice_reader(
    "not what others' waiting can do", "write allow or refuse", {"allow": True, "refuse": False}
)


@dataclass(frozen=True)
class IdlePolicy:
    """When a workspace counts as idle, and how long it then has."""

    __pydantic_config__ = section()
    below_percent: IdleThreshold = 5.0
    """A GPU that is used less than this is idle."""
    for_seconds: PositiveDuration = 1800.0
    """How long all of its GPUs must be known idle before the warning."""
    sample_seconds: SamplePeriod = 60.0
    """How often they are measured."""
    grace_seconds: PositiveDuration = 600.0
    """How long it goes on after the warning."""
    start_up_seconds: Duration = 60.0
    """A workspace younger than this is never idle."""
    monitor_seconds: Duration = 4 * 3600.0
    """How long work counts that only the monitor in the workspace sees; 0: never."""
    coverage: Annotated[float, Internal] = 0.8
    """The part of the non-soft time since the streak began that must be known idle."""
    unknown_in_a_row: Annotated[int, Internal] = 5
    """More unknown samples than this in a row reset the streak."""
    cpu_bound_cores: Annotated[float, Internal] = 0.1
    """CPU use above this, averaged over the interval, is evidence of work."""
    held_bound_cores: Annotated[float, Internal] = 0.02
    """CPU use above this by processes that hold a GPU, over a sampling period, may hide a burst between two readings.
    An idle kernel uses less than 0.01; a second of GPU work costs about one of CPU."""
    soft_budget_seconds: Annotated[tuple[tuple[str, float], ...], Internal] = (("cpu", 3600.0),)
    """The policy's ``also_counts``, as the decisions read it."""
    by_activity: Annotated[bool, Internal] = False
    """It has no GPU: any activity at all is its use, without a budget (:meth:`LifecyclePolicy.idle_of`)."""


@dataclass(frozen=True)
class AlsoCounts:
    """Softer evidence, and how long each may hold an idle GPU."""

    __pydantic_config__ = section()
    cpu_seconds: Annotated[float | None, DURATION] = None
    """CPU use of all its processes."""
    kernel_seconds: Annotated[float | None, DURATION] = None
    """A kernel that is busy or in use."""
    terminal_seconds: Annotated[float | None, DURATION] = None
    """A terminal in use."""
    ssh_seconds: Annotated[float | None, DURATION] = None
    """An SSH session."""
    editor_seconds: Annotated[float | None, DURATION] = None
    """A VS Code window."""

    @property
    def budgets(self) -> tuple[tuple[str, float], ...]:
        """Each evidence that counts, with its budget in seconds."""
        found = ((one.name.removesuffix("_seconds"), getattr(self, one.name)) for one in fields(self))
        return tuple((name, seconds) for name, seconds in found if seconds is not None)


@dataclass(frozen=True)
class ActivityPolicy:
    """When a workspace without a GPU counts as idle, and how long it then has."""

    __pydantic_config__ = section()
    none_for_seconds: PositiveDuration = 7200.0
    """How long it must be known to be without any activity before the warning."""
    grace_seconds: PositiveDuration = 600.0
    """How long it goes on after the warning."""


@dataclass(frozen=True)
class KeepPolicy:
    """How often, and for how long each time, an idle workspace may be kept."""

    __pydantic_config__ = section()
    times: Annotated[int, whole_number_reader(0, 100)] = 3
    """How often."""
    each_seconds: PositiveDuration = 7200.0
    """For how long each time."""


@dataclass(frozen=True)
class ExtendPolicy:
    """How far a deadline may be moved, and how long before it people are told."""

    __pydantic_config__ = section()
    each_seconds: PositiveDuration = 4 * 3600.0
    """How far each time."""
    total_seconds: Duration = 24 * 3600.0
    """How far in all; 0 lets nobody."""
    warn_seconds: WarningTimes = (3600.0, 600.0)
    """How long before the deadline people are told."""
    others_wait: Annotated[bool, _OTHERS_WAIT] = True
    """Whether it may be extended while others wait for the same GPUs: allow or refuse."""


@dataclass(frozen=True)
class PreemptionPolicy:
    """What follows when a stronger claim needs a workspace's GPU, or the cluster takes it."""

    __pydantic_config__ = section(notice_seconds="grace")
    protected_seconds: Duration = 1800.0
    """A workspace younger than this is not ended for a stronger claim."""
    notice_seconds: PositiveDuration = 300.0
    """Between the notice and the end."""
    back_in_queue: Flag = True
    """Whether it returns to its place in the queue and starts again by itself."""


@dataclass(frozen=True)
class QueuePolicy:
    """How long people wait at most because others have used less."""

    __pydantic_config__ = section(longest_wait_seconds="wait")
    longest_wait_seconds: PositiveDuration = 43200.0
    """Who has waited longer goes before those who have used less."""


@dataclass(frozen=True)
class Terms:
    """What a policy promises to a workspace at its grant, and a later catalog does not change."""

    keep: Annotated[KeepPolicy, Stored()] = field(default_factory=KeepPolicy)
    extend: Annotated[ExtendPolicy, Stored()] = field(default_factory=ExtendPolicy)
    protected_seconds: float = 1800.0
    notice_seconds: float = 300.0
    claim_seconds: float = 1800.0


@dataclass(frozen=True)
class LifecyclePolicy:
    """A lifecycle policy."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = "default"
    extends: Name = field(default="", compare=False)
    """The policy from which it has all that it does not write itself."""
    mode: Annotated[Mode, _MODE] = Mode.OBSERVE
    """What follows where a workspace is idle: observe records, warn tells people, enforce stops."""
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    """How idleness of GPUs is judged."""
    also_counts: AlsoCounts = field(default_factory=lambda: AlsoCounts(cpu_seconds=3600.0), compare=False)
    """What else holds an idle GPU. Where it is written, only what it names counts. Default: {cpu: 1h}."""
    activity: ActivityPolicy | None = None
    """How workspaces without a GPU are judged. Where it is not written, they are not."""
    keep: KeepPolicy = field(default_factory=KeepPolicy)
    """What its user may answer to a warning."""
    extend: ExtendPolicy = field(default_factory=ExtendPolicy)
    """How its end may be moved."""
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    """What holds where others need its GPUs more."""
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    """What holds while it waits."""
    claim_seconds: PositiveDuration = 1800.0
    """Within it somebody must come to a workspace with GPUs that came out of the queue while its user was away: open
    it in a browser, connect by SSH, or use a GPU. Until then its idle time does not count, and halfway its user is
    warned. Then `enforce` gives it back; under the other modes idle time counts from there."""
    ready_at: Flag = True
    """Whether a workspace is made ready at a time while this policy judges. With `hours`, false says when not, as on
    holidays."""
    lifetime_seconds: LifetimeRange = (60, 30 * 86400)
    """The shortest and longest life of its workspaces. Default: 1m-30d."""

    def with_name(self, name: str) -> LifecyclePolicy:
        """Return the policy with its name, and with ``also_counts`` where the decisions read it."""
        idle = replace(self.idle, soft_budget_seconds=self.also_counts.budgets)
        return replace(self, name=name, idle=idle)

    @property
    def terms(self) -> Terms:
        """What is promised to who is granted a workspace now."""
        preemption = self.preemption
        return Terms(
            self.keep, self.extend, preemption.protected_seconds, preemption.notice_seconds, self.claim_seconds
        )

    def with_terms(self, terms: Terms | None) -> LifecyclePolicy:
        """Return the policy with what was promised earlier; None promised nothing."""
        if terms is None:
            return self
        promised = replace(
            self.preemption, protected_seconds=terms.protected_seconds, notice_seconds=terms.notice_seconds
        )
        return replace(
            self, keep=terms.keep, extend=terms.extend, preemption=promised, claim_seconds=terms.claim_seconds
        )

    def idle_of(self, *, gpus: bool) -> IdlePolicy | None:
        """Return by what a workspace with or without GPUs is judged; None where it is not."""
        if gpus:
            return self.idle
        if self.activity is None:
            return None
        return replace(
            self.idle,
            for_seconds=self.activity.none_for_seconds,
            grace_seconds=self.activity.grace_seconds,
            soft_budget_seconds=(),
            by_activity=True,
        )
