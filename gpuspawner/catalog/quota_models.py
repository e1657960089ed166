"""Models of quotas and class holds as administrators write them, and what the decisions read of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar.windows import WeeklyWindow
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
from gpuspawner.core.rules import Budget, ClassHold, Limit, Per, Quota, Used, What, Whom
from gpuspawner.core.text_fields import GroupName, KindName
from gpuspawner.core.units import BadValue

_GPUS = amount_reader("a number of GPUs", "4")
_HOURS = amount_reader("a number of hours", "40")
_MONEY = amount_reader("an amount of money", "250")
_WORKSPACES = whole_number_reader(0, 10_000)
_PERIOD = choice_reader("no period", "write day, week or month", {per.value: per for per in Per})
_PERIOD_IS_REQUIRED = Required("week", "for how long is not said", "add {key}: day, week or month")


@dataclass(frozen=True)
class GpuLimit:
    """How many GPUs at one time."""

    __pydantic_config__ = section()
    soft: Annotated[Fraction | None, _GPUS] = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Annotated[Fraction | None, _GPUS] = None
    """The limit: what would go beyond is refused."""


@dataclass(frozen=True)
class CountLimit:
    """How many workspaces at one time."""

    __pydantic_config__ = section()
    soft: Annotated[int | None, _WORKSPACES] = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Annotated[int | None, _WORKSPACES] = None
    """The limit: what would go beyond is refused."""


@dataclass(frozen=True)
class CpuLimit:
    """How many CPU cores at one time."""

    __pydantic_config__ = section()
    soft: Annotated[float | None, CORES] = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Annotated[float | None, CORES] = None
    """The limit: what would go beyond is refused."""


@dataclass(frozen=True)
class MemoryLimit:
    """How much memory at one time."""

    __pydantic_config__ = section()
    soft: Annotated[int | None, BYTES] = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Annotated[int | None, BYTES] = None
    """The limit: what would go beyond is refused."""


@dataclass(frozen=True)
class HoursBudget:
    """How many GPU hours in a period."""

    __pydantic_config__ = section()
    per: Annotated[Per | None, _PERIOD, _PERIOD_IS_REQUIRED] = None
    """The period: day, week or month, in the catalog's time zone."""
    soft: Annotated[Fraction | None, _HOURS] = None
    """Beyond it one is told, and goes later."""
    hard: Annotated[Fraction | None, _HOURS] = None
    """The limit: a workspace is given no longer life than it leaves."""


@dataclass(frozen=True)
class CostBudget:
    """How much money in a period."""

    __pydantic_config__ = section()
    per: Annotated[Per | None, _PERIOD, _PERIOD_IS_REQUIRED] = None
    """The period: day, week or month, in the catalog's time zone."""
    soft: Annotated[Fraction | None, _MONEY] = None
    """Beyond it one is told, and goes later."""
    hard: Annotated[Fraction | None, _MONEY] = None
    """The limit: a workspace is given no longer life than it leaves."""


def _read_each(value: object) -> bool:
    if value == "group":
        right = "write group: with its name for all of it together, and each: user besides for each of its members"
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", right)
    if value != "user":
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", "write each: user")
    return True


_EACH = Reader(_read_each, "`user`", {"type": "string", "enum": ["user"]}, write_nothing)
_EVERYBODY = choice_reader("not whom a quota can be for", "write everybody: true", {True: True})
_FULL = choice_reader("not what a full quota can do", "write wait or refuse", {"wait": True, "refuse": False})


class Bound(NamedTuple):
    """A soft and a hard limit of a quota: its path within the quota, what it limits, and of which GPU kind."""

    path: tuple[str, ...]
    what: What | Used
    kind: str
    soft: Fraction | None
    hard: Fraction | None


@dataclass(frozen=True)
class QuotaLimits:
    """Limits and budgets of each user, of one user, of a team or of everybody."""

    __pydantic_config__ = section()
    each: Annotated[bool, _EACH] = False
    """`user`: it limits each user by themselves; with `group`, each of that team."""
    group: GroupName = ""
    """The team that it limits together."""
    user: GroupName = ""
    """The one user whom it limits."""
    everybody: Annotated[bool, _EVERYBODY] = False
    """`true`: it limits all together."""
    gpus: GpuLimit = field(default_factory=GpuLimit)
    """GPUs at once, as their kinds count."""
    types: Mapping[KindName, GpuLimit] = field(default_factory=dict)
    """The same of one kind."""
    workspaces: CountLimit = field(default_factory=CountLimit)
    """Workspaces at once."""
    cpu: CpuLimit = field(default_factory=CpuLimit)
    """CPU cores at once."""
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    """Memory at once."""
    gpu_hours: HoursBudget | None = None
    """GPU hours in a period."""
    cost: CostBudget | None = None
    """Money in a period, by the prices of the kinds."""
    full: Annotated[bool, _FULL] = True
    """What follows where others have filled it: wait or refuse."""

    @property
    def whom(self) -> Whom | None:
        """Whom it limits, or None if the file does not say so in exactly one way."""
        written = (self.each, bool(self.group), bool(self.user), self.everybody)
        return {
            (True, False, False, False): Whom.EACH_USER,
            (True, True, False, False): Whom.EACH_OF_TEAM,
            (False, True, False, False): Whom.TEAM,
            (False, False, True, False): Whom.USER,
            (False, False, False, True): Whom.EVERYBODY,
        }.get(written)

    def bounds(self) -> Iterator[Bound]:
        """Yield every pair of a soft and a hard limit that is written."""
        for key, what in (
            ("gpus", What.GPUS),
            ("types", What.KIND),
            ("workspaces", What.WORKSPACES),
            ("cpu", What.CPU),
            ("memory", What.MEMORY),
            ("gpu_hours", Used.GPU_HOURS),
            ("cost", Used.COST),
        ):
            found = getattr(self, key)
            for kind, pair in found.items() if isinstance(found, Mapping) else [("", found)]:
                if pair is not None and (pair.soft, pair.hard) != (None, None):
                    soft, hard = (None if end is None else Fraction(str(end)) for end in (pair.soft, pair.hard))
                    yield Bound((key, kind) if kind else (key,), what, kind, soft, hard)

    def quota(self, name: str, whom: Whom) -> Quota:
        """Return the quota as the decisions read it."""
        limits: list[Limit] = []
        budgets: list[Budget] = []
        for one in self.bounds():
            if isinstance(one.what, What):
                limits.append(Limit(one.what, one.kind, one.soft, one.hard))
            else:
                budgets.append(Budget(one.what, getattr(self, one.path[0]).per, one.soft, one.hard))
        return Quota(name, whom, self.group or self.user, tuple(limits), tuple(budgets), self.full)


@dataclass(frozen=True)
class Hold:
    """GPUs that are kept free for a group."""

    __pydantic_config__ = section(last_day="until")
    group: Annotated[GroupName, Required("cs231")]
    """For whom."""
    gpu: Annotated[KindName, Required("t4")]
    """Which kind."""
    count: Annotated[GpuCount, Required(8)]
    """How many."""
    when: Annotated[WeeklyWindow, Required("Thu 09:00-11:00")]
    """The part of the week."""
    last_day: Annotated[dt.date | None, DATE] = None
    """The last day. Default: without end."""

    def hold(self, zone: str) -> ClassHold:
        """Return the hold as the decisions read it. It ends at midnight after its last day in ``zone``."""
        until = None
        if self.last_day is not None:
            after = self.last_day + dt.timedelta(days=1)
            until = dt.datetime(after.year, after.month, after.day, tzinfo=ZoneInfo(zone)).timestamp()
        return ClassHold(self.group, self.gpu, self.count, self.when, until)
