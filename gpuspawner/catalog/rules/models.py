"""The schema of the rules: which keys there are, and which values they take."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.entry import Bytes, Cores, Entry, KindName, PositiveDuration, Priority, Section, Title
from gpuspawner.catalog.parsers import WholeNumber, parse_group, parse_kind, parse_name
from gpuspawner.catalog.rules.parsers import (
    amount_of,
    parse_date,
    parse_each,
    parse_everybody,
    parse_full,
    parse_hours,
    parse_per,
    parse_weight,
    parse_when,
)
from gpuspawner.core.rules import Per, Window

Gpus = Annotated[Fraction | None, BeforeValidator(amount_of("a number of GPUs", "4"))]
Hours = Annotated[Fraction | None, BeforeValidator(amount_of("a number of hours", "40"))]
Money = Annotated[Fraction | None, BeforeValidator(amount_of("an amount of money", "250"))]
Count = Annotated[int | None, BeforeValidator(WholeNumber(0, 10_000))]
Group = Annotated[str, BeforeValidator(parse_group)]
When = Annotated[Window | None, BeforeValidator(parse_when)]


class GpuLimitEntry(Entry):
    """How many GPUs at one time."""

    soft: Gpus = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Gpus = None
    """The limit: what would go beyond is refused."""


class CountLimitEntry(Entry):
    """How many workspaces at one time."""

    soft: Count = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Count = None
    """The limit: what would go beyond is refused."""


class CpuLimitEntry(Entry):
    """How many CPU cores at one time."""

    soft: Cores = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Cores = None
    """The limit: what would go beyond is refused."""


class MemoryLimitEntry(Entry):
    """How much memory at one time."""

    soft: Bytes = None
    """One's share: beyond it one gets what is free, and goes later."""
    hard: Bytes = None
    """The limit: what would go beyond is refused."""


class HoursBudgetEntry(Entry):
    """How many GPU hours in a period."""

    per: Annotated[Per | None, BeforeValidator(parse_per)] = None
    """The period: day, week or month, in the catalog's time zone."""
    soft: Hours = None
    """Beyond it one is told, and goes later."""
    hard: Hours = None
    """The limit: a workspace is given no longer life than it leaves."""


class CostBudgetEntry(Entry):
    """How much money in a period."""

    per: Annotated[Per | None, BeforeValidator(parse_per)] = None
    """The period: day, week or month, in the catalog's time zone."""
    soft: Money = None
    """Beyond it one is told, and goes later."""
    hard: Money = None
    """The limit: a workspace is given no longer life than it leaves."""


class QuotaEntry(Entry):
    """Limits and budgets of each user, of one user, of a team or of everybody."""

    later = MappingProxyType({"namespace": "remove it"})
    each: Annotated[str | None, BeforeValidator(parse_each)] = None
    """`user`: it limits each user by themselves; with `group`, each of that team."""
    group: Annotated[str | None, BeforeValidator(parse_group)] = None
    """The team that it limits together."""
    user: Annotated[str | None, BeforeValidator(parse_group)] = None
    """The one user whom it limits."""
    everybody: Annotated[bool | None, BeforeValidator(parse_everybody)] = None
    """`true`: it limits all together."""
    gpus: Annotated[GpuLimitEntry, Section] = GpuLimitEntry()
    """GPUs at once, as their kinds count."""
    types: Annotated[dict[KindName, Annotated[GpuLimitEntry, Section]], Section] = Field(default_factory=dict)
    """The same of one kind."""
    workspaces: Annotated[CountLimitEntry, Section] = CountLimitEntry()
    """Workspaces at once."""
    cpu: Annotated[CpuLimitEntry, Section] = CpuLimitEntry()
    """CPU cores at once."""
    memory: Annotated[MemoryLimitEntry, Section] = MemoryLimitEntry()
    """Memory at once."""
    gpu_hours: Annotated[HoursBudgetEntry, Section] = HoursBudgetEntry()
    """GPU hours in a period."""
    cost: Annotated[CostBudgetEntry, Section] = CostBudgetEntry()
    """Money in a period, by the prices of the kinds."""
    full: Annotated[bool | None, BeforeValidator(parse_full)] = None
    """What follows where others have filled it: wait or refuse. Default: wait."""


class TeamEntry(Entry):
    """A group of the hub that is charged for what its members use."""

    title: Title = None
    """What people read. Default: the group's name."""
    weight: Annotated[Fraction | None, BeforeValidator(parse_weight)] = None
    """In the queue its use is divided by this. Default: 1."""
    priority: Priority = None
    """A higher one goes first in the queue. Default: 0."""


class HoursEntry(Entry):
    """When another policy judges."""

    when: Annotated[Window | None, BeforeValidator(parse_hours)] = None
    """The part of the week, `Mon-Fri 20:00-07:00`, or whole days, `2026-12-24, 2026-12-25`."""
    policy: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The policy that judges then."""
    instead_of: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The policy whose workspaces it judges."""


class HoldEntry(Entry):
    """GPUs that are kept free for a group."""

    group: Annotated[str | None, BeforeValidator(parse_group)] = None
    """For whom."""
    gpu: Annotated[str | None, BeforeValidator(parse_kind)] = None
    """Which kind."""
    count: Annotated[int | None, BeforeValidator(WholeNumber(1, 1024))] = None
    """How many."""
    when: When = None
    """The part of the week."""
    until: Annotated[dt.date | None, BeforeValidator(parse_date)] = None
    """The last day. Default: without end."""


class MakeRoomEntry(Entry):
    """When who is over the soft share gives room."""

    after: PositiveDuration = None
    """Once somebody under their soft share has waited for so long."""
