"""The rules of an organisation in the catalog: teams, quotas, budgets, class holds and hours.

Other modules of core decide with these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, NamedTuple

from gpuspawner.core.calendar import PERIOD, AnyWindow, Per, Window
from gpuspawner.core.fields import Internal, Required, section
from gpuspawner.core.number_fields import IDLE_THRESHOLD, GpuHours, PositiveDuration, Priority, Weight
from gpuspawner.core.text_fields import GroupNames, Name, Title


class QuotaScope(Enum):
    """The users that an entry of ``quotas`` limits."""

    EACH_USER = "each user"
    EACH_OF_TEAM = "each user of a team"
    USER = "one user"
    TEAM = "a team"
    EVERYBODY = "everybody"


class LimitedResource(Enum):
    """The resource that a limit counts. GPUs count by ``counts`` of their kinds, CPU in cores, memory in bytes."""

    __hash__ = object.__hash__  # each is one object; Enum's own takes most of a look-up of what is taken of a limit

    GPUS = "gpus"
    KIND = "types"
    WORKSPACES = "workspaces"
    CPU = "cpu"
    MEMORY = "memory"


class BudgetUnit(Enum):
    """The amount that a budget limits: GPU hours or money."""

    GPU_HOURS = "gpu_hours"
    COST = "cost"


@dataclass(frozen=True)
class Limit:
    """The most of a resource at one time. ``kind`` is set if ``what`` is KIND. None means no limit."""

    what: LimitedResource
    kind: str = ""
    soft: Fraction | None = None
    hard: Fraction | None = None


@dataclass(frozen=True)
class Budget:
    """The most GPU hours or money in one period. None means no limit."""

    what: BudgetUnit
    per: Per
    soft: Fraction | None = None
    hard: Fraction | None = None


@dataclass(frozen=True)
class Quota:
    """One entry of ``quotas``: DevGPUVMQuota.

    ``subject`` is the user or the team, and "" for each user and for everybody. If others have used up the limit, a
    request waits with ``full_waits`` and is refused without it.
    """

    name: str
    whom: QuotaScope
    subject: str = ""
    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
    full_waits: bool = True


@dataclass(frozen=True)
class Team:
    """A group of the hub that is charged for the usage of its members."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = ""
    title: Title = ""
    """The title that users read. Default: the name of the group."""
    weight: Weight = Fraction(1)
    """The weight of the team in the queue. Its usage is divided by the weight."""
    priority: Priority = 0
    """Requests of teams with a higher priority go first in the queue."""
    leads: GroupNames = frozenset()
    """The users who get the statements of the team and its alerts by mail. Their rights come from a scope of the hub,
    and leads who have used that since the service started get them too. Default: only those."""


class Account(NamedTuple):
    """The account of some usage: a team ("" for all teams) and a user's ``created`` ("" for all users)."""

    team: str = ""
    user_created: str = ""

    def called(self, name: str) -> str:
        """Return the account's name for display: a user by name, a team as one."""
        return f"team {name}" if self.team else name


@dataclass(frozen=True)
class Rate:
    """How fast a workspace uses budgets: GPUs as quotas count them, and money for an hour."""

    gpus: Fraction = Fraction(0)
    price_per_hour: Fraction = Fraction(0)


@dataclass(frozen=True)
class QuotaGrant:
    """An amount that an administrator adds for a time to the limits of a user or a team.

    It raises the soft and the hard limit. A negative amount lowers them: it was moved to another member of the team.
    Times are seconds since the epoch. ``kind`` as in :class:`Limit`.

    Args:
        user: the user's name at the time of the grant, "" for a team or for everybody.
        by: the administrator who granted it.
        why: the administrator's reason.
        move: identifies both sides of a move between members, "" for other extra quota.
    """

    id: str
    account: Account
    what: LimitedResource | BudgetUnit
    amount: Fraction
    since: float
    until: float
    kind: str = ""
    user: str = ""
    why: str = ""
    by: str = ""
    made_at: float = 0.0
    taken_back_at: float | None = None
    taken_back_by: str = ""
    taken_back_why: str = ""
    move: str = ""

    def state(self, now: float) -> str:
        """Return ``in force``, ``to come``, ``over`` or ``taken back``."""
        if self.taken_back_at is not None:
            return "taken back"
        if now >= self.until:
            return "over"
        return "in force" if self.since <= now else "to come"

    def is_live(self, now: float) -> bool:
        """Return whether it is in force or will be."""
        return self.taken_back_at is None and now < self.until


@dataclass(frozen=True)
class Hours:
    """Another policy for some hours of the week, or for some dates."""

    __pydantic_config__ = section(window="when")
    window: Annotated[AnyWindow, Required("Mon-Fri 20:00-07:00")]
    """The part of the week, or whole days. Required."""
    policy: Annotated[Name, Required("night")]
    """The policy that applies then. Required."""
    instead_of: Annotated[Name, Required("default")]
    """The policy that it replaces. Required."""


@dataclass(frozen=True)
class ClassHold:
    """GPUs that are reserved for a group of the hub at given times, until a day in seconds since the epoch.

    Without a ``window`` they are reserved at all times after ``since``. If an administrator reserves them, they are for
    an ``account`` or for ``members``, and ``group`` is the name for display.

    Args:
        node: the only node whose GPUs are reserved, "" for any node.
        members: the users by their ``created``. None: those in the group when they made their request.
    """

    group: str
    kind: str
    count: int
    window: Window | None
    until: float | None = None
    since: float = 0.0
    account: Account | None = None
    node: str = ""
    members: frozenset[str] | None = None

    @property
    def is_maintenance(self) -> bool:
        """Whether all GPUs of a node are reserved for its maintenance. Nobody may use them."""
        return not self.kind


@dataclass(frozen=True)
class MakeRoom:
    """When workspaces above the fair share make room for requests below it."""

    __pydantic_config__ = section()
    after_seconds: Annotated[PositiveDuration, Required("30m", "add {key}: with a time, for example {example}")]
    """How long a user below the fair share waits first. Required."""


@dataclass(frozen=True)
class ApprovalRule:
    """When requests of users for extra GPU hours are approved at once."""

    __pydantic_config__ = section(gpu_hours="below")
    gpu_hours: Annotated[GpuHours, Required("8 GPU h")]
    """The extra GPU hours that a user gets without an answer of anybody, at most. Required."""
    each: Annotated[Per, PERIOD, Required("week", "add {key}: day, week or month")]
    """The period in which they count, in the catalog's time zone. Required."""


@dataclass(frozen=True)
class Alerts:
    """When leads and administrators are told of the usage of a team, in addition to budgets of money."""

    __pydantic_config__ = section()
    idle_percent: Annotated[float | None, IDLE_THRESHOLD] = None
    """The idle share of a team's measured GPU hours in a week, for example `40%`. Above it they are told on Monday.
    Default: they are not told."""


@dataclass(frozen=True)
class Rules:
    """All rules. ``contact`` tells users who can give them more, as the administrator writes it."""

    teams: Mapping[str, Team] = field(default_factory=lambda: MappingProxyType({}))
    quotas: tuple[Quota, ...] = ()
    quotas_of_namespaces: Mapping[str, tuple[Quota, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The quotas of everybody in a namespace, by namespace. They apply by :meth:`in_namespace`."""
    holds: tuple[ClassHold, ...] = ()
    hours: tuple[Hours, ...] = ()
    closed: frozenset[date] = frozenset()
    """Days in ``timezone`` on which schedules start no workspace."""
    make_room: MakeRoom | None = None
    approve: ApprovalRule | None = None
    alerts: Alerts = field(default_factory=Alerts)
    quarantine_faulty_gpus: bool = True
    """Whether a GPU with a fatal error is put in quarantine at once."""
    timezone: str = "UTC"
    contact: str = ""
    currency: str = ""
    """The currency of all prices and budgets, or "" if it is not set."""

    def in_namespace(self, namespace: str) -> Rules:
        """Return the rules of a hub whose workspaces are in a namespace. The quotas of other namespaces are removed."""
        quotas = (*self.quotas, *self.quotas_of_namespaces.get(namespace, ()))
        return replace(self, quotas=quotas, quotas_of_namespaces={})


@dataclass(frozen=True)
class Accounts:
    """The usage of workspaces that have ended. The usage of live leases is added to it.

    Args:
        charged: the charges of the present period of each length, by account.
        decayed_gpu_seconds: the usage of all time, halved each week, at the snapshot's time.
    """

    charged: Mapping[tuple[Account, BudgetUnit, Per], Fraction] = field(default_factory=lambda: MappingProxyType({}))
    decayed_gpu_seconds: Mapping[Account, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class LatestEnd:
    """A bound on the end of a workspace that no extension passes. ``rule`` is budget, hold or backfill.

    ``at`` is in seconds since the epoch. ``words`` say it to the user. ``name`` is the catalog entry, if there is one.
    """

    at: float
    rule: str
    words: str
    name: str = ""


@dataclass(frozen=True)
class WaitReason:
    """The rule that holds a waiting request back, since when, and the sentence for its user."""

    rule: str
    words: str
    since: float


@dataclass(frozen=True)
class LostInterval:
    """Uncharged time of a running workspace, which the platform lost. ``until`` is None while it lasts.

    ``share`` is the part that was lost: a quarter if one of four GPUs failed.
    """

    since: float
    until: float | None
    why: str
    share: Fraction = Fraction(1)


@dataclass(frozen=True)
class EndNotice:
    """The announced end of a workspace, for a preemption or by an administrator.

    ``preemption`` is the id of the claim, or "" for an administrator, who acted from ``where``. With ``moves`` the
    workspace returns to its queue position.
    """

    preemption: str
    at: float
    why: str
    by: str
    where: str = ""
    moves: bool = False
