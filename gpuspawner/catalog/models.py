"""The catalog's schema: which keys there are, which values they take, and which keys wait for a later version.

Every key may be absent: what must be there, what is inherited by ``extends`` and what depends on two entries is
checked by :mod:`gpuspawner.catalog.build`. A null is no value: ``hard:`` with nothing behind it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuspawner.catalog.values import NO_GPU, OPENS, SSH
from gpuspawner.core.errors import quoted
from gpuspawner.core.policy import Mode
from gpuspawner.core.units import (
    BadValue,
    parse_bytes,
    parse_count,
    parse_cpu,
    parse_duration,
    parse_percent,
    parse_range,
)

T = TypeVar("T")
N = TypeVar("N", int, float)

LONGEST_NAME = 63
"""Characters in a name: as many as a Kubernetes label holds, where names will be written."""
MOST_PRICE = 1_000_000.0
MOST_COMPUTE = 100
SHORTEST_SAMPLE_SECONDS = 0.1
"""Arbitrary: an exec of the probe takes about as long."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_COMPUTE = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
_DNS = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+"
_RESOURCE = re.compile(
    rf"(?!(?:[a-z0-9.-]+\.)?kubernetes\.io/)(?!requests\.){_DNS}/[A-Za-z0-9](?:[-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
)
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"{_HOST}{_PATH}(?:/{_PATH})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
LONGEST_IMAGE = 500
LONGEST_RESOURCE = 253


def _is_none(data: Any) -> Any:
    return {} if data is None else data


Section = BeforeValidator(_is_none)
"""A mapping of which nothing is written (``cpu:``) is an empty one."""


def parse_name(value: object) -> str:
    """Read a name of a kind, template, policy or quota."""
    right = f"use small letters, digits and dashes, at most {LONGEST_NAME}, for example a100-80gb"
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not _NAME.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no name", right)
    return value


def _parse_kind(value: object) -> str:
    name = parse_name(value)
    if name == NO_GPU:
        raise BadValue(f"{quoted(name)} means no GPU", "choose another name for this kind")
    return name


def _text(longest: int) -> Callable[[object], str]:
    def parse(value: object) -> str:
        right = f"write one to {longest} characters of text; put it in quotes if it looks like something else"
        if not isinstance(value, str) or not value.strip():
            raise BadValue(f"{quoted(value)} is no text", right)
        if len(value) > longest or not all(c.isprintable() or c == "\n" for c in value):
            raise BadValue(f"{quoted(value)} is too long or has characters that cannot be shown", right)
        return value.strip()

    return parse


def _whole(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        right = f"write a whole number from {least} to {most}"
        try:
            return parse_count(value, least, most)
        except BadValue as error:
            raise BadValue(error.wrong, right) from None

    return parse


def _range_of(parse_end: Callable[[object], N]) -> Callable[[object], tuple[N, N]]:
    return lambda value: parse_range(value, parse_end)


def _parse_version(value: object) -> int:
    if value != 1 or isinstance(value, (bool, float)):
        raise BadValue(f"version {quoted(value)} is not known", "write version: 1")
    return 1


def _parse_compute(value: object) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < MOST_COMPUTE
    text = f"{value:.1f}" if number else value
    if not isinstance(text, str) or not _COMPUTE.fullmatch(text):
        raise BadValue(f"{quoted(value)} is no compute capability", "write it as NVIDIA does, for example 8.0")
    return text


def _parse_price(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_PRICE:
        raise BadValue(f"{quoted(value)} is no price", "write a plain number, the price of an hour, for example 2.10")
    return float(value)


def _parse_sample(value: object) -> float:
    seconds = parse_duration(value)
    if seconds < SHORTEST_SAMPLE_SECONDS:
        raise BadValue(f"{quoted(value)} would sample without pause", "write at least 0.1s; 60s is usual")
    return seconds


def _parse_positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise BadValue(f"{quoted(value)} is no time at all", "write a time above 0, for example 30m")
    return seconds


def _parse_seconds(value: object) -> int:
    return max(1, round(_parse_positive_duration(value)))


def _parse_threshold(value: object) -> float:
    percent, right = parse_percent(value), "write a percentage from 1%, for example 5%"
    if percent <= 0:
        raise BadValue(f"{quoted(value)} would make every GPU busy", right)
    if percent < 1:  # a fraction that was meant, as 0.05 for 5 %, would never end anything
        raise BadValue(f"{quoted(value)} is less than the 1 % that nvidia-smi counts by", right)
    return percent


def _parse_mode(value: object) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        right = "write observe (only record), warn (tell people) or enforce (stop)"
        raise BadValue(f"{quoted(value)} is no mode", right) from None


def _parse_yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"{quoted(value)} is neither yes nor no", "write true or false")
    return value


def _parse_opens(value: object) -> list[str]:
    right = "write a list of lab, vscode and ssh, the default first, for example [lab, vscode, ssh]"
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is not what a workspace can open", right)
    for item in value:
        if item not in OPENS:
            raise BadValue(f"{quoted(item)} is not what a workspace can open", right)
        if value.count(item) > 1:
            raise BadValue(f"{item} stands there twice", right)
    if value == [SSH]:
        raise BadValue("ssh alone leaves nothing for the browser to open", "write opens: [lab, ssh]")
    return value


def _parse_resource(value: object) -> str:
    right = "write it as nodes show it, for example nvidia.com/gpu or nvidia.com/mig-1g.10gb"
    if not isinstance(value, str) or len(value) > LONGEST_RESOURCE or not _RESOURCE.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no extended resource of Kubernetes", right)
    return value


def _parse_image(value: object) -> str:
    right = "write registry, name and tag, for example registry.example.org/ml/pytorch:2.9"
    if not isinstance(value, str) or len(value) > LONGEST_IMAGE or not _IMAGE.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no container image", right)
    return value


def _parse_warnings(value: object) -> list[float]:
    if not isinstance(value, list) or len(value) > 5:  # noqa: PLR2004 - a sixth mail is not read
        raise BadValue(f"{quoted(value)} is no list of at most 5 times", "write for example [1h, 10m]")
    return sorted({_parse_positive_duration(item) for item in value}, reverse=True)


def _parse_each(value: object) -> str:
    if value == "group":
        raise BadValue("each: group: not built yet in this version", "write each: user")
    if value != "user":
        raise BadValue(f"{quoted(value)} is not whom a quota can be for", "write each: user")
    return "user"


Name = Annotated[str, BeforeValidator(parse_name)]
KindName = Annotated[str, BeforeValidator(_parse_kind)]
Title = Annotated[str | None, BeforeValidator(_text(100))]
Bytes = Annotated[int | None, BeforeValidator(parse_bytes)]
Cores = Annotated[float | None, BeforeValidator(parse_cpu)]
Duration = Annotated[float | None, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float | None, BeforeValidator(_parse_positive_duration)]
Seconds = Annotated[int | None, BeforeValidator(_parse_seconds)]
Lifetimes = Annotated[tuple[int, int] | None, BeforeValidator(_range_of(_parse_seconds))]
GpuCount = Annotated[int, BeforeValidator(_whole(1, 1024))]
GpuCounts = Annotated[tuple[int, int], BeforeValidator(_range_of(_whole(1, 1024)))]


class Entry(BaseModel):
    """A mapping whose keys are known. ``later`` names the keys that product and design know, and this version not."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    later: ClassVar[frozenset[str]] = frozenset()


class AutoscaleEntry(Entry):
    """Nodes that a cluster starts once a pod waits for one: ``max`` GPUs in all, ``each`` on one node."""

    max: Annotated[int | None, BeforeValidator(_whole(1, 1024))] = None
    each: Annotated[int | None, BeforeValidator(_whole(1, 1024))] = None
    start: PositiveDuration = None
    labels: Annotated[dict[str, Annotated[str, BeforeValidator(_text(LONGEST_NAME))]], Section] = {}


class GpuEntry(Entry):
    """A kind of GPU. A share has ``of`` and ``shares``; any other has ``memory``."""

    later = frozenset({"groups"})
    title: Title = None
    match: Title = None
    memory: Bytes = None
    compute: Annotated[str | None, BeforeValidator(_parse_compute)] = None
    price: Annotated[float | None, BeforeValidator(_parse_price)] = None
    of: Annotated[str | None, BeforeValidator(parse_name)] = None
    shares: Annotated[int | None, BeforeValidator(_whole(2, 64))] = None
    resource: Annotated[str | None, BeforeValidator(_parse_resource)] = None
    autoscale: Annotated[AutoscaleEntry, Section] = AutoscaleEntry()


class BoundsEntry(Entry):
    """The least and the most that a request may ask."""

    cpu: Annotated[tuple[float, float] | None, BeforeValidator(_range_of(parse_cpu))] = None
    memory: Annotated[tuple[int, int] | None, BeforeValidator(_range_of(parse_bytes))] = None
    lifetime: Lifetimes = None


class DefaultEntry(Entry):
    """What a request gets that does not ask otherwise."""

    gpu: Annotated[str | None, BeforeValidator(parse_name)] = None
    count: Annotated[int | None, BeforeValidator(_whole(1, 1024))] = None
    cpu: Cores = None
    memory: Bytes = None
    lifetime: Seconds = None


class TemplateEntry(Entry):
    """What a workspace can be."""

    later = frozenset({"volumes", "ports", "tools", "substitutes", "needs", "groups"})
    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    title: Title = None
    description: Annotated[str | None, BeforeValidator(_text(2000))] = None
    image: Annotated[str | None, BeforeValidator(_parse_image)] = None
    profile: Annotated[str | None, BeforeValidator(_text(100))] = None
    opens: Annotated[list[str] | None, BeforeValidator(_parse_opens)] = None
    policy: Annotated[str | None, BeforeValidator(parse_name)] = None
    gpus: Annotated[dict[KindName, GpuCounts], Section] = {}
    bounds: Annotated[BoundsEntry, Section] = BoundsEntry()
    default: Annotated[DefaultEntry, Section] = DefaultEntry()


class IdleEntry(Entry):
    """When a workspace counts as idle, and how long it then has."""

    below: Annotated[float | None, BeforeValidator(_parse_threshold)] = None
    for_: PositiveDuration = Field(default=None, alias="for")
    sample: Annotated[float | None, BeforeValidator(_parse_sample)] = None
    grace: PositiveDuration = None


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

    times: Annotated[int | None, BeforeValidator(_whole(0, 100))] = None
    each: PositiveDuration = None


class ExtendEntry(Entry):
    """How far a deadline may be moved, and how long before it people are told."""

    each: PositiveDuration = None
    total: Duration = None
    warn: Annotated[list[float] | None, BeforeValidator(_parse_warnings)] = None


class PreemptionEntry(Entry):
    """What follows when the cluster takes a workspace's GPU."""

    later = frozenset({"protected", "grace"})
    back_in_queue: Annotated[bool | None, BeforeValidator(_parse_yes)] = None


class PolicyEntry(Entry):
    """A lifecycle policy."""

    later = frozenset({"queue"})
    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    mode: Annotated[Mode | None, BeforeValidator(_parse_mode)] = None
    idle: Annotated[IdleEntry, Section] = IdleEntry()
    also_counts: Annotated[AlsoCountsEntry, Section] = AlsoCountsEntry()
    activity: Annotated[ActivityEntry, Section] = ActivityEntry()
    keep: Annotated[KeepEntry, Section] = KeepEntry()
    extend: Annotated[ExtendEntry, Section] = ExtendEntry()
    preemption: Annotated[PreemptionEntry, Section] = PreemptionEntry()
    lifetime: Lifetimes = None


class GpuQuotaEntry(Entry):
    """How many GPUs. A hard limit refuses what goes beyond it."""

    later = frozenset({"soft"})
    hard: Annotated[int | None, BeforeValidator(_whole(1, 1024))] = None


class QuotaEntry(Entry):
    """A limit for each user."""

    later = frozenset({"group", "namespace", "types", "workspaces", "gpu_hours"})
    each: Annotated[str | None, BeforeValidator(_parse_each)] = None
    gpus: Annotated[GpuQuotaEntry, Section] = GpuQuotaEntry()


class CatalogEntry(Entry):
    """The whole file."""

    later = frozenset({"timezone", "hours", "holds"})
    version: Annotated[int | None, BeforeValidator(_parse_version)] = None
    gpus: Annotated[dict[KindName, Annotated[GpuEntry, Section]], Section] = {}
    simulated: Annotated[dict[KindName, GpuCount], Section] = {}
    templates: Annotated[dict[Name, Annotated[TemplateEntry, Section]], Section] = {}
    policies: Annotated[dict[Name, Annotated[PolicyEntry, Section]], Section] = {}
    quotas: Annotated[dict[Name, Annotated[QuotaEntry, Section]], Section] = {}
