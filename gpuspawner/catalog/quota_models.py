"""Models of quotas and class holds as administrators write them, and what the decisions read of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import PERIOD, Per, WeeklyWindow
from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import (
    Reader,
    Required,
    amount_reader,
    choice_reader,
    section,
    whole_number_reader,
    write_nothing,
)
from gpuspawner.core.number_fields import BYTES, CORES, DATE, GpuCount
from gpuspawner.core.rules import Budget, BudgetUnit, ClassHold, Limit, LimitedResource, Quota, QuotaScope
from gpuspawner.core.text_fields import GroupName, KindName, ObjectName
from gpuspawner.core.units import BadValue

_GPUS = amount_reader("a number of GPUs", "4")
_HOURS = amount_reader("a number of hours", "40")
_MONEY = amount_reader("an amount of money", "250")
_WORKSPACES = whole_number_reader(0, 10_000)
_PERIOD_IS_REQUIRED = Required("week", "add {key}: day, week or month")


@dataclass(frozen=True)
class GpuLimit:
    """The limits of GPUs at the same time."""

    __pydantic_config__ = section()
    soft: Annotated[Fraction | None, _GPUS] = None
    """The fair share. Requests above it start only on free GPUs, and go later in the queue."""
    hard: Annotated[Fraction | None, _GPUS] = None
    """The limit. Requests above it are refused."""


@dataclass(frozen=True)
class CountLimit:
    """The limits of workspaces at the same time."""

    __pydantic_config__ = section()
    soft: Annotated[int | None, _WORKSPACES] = None
    """The fair share. Requests above it start only on free GPUs, and go later in the queue."""
    hard: Annotated[int | None, _WORKSPACES] = None
    """The limit. Requests above it are refused."""


@dataclass(frozen=True)
class CpuLimit:
    """The limits of CPU cores at the same time."""

    __pydantic_config__ = section()
    soft: Annotated[float | None, CORES] = None
    """The fair share. Requests above it start only on free GPUs, and go later in the queue."""
    hard: Annotated[float | None, CORES] = None
    """The limit. Requests above it are refused."""


@dataclass(frozen=True)
class MemoryLimit:
    """The limits of memory at the same time."""

    __pydantic_config__ = section()
    soft: Annotated[int | None, BYTES] = None
    """The fair share. Requests above it start only on free GPUs, and go later in the queue."""
    hard: Annotated[int | None, BYTES] = None
    """The limit. Requests above it are refused."""


@dataclass(frozen=True)
class HoursBudget:
    """The budget of GPU hours in a period."""

    __pydantic_config__ = section()
    per: Annotated[Per | None, PERIOD, _PERIOD_IS_REQUIRED] = None
    """The period, in the catalog's time zone."""
    soft: Annotated[Fraction | None, _HOURS] = None
    """Users above it are told so, and go later in the queue."""
    hard: Annotated[Fraction | None, _HOURS] = None
    """The limit. A workspace gets no longer lifetime than the budget allows."""


@dataclass(frozen=True)
class CostBudget:
    """The budget of money in a period."""

    __pydantic_config__ = section()
    per: Annotated[Per | None, PERIOD, _PERIOD_IS_REQUIRED] = None
    """The period, in the catalog's time zone."""
    soft: Annotated[Fraction | None, _MONEY] = None
    """Users above it are told so, and go later in the queue."""
    hard: Annotated[Fraction | None, _MONEY] = None
    """The limit. A workspace gets no longer lifetime than the budget allows."""


def _read_each(value: object) -> bool:
    if value == "group":
        right = (
            "write group: with its name to limit the group together, and add each: user to limit each of its members"
        )
        raise BadValue(f"{quoted(value)} is not a value for each", right)
    if value != "user":
        raise BadValue(f"{quoted(value)} is not a value for each", "write each: user")
    return True


_EACH = Reader(_read_each, "`user`", {"type": "string", "enum": ["user"]}, write_nothing)
_EVERYBODY = choice_reader("not a value for everybody", "write everybody: true", {True: True})
_FULL = choice_reader("neither wait nor refuse", "write wait or refuse", {"wait": True, "refuse": False})


class Bound(NamedTuple):
    """A soft and a hard limit of a quota: its path within the quota, what it limits, and of which GPU kind."""

    path: tuple[str, ...]
    what: LimitedResource | BudgetUnit
    kind: str
    soft: Fraction | None
    hard: Fraction | None


@dataclass(frozen=True)
class QuotaLimits:
    """Limits and budgets of each user, of one user, of a team or of everybody."""

    __pydantic_config__ = section()
    each: Annotated[bool, _EACH] = False
    """`user` limits each user alone, or each member of `group`."""
    group: GroupName = ""
    """The team whose members it limits together."""
    user: GroupName = ""
    """The user that it limits."""
    everybody: Annotated[bool, _EVERYBODY] = False
    """`true` limits all users together."""
    namespace: ObjectName = ""
    """On Kubernetes: the namespace whose workspaces it limits together. So hubs in several namespaces may share a
    catalog. Default: it limits workspaces in any namespace."""
    gpus: GpuLimit = field(default_factory=GpuLimit)
    """The number of GPUs at the same time. `counts` of a GPU kind says how much one counts."""
    types: Mapping[KindName, GpuLimit] = field(default_factory=dict)
    """The number of GPUs of each kind at the same time."""
    workspaces: CountLimit = field(default_factory=CountLimit)
    """The number of workspaces at the same time."""
    cpu: CpuLimit = field(default_factory=CpuLimit)
    """CPU cores at the same time."""
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    """Memory at the same time."""
    gpu_hours: HoursBudget | None = None
    """GPU hours in a period."""
    cost: CostBudget | None = None
    """Money in a period, by the prices of the GPU kinds."""
    full: Annotated[bool, _FULL] = True
    """Whether a request waits or is refused while other users have filled the quota."""

    @property
    def whom(self) -> QuotaScope | None:
        """The users that it limits, or None if the file does not name them in exactly one way."""
        subjects = ("each", "group", "user", "everybody", "namespace")
        return {
            ("each",): QuotaScope.EACH_USER,
            ("each", "group"): QuotaScope.EACH_OF_TEAM,
            ("group",): QuotaScope.TEAM,
            ("user",): QuotaScope.USER,
            ("everybody",): QuotaScope.EVERYBODY,
            ("namespace",): QuotaScope.EVERYBODY,
        }.get(tuple(key for key in subjects if getattr(self, key)))

    def bounds(self) -> Iterator[Bound]:
        """Yield every pair of a soft and a hard limit that is written."""
        for key, what in (
            ("gpus", LimitedResource.GPUS),
            ("types", LimitedResource.KIND),
            ("workspaces", LimitedResource.WORKSPACES),
            ("cpu", LimitedResource.CPU),
            ("memory", LimitedResource.MEMORY),
            ("gpu_hours", BudgetUnit.GPU_HOURS),
            ("cost", BudgetUnit.COST),
        ):
            found = getattr(self, key)
            for kind, pair in found.items() if isinstance(found, Mapping) else [("", found)]:
                if pair is not None and (pair.soft, pair.hard) != (None, None):
                    soft, hard = (None if end is None else Fraction(str(end)) for end in (pair.soft, pair.hard))
                    yield Bound((key, kind) if kind else (key,), what, kind, soft, hard)

    def quota(self, name: str, whom: QuotaScope) -> Quota:
        """Return the quota as the decisions read it."""
        limits: list[Limit] = []
        budgets: list[Budget] = []
        for one in self.bounds():
            if isinstance(one.what, LimitedResource):
                limits.append(Limit(one.what, one.kind, one.soft, one.hard))
            else:
                budgets.append(Budget(one.what, getattr(self, one.path[0]).per, one.soft, one.hard))
        return Quota(name, whom, self.group or self.user, tuple(limits), tuple(budgets), self.full)


@dataclass(frozen=True)
class Hold:
    """GPUs that are reserved for a group."""

    __pydantic_config__ = section(last_day="until")
    group: Annotated[GroupName, Required("cs231")]
    """The group."""
    gpu: Annotated[KindName, Required("t4")]
    """The GPU kind."""
    count: Annotated[GpuCount, Required(8)]
    """The number of GPUs."""
    when: Annotated[WeeklyWindow, Required("Thu 09:00-11:00")]
    """The part of the week."""
    last_day: Annotated[dt.date | None, DATE] = None
    """The last day. Default: no last day."""

    def hold(self, zone: str) -> ClassHold:
        """Return the hold as the decisions read it. It ends at midnight after its last day in ``zone``."""
        until = None
        if self.last_day is not None:
            after = self.last_day + dt.timedelta(days=1)
            until = dt.datetime(after.year, after.month, after.day, tzinfo=ZoneInfo(zone)).timestamp()
        return ClassHold(self.group, self.gpu, self.count, self.when, until)
