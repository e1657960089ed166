"""The catalog's schema: which keys there are, which values they take, and which keys wait for a later version.

Every key may be absent: what must be there, what is inherited by ``extends`` and what depends on two entries is
checked by :mod:`gpuspawner.catalog.building.build`. A null is no value: ``hard:`` with nothing behind it is refused.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.entry import (
    Bytes,
    Cores,
    Duration,
    Entry,
    GpuCount,
    GpuCounts,
    Groups,
    KindName,
    Lifetimes,
    Name,
    PositiveDuration,
    Priority,
    Seconds,
    Section,
    Sections,
    Title,
)
from gpuspawner.catalog.parsers import (
    LONGEST_NAME,
    parse_compute,
    parse_image,
    parse_kinds,
    parse_mode,
    parse_name,
    parse_opens,
    parse_price,
    parse_resource,
    parse_sample,
    parse_share,
    parse_threshold,
    parse_version,
    parse_warnings,
    parse_yes,
    range_of,
    text_of,
    whole_number,
)
from gpuspawner.catalog.rules.models import (
    Group,
    HoldEntry,
    HoursEntry,
    MakeRoomEntry,
    QuotaEntry,
    TeamEntry,
)
from gpuspawner.catalog.rules.parsers import parse_counts, parse_others_wait, parse_timezone
from gpuspawner.core.idle.policy import Mode
from gpuspawner.core.units import parse_bytes, parse_cpu


class AutoscaleEntry(Entry):
    """Nodes that a cluster starts once a pod waits for one: ``max`` GPUs in all, ``each`` on one node."""

    max: Annotated[int | None, BeforeValidator(whole_number(1, 1024))] = None
    each: Annotated[int | None, BeforeValidator(whole_number(1, 1024))] = None
    start: PositiveDuration = None
    labels: Annotated[dict[str, Annotated[str, BeforeValidator(text_of(LONGEST_NAME))]], Section] = Field(
        default_factory=dict
    )


class GpuEntry(Entry):
    """A kind of GPU. A share has ``of`` and ``shares``; any other has ``memory``."""

    title: Title = None
    match: Title = None
    memory: Bytes = None
    compute: Annotated[str | None, BeforeValidator(parse_compute)] = None
    price: Annotated[float | None, BeforeValidator(parse_price)] = None
    of: Annotated[str | None, BeforeValidator(parse_name)] = None
    shares: Annotated[int | None, BeforeValidator(whole_number(2, 64))] = None
    resource: Annotated[str | None, BeforeValidator(parse_resource)] = None
    autoscale: Annotated[AutoscaleEntry, Section] = AutoscaleEntry()
    groups: Groups = None
    counts: Annotated[Fraction | None, BeforeValidator(parse_counts)] = None


class BoundsEntry(Entry):
    """The least and the most that a request may ask."""

    cpu: Annotated[tuple[float, float] | None, BeforeValidator(range_of(parse_cpu))] = None
    memory: Annotated[tuple[int, int] | None, BeforeValidator(range_of(parse_bytes))] = None
    lifetime: Lifetimes = None


class DefaultEntry(Entry):
    """What a request gets that does not ask otherwise."""

    gpu: Annotated[str | None, BeforeValidator(parse_name)] = None
    count: Annotated[int | None, BeforeValidator(whole_number(1, 1024))] = None
    cpu: Cores = None
    memory: Bytes = None
    lifetime: Seconds = None


class GuaranteeEntry(Entry):
    """Which percentage of the CPU and memory that a request asks is its own; it uses the rest where it is free."""

    cpu: Annotated[float | None, BeforeValidator(parse_share)] = None
    memory: Annotated[float | None, BeforeValidator(parse_share)] = None


class NeedsEntry(Entry):
    """The least that a GPU must have, whichever kind it is."""

    memory: Bytes = None
    compute: Annotated[str | None, BeforeValidator(parse_compute)] = None


class TemplateEntry(Entry):
    """What a workspace can be."""

    later = frozenset({"volumes", "ports", "tools"})
    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    title: Title = None
    description: Annotated[str | None, BeforeValidator(text_of(2000))] = None
    image: Annotated[str | None, BeforeValidator(parse_image)] = None
    profile: Annotated[str | None, BeforeValidator(text_of(100))] = None
    opens: Annotated[list[str] | None, BeforeValidator(parse_opens)] = None
    policy: Annotated[str | None, BeforeValidator(parse_name)] = None
    gpus: Annotated[dict[KindName, GpuCounts], Section] = Field(default_factory=dict)
    bounds: Annotated[BoundsEntry, Section] = BoundsEntry()
    default: Annotated[DefaultEntry, Section] = DefaultEntry()
    guarantee: Annotated[GuaranteeEntry, Section] = GuaranteeEntry()
    groups: Groups = None
    priority: Priority = None
    substitutes: Annotated[dict[KindName, Annotated[list[str], BeforeValidator(parse_kinds)]], Section] = Field(
        default_factory=dict
    )
    needs: Annotated[NeedsEntry, Section] = NeedsEntry()


class IdleEntry(Entry):
    """When a workspace counts as idle, and how long it then has."""

    below: Annotated[float | None, BeforeValidator(parse_threshold)] = None
    for_: PositiveDuration = Field(default=None, alias="for")
    sample: Annotated[float | None, BeforeValidator(parse_sample)] = None
    grace: PositiveDuration = None
    start_up: Duration = None


class AlsoCountsEntry(Entry):
    """Softer evidence, and how long each may hold an idle GPU."""

    cpu: Duration = None
    kernel: Duration = None
    terminal: Duration = None
    ssh: Duration = None
    editor: Duration = None


class ActivityEntry(Entry):
    """When a workspace without a GPU counts as idle, and how long it then has."""

    none_for: PositiveDuration = None
    grace: PositiveDuration = None


class KeepEntry(Entry):
    """How often, and for how long each time, an idle workspace may be kept."""

    times: Annotated[int | None, BeforeValidator(whole_number(0, 100))] = None
    each: PositiveDuration = None


class ExtendEntry(Entry):
    """How far a deadline may be moved, and how long before it people are told."""

    each: PositiveDuration = None
    total: Duration = None
    warn: Annotated[list[float] | None, BeforeValidator(parse_warnings)] = None
    others_wait: Annotated[bool | None, BeforeValidator(parse_others_wait)] = None


class PreemptionEntry(Entry):
    """What follows when a stronger claim needs a workspace's GPU, or the cluster takes it."""

    protected: Duration = None
    grace: PositiveDuration = None
    back_in_queue: Annotated[bool | None, BeforeValidator(parse_yes)] = None


class QueueEntry(Entry):
    """How long people wait at most because others have used less."""

    wait: PositiveDuration = None


class PolicyEntry(Entry):
    """A lifecycle policy."""

    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    mode: Annotated[Mode | None, BeforeValidator(parse_mode)] = None
    idle: Annotated[IdleEntry, Section] = IdleEntry()
    also_counts: Annotated[AlsoCountsEntry, Section] = AlsoCountsEntry()
    activity: Annotated[ActivityEntry, Section] = ActivityEntry()
    keep: Annotated[KeepEntry, Section] = KeepEntry()
    extend: Annotated[ExtendEntry, Section] = ExtendEntry()
    preemption: Annotated[PreemptionEntry, Section] = PreemptionEntry()
    queue: Annotated[QueueEntry, Section] = QueueEntry()
    lifetime: Lifetimes = None


class CatalogEntry(Entry):
    """The whole file."""

    version: Annotated[int | None, BeforeValidator(parse_version)] = None
    timezone: Annotated[str | None, BeforeValidator(parse_timezone)] = None
    contact: Annotated[str | None, BeforeValidator(text_of(300))] = None
    gpus: Annotated[dict[KindName, Annotated[GpuEntry, Section]], Section] = Field(default_factory=dict)
    simulated: Annotated[dict[KindName, GpuCount], Section] = Field(default_factory=dict)
    templates: Annotated[dict[Name, Annotated[TemplateEntry, Section]], Section] = Field(default_factory=dict)
    policies: Annotated[dict[Name, Annotated[PolicyEntry, Section]], Section] = Field(default_factory=dict)
    teams: Annotated[dict[Group, Annotated[TeamEntry, Section]], Section] = Field(default_factory=dict)
    quotas: Annotated[dict[Name, Annotated[QuotaEntry, Section]], Section] = Field(default_factory=dict)
    hours: Annotated[list[HoursEntry], Sections] = Field(default_factory=list)
    holds: Annotated[list[HoldEntry], Sections] = Field(default_factory=list)
    make_room: Annotated[MakeRoomEntry, Section] = MakeRoomEntry()
