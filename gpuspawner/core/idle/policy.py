"""Lifecycle policies as the decisions see them: DevGPUVMLifecyclePolicy, all times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum


class Mode(str, Enum):
    """How far an idle verdict goes: recorded, told, or carried out. Expiry always acts."""

    OBSERVE = "observe"
    WARN = "warn"
    ENFORCE = "enforce"


@dataclass(frozen=True)
class IdlePolicy:
    """When a workspace counts as idle. Defaults are those of the original system (design, section 7)."""

    below_percent: float = 5.0
    """A GPU read at or above this is busy."""
    for_seconds: float = 1800.0
    """Known idle time before the grace period begins."""
    sample_seconds: float = 60.0
    """The period of sampling."""
    grace_seconds: float = 600.0
    """Between the warning and the end."""
    soft_seconds: float = 3600.0
    """How long after the last GPU work soft evidence, and work that may have been missed, count as use."""
    soft_names: tuple[str, ...] = ("cpu",)
    """The soft evidence that counts."""
    coverage: float = 0.8
    """The part of the time since the idle time began that must be known idle."""
    cpu_bound_cores: float = 0.1
    """CPU use of a workspace above this, averaged over the interval, is evidence of work."""
    held_bound_cores: float = 0.02
    """CPU use above this by processes that may use a GPU, over a sampling period, may be GPU work. An idle kernel uses
    less than 0.01 cores. A second of GPU work costs about one second of CPU."""
    start_up_seconds: float = 60.0
    """A workspace younger than this is unknown."""
    by_activity: bool = False
    """It has no GPU: any activity at all is its use, without a budget (:meth:`LifecyclePolicy.idle_of`)."""


@dataclass(frozen=True)
class ActivityPolicy:
    """When a workspace without a GPU counts as idle."""

    none_for_seconds: float = 7200.0
    """Time known to be without activity before the grace period begins."""
    grace_seconds: float = 600.0
    """Between the warning and the end."""


@dataclass(frozen=True)
class KeepPolicy:
    """How often, and for how long each time, a user may keep an idle workspace."""

    times: int = 3
    each_seconds: float = 7200.0


@dataclass(frozen=True)
class ExtendPolicy:
    """How far a user may move the deadline, and when the coming end is told."""

    each_seconds: float = 4 * 3600.0
    total_seconds: float = 24 * 3600.0
    warn_seconds: tuple[float, ...] = (3600.0, 600.0)
    """Told this long before the deadline, in falling order."""
    others_wait: bool = True
    """Whether it may be extended while others wait for the same GPUs."""


@dataclass(frozen=True)
class Terms:
    """What a policy promises to a workspace at its grant, and a later catalog does not change."""

    keep: KeepPolicy = field(default_factory=KeepPolicy)
    extend: ExtendPolicy = field(default_factory=ExtendPolicy)
    protected_seconds: float = 1800.0
    notice_seconds: float = 300.0
    claim_seconds: float = 1800.0


@dataclass(frozen=True)
class LifecyclePolicy:
    """One entry of the catalog's ``policies``."""

    name: str = "default"
    mode: Mode = Mode.OBSERVE
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    keep: KeepPolicy = field(default_factory=KeepPolicy)
    extend: ExtendPolicy = field(default_factory=ExtendPolicy)
    lifetime_seconds: tuple[int, int] = (60, 30 * 86400)
    """Bounds of what a request may ask under this policy."""
    back_in_queue: bool = True
    """A workspace whose GPU the cluster takes returns to its place in the queue, and starts again by itself."""
    protected_seconds: float = 1800.0
    """No stronger claim ends a workspace younger than this."""
    notice_seconds: float = 300.0
    """Between the notice that a stronger claim needs its GPUs, and the end."""
    claim_seconds: float = 1800.0
    """Within it somebody must come to a workspace that came out of the queue while its user was away."""
    ready_at: bool = True
    """While it judges, a workspace may be made ready at a time."""
    longest_wait_seconds: float = 43200.0
    """Who has waited longer goes before those who have used less."""
    activity: ActivityPolicy | None = None
    """None: workspaces without a GPU are not judged."""

    @property
    def terms(self) -> Terms:
        """What is promised to who is granted a workspace now."""
        return Terms(self.keep, self.extend, self.protected_seconds, self.notice_seconds, self.claim_seconds)

    def with_terms(self, terms: Terms | None) -> LifecyclePolicy:
        """Return the policy with what was promised earlier; None promised nothing."""
        if terms is None:
            return self
        return replace(
            self,
            keep=terms.keep,
            extend=terms.extend,
            protected_seconds=terms.protected_seconds,
            notice_seconds=terms.notice_seconds,
            claim_seconds=terms.claim_seconds,
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
            soft_names=(),
            by_activity=True,
        )
