"""The schema of the rules: which keys there are, and which values they take."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.entry import Bytes, Cores, Entry, KindName, PositiveDuration, Priority, Section, Title
from gpuspawner.catalog.parsers import parse_group, parse_kind, parse_name, whole_number
from gpuspawner.catalog.rules.parsers import (
    amount_of,
    parse_date,
    parse_each,
    parse_everybody,
    parse_full,
    parse_per,
    parse_weight,
    parse_when,
)
from gpuspawner.core.rules import Per, Window

Gpus = Annotated[Fraction | None, BeforeValidator(amount_of("a number of GPUs", "4"))]
Hours = Annotated[Fraction | None, BeforeValidator(amount_of("a number of hours", "40"))]
Money = Annotated[Fraction | None, BeforeValidator(amount_of("an amount of money", "250"))]
Count = Annotated[int | None, BeforeValidator(whole_number(0, 10_000))]
Group = Annotated[str, BeforeValidator(parse_group)]
When = Annotated[Window | None, BeforeValidator(parse_when)]


class GpuLimitEntry(Entry):
    """How many GPUs at one time."""

    soft: Gpus = None
    hard: Gpus = None


class CountLimitEntry(Entry):
    """How many workspaces at one time."""

    soft: Count = None
    hard: Count = None


class CpuLimitEntry(Entry):
    """How many CPU cores at one time."""

    soft: Cores = None
    hard: Cores = None


class MemoryLimitEntry(Entry):
    """How much memory at one time."""

    soft: Bytes = None
    hard: Bytes = None


class HoursBudgetEntry(Entry):
    """How many GPU hours in a period."""

    per: Annotated[Per | None, BeforeValidator(parse_per)] = None
    soft: Hours = None
    hard: Hours = None


class CostBudgetEntry(Entry):
    """How much money in a period."""

    per: Annotated[Per | None, BeforeValidator(parse_per)] = None
    soft: Money = None
    hard: Money = None


class QuotaEntry(Entry):
    """Limits and budgets of each user, of one user, of a team or of everybody."""

    later = frozenset({"namespace"})
    each: Annotated[str | None, BeforeValidator(parse_each)] = None
    group: Annotated[str | None, BeforeValidator(parse_group)] = None
    user: Annotated[str | None, BeforeValidator(parse_group)] = None
    everybody: Annotated[bool | None, BeforeValidator(parse_everybody)] = None
    gpus: Annotated[GpuLimitEntry, Section] = GpuLimitEntry()
    types: Annotated[dict[KindName, Annotated[GpuLimitEntry, Section]], Section] = Field(default_factory=dict)
    workspaces: Annotated[CountLimitEntry, Section] = CountLimitEntry()
    cpu: Annotated[CpuLimitEntry, Section] = CpuLimitEntry()
    memory: Annotated[MemoryLimitEntry, Section] = MemoryLimitEntry()
    gpu_hours: Annotated[HoursBudgetEntry, Section] = HoursBudgetEntry()
    cost: Annotated[CostBudgetEntry, Section] = CostBudgetEntry()
    full: Annotated[bool | None, BeforeValidator(parse_full)] = None


class TeamEntry(Entry):
    """A group of the hub that is charged for what its members use."""

    title: Title = None
    weight: Annotated[Fraction | None, BeforeValidator(parse_weight)] = None
    priority: Priority = None


class HoursEntry(Entry):
    """When another policy judges."""

    when: When = None
    policy: Annotated[str | None, BeforeValidator(parse_name)] = None
    instead_of: Annotated[str | None, BeforeValidator(parse_name)] = None


class HoldEntry(Entry):
    """GPUs that are kept free for a group."""

    group: Annotated[str | None, BeforeValidator(parse_group)] = None
    gpu: Annotated[str | None, BeforeValidator(parse_kind)] = None
    count: Annotated[int | None, BeforeValidator(whole_number(1, 1024))] = None
    when: When = None
    until: Annotated[dt.date | None, BeforeValidator(parse_date)] = None


class MakeRoomEntry(Entry):
    """When who is over the soft share gives room."""

    after: PositiveDuration = None
