"""The catalog's schema: which keys there are, which values they take, and which keys wait for a later version.

Every key may be absent: what must be there, what is inherited by ``extends`` and what depends on two entries is
checked by :mod:`gpuspawner.catalog.building.build`. A null is no value: ``hard:`` with nothing behind it is refused.
"""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.claims.models import ClaimEntry
from gpuspawner.catalog.clusters import ClusterEntry, Labels
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
    Packages,
    PositiveDuration,
    Priority,
    Seconds,
    Section,
    Sections,
    Title,
)
from gpuspawner.catalog.parsers import (
    TextOf,
    WholeNumber,
    parse_activity_metric,
    parse_compute,
    parse_http_url,
    parse_image,
    parse_kinds,
    parse_label,
    parse_label_value,
    parse_metric,
    parse_mode,
    parse_name,
    parse_on_stop_timeout,
    parse_opens,
    parse_own_images,
    parse_path,
    parse_price,
    parse_resource,
    parse_sample,
    parse_share,
    parse_soft_evidence,
    parse_threshold,
    parse_utilization_metric,
    parse_version,
    parse_warnings,
    parse_yes,
    range_of,
)
from gpuspawner.catalog.rules.models import (
    Group,
    HoldEntry,
    HoursEntry,
    MakeRoomEntry,
    QuotaEntry,
    TeamEntry,
)
from gpuspawner.catalog.rules.parsers import (
    parse_closed,
    parse_counts,
    parse_currency,
    parse_others_wait,
    parse_timezone,
)
from gpuspawner.catalog.rules.schedulers import SchedulerEntry
from gpuspawner.core.idle.policy import Mode
from gpuspawner.core.units import parse_bytes, parse_cpu


class AutoscaleEntry(Entry):
    """Nodes that a cluster starts once a pod waits for one: ``max`` GPUs in all, ``each`` on one node."""

    max: Annotated[int | None, BeforeValidator(WholeNumber(1, 1024))] = None
    """The most GPUs of this kind that such nodes have together."""
    each: Annotated[int | None, BeforeValidator(WholeNumber(1, 1024))] = None
    """How many one such node has. Default: 1."""
    start: PositiveDuration = None
    """How long a node takes until its GPUs can be used."""
    labels: Annotated[
        dict[Annotated[str, BeforeValidator(parse_label)], Annotated[str, BeforeValidator(parse_label_value)]], Section
    ] = Field(default_factory=dict)
    """What labels the new nodes will have. Default: nvidia.com/gpu.product, as `match` names it."""


class GpuEntry(Entry):
    """A kind of GPU. A share has ``of`` and ``shares``; any other has ``memory``.

    Pods ask for a resource, or they claim devices: never both.
    """

    title: Title = None
    """What people read. Default: the kind's own name."""
    match: Title = None
    """The name that `nvidia-smi -L` shows, or on Kubernetes the label nvidia.com/gpu.product; `*` is any characters."""
    memory: Bytes = None
    """Of one GPU. Default: of a share, its part of the whole GPU's."""
    compute: Annotated[str | None, BeforeValidator(parse_compute)] = None
    """Its compute capability. Default: of a share, the whole GPU's."""
    price: Annotated[float | None, BeforeValidator(parse_price)] = None
    """Of an hour of one. Money is shown only where a price is set."""
    of: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The kind whose GPUs it divides, where it is a share."""
    shares: Annotated[int | None, BeforeValidator(WholeNumber(2, 64))] = None
    """Into how many shares one of those GPUs is divided."""
    memory_enforced: Annotated[bool | None, BeforeValidator(parse_yes)] = None
    """Whether something bounds the memory of each share, such as limits of MPS or HAMi: only then it meets a need for
    memory. Default: false."""
    resource: Annotated[str | None, BeforeValidator(parse_resource)] = None
    """What nodes call it, where it is no whole GPU or no label tells its kind. Default: nvidia.com/gpu."""
    claim: Annotated[ClaimEntry, Section] = ClaimEntry()
    """How pods claim it (dynamic resource allocation), in place of match and resource. Default: they do not."""
    autoscale: Annotated[AutoscaleEntry, Section] = AutoscaleEntry()
    """The nodes that the cluster's autoscaler starts for it."""
    spot: Annotated[bool | None, BeforeValidator(parse_yes)] = None
    """Whether its GPUs are those of spot nodes, which the cloud may take back at any time: given to those alone who
    ask for this kind or tick it. Kinds without it have none of them. Default: false."""
    groups: Groups = None
    """The groups of the hub that alone see it; for others it does not exist. Default: everybody."""
    counts: Annotated[Fraction | None, BeforeValidator(parse_counts)] = None
    """How much one counts in quotas and GPU hours. Default: 1; of a share, its part; of MIG, its slices of seven."""


class BoundsEntry(Entry):
    """The least and the most that a request may ask."""

    cpu: Annotated[tuple[float, float] | None, BeforeValidator(range_of(parse_cpu))] = None
    """CPU cores. Default: 1-8."""
    memory: Annotated[tuple[int, int] | None, BeforeValidator(range_of(parse_bytes))] = None
    """Memory. Default: 1GiB-32GiB."""
    lifetime: Lifetimes = None
    """How long it may live, which its policy may narrow. Default: 30m-24h."""


class DefaultEntry(Entry):
    """What a request gets that does not ask otherwise."""

    gpu: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The kind of GPU; `none` is none. Default: the first of `gpus`."""
    count: Annotated[int | None, BeforeValidator(WholeNumber(1, 1024))] = None
    """How many. Default: the least that `gpus` allows."""
    cpu: Cores = None
    """CPU cores. Default: 2."""
    memory: Bytes = None
    """Memory. Default: 8GiB."""
    lifetime: Seconds = None
    """How long it lives. Default: 8h."""


class GuaranteeEntry(Entry):
    """Which percentage of the CPU and memory that a request asks is its own; it uses the rest where it is free."""

    cpu: Annotated[float | None, BeforeValidator(parse_share)] = None
    """Of the CPU cores. Default: 100%."""
    memory: Annotated[float | None, BeforeValidator(parse_share)] = None
    """Of the memory. Default: 100%."""


class NeedsEntry(Entry):
    """The least that a GPU must have, whichever kind it is."""

    memory: Bytes = None
    """Memory of one GPU."""
    compute: Annotated[str | None, BeforeValidator(parse_compute)] = None
    """Compute capability of the GPU."""


class OnStopEntry(Entry):
    """What runs in a workspace before the service ends it, then its user's own `~/.gpuspawner/on-stop`."""

    command: Annotated[str | None, BeforeValidator(TextOf(2000))] = None
    """A shell command, run in the home as the workspace's user. Default: none."""
    timeout: Annotated[float | None, BeforeValidator(parse_on_stop_timeout)] = None
    """How long both may take, up to 10m. So much later the workspace may end. Default: 60s."""


class TemplateEntry(Entry):
    """What a workspace can be."""

    later = MappingProxyType({"volumes": "remove it", "ports": "remove it"})
    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The template from which it has all that it does not write itself."""
    title: Title = None
    """What people read. Default: the template's own name."""
    description: Annotated[str | None, BeforeValidator(TextOf(2000))] = None
    """What the form says of it."""
    image: Annotated[str | None, BeforeValidator(parse_image)] = None
    """The image of its pods. Default: the hub's own."""
    own_images: Annotated[str | None, BeforeValidator(parse_own_images)] = None
    """On Kubernetes: which images people may bring, as a pattern of whole names with the registry. Default: none."""
    profile: Annotated[str | None, BeforeValidator(TextOf(100))] = None
    """The slug of a profile in KubeSpawner's `profile_list`, whose settings apply first."""
    opens: Annotated[list[str] | None, BeforeValidator(parse_opens)] = None
    """What its workspaces open, the default first. Default: as `c.Spawner.default_url` says."""
    policy: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The policy by which its workspaces are judged. Default: default."""
    gpus: Annotated[dict[KindName, GpuCounts], Section] = Field(default_factory=dict)
    """The kinds of GPU that may be asked for, and how many of each at once. Default: none."""
    data: Labels = None
    """The data that it works on: clusters that have all of it come first. Default: none."""
    bounds: Annotated[BoundsEntry, Section] = BoundsEntry()
    """What people may ask for."""
    default: Annotated[DefaultEntry, Section] = DefaultEntry()
    """What they get without asking."""
    guarantee: Annotated[GuaranteeEntry, Section] = GuaranteeEntry()
    """On Kubernetes: how much of that is theirs alone."""
    groups: Groups = None
    """The groups of the hub that alone see it; for others it does not exist. Default: everybody."""
    priority: Priority = None
    """A higher one goes first in the queue. Default: 0."""
    substitutes: Annotated[dict[KindName, Annotated[list[str], BeforeValidator(parse_kinds)]], Section] = Field(
        default_factory=dict
    )
    """By the kind asked for: which others the form offers, given to those alone who tick them, in this order."""
    needs: Annotated[NeedsEntry, Section] = NeedsEntry()
    """What any of its GPUs must have."""
    on_stop: Annotated[OnStopEntry, Section] = OnStopEntry()
    """What runs before the end."""
    tools: Annotated[dict[Name, Packages], Section] = Field(default_factory=dict)
    """Lists of packages to tick, by name: each becomes a kernel with an environment of its own in the home. Default:
    none."""


class IdleEntry(Entry):
    """When a workspace counts as idle, and how long it then has."""

    below: Annotated[float | None, BeforeValidator(parse_threshold)] = None
    """A GPU that is used less than this is idle. Default: 5%."""
    for_: PositiveDuration = Field(default=None, alias="for")
    """How long all of its GPUs must be known idle before the warning. Default: 30m."""
    sample: Annotated[float | None, BeforeValidator(parse_sample)] = None
    """How often they are measured. Default: 60s."""
    grace: PositiveDuration = None
    """How long it goes on after the warning. Default: 10m."""
    start_up: Duration = None
    """A workspace younger than this is never idle. Default: 60s."""
    soft: Duration = None
    """How long after the last GPU work soft evidence, and work that may have been missed, count as use. Default: 1h."""


class ActivityEntry(Entry):
    """When a workspace without a GPU counts as idle, and how long it then has."""

    none_for: PositiveDuration = None
    """How long it must be known to be without any activity before the warning. Default: 2h."""
    grace: PositiveDuration = None
    """How long it goes on after the warning. Default: 10m."""


class KeepEntry(Entry):
    """How often, and for how long each time, an idle workspace may be kept."""

    times: Annotated[int | None, BeforeValidator(WholeNumber(0, 100))] = None
    """How often. Default: 3."""
    each: PositiveDuration = None
    """For how long each time. Default: 2h."""


class ExtendEntry(Entry):
    """How far a deadline may be moved, and how long before it people are told."""

    each: PositiveDuration = None
    """How far each time. Default: 4h."""
    total: Duration = None
    """How far in all; 0 lets nobody. Default: 24h."""
    warn: Annotated[list[float] | None, BeforeValidator(parse_warnings)] = None
    """How long before the deadline people are told. Default: [1h, 10m]."""
    others_wait: Annotated[bool | None, BeforeValidator(parse_others_wait)] = None
    """Whether it may be extended while others wait for the same GPUs: allow or refuse. Default: allow."""


class PreemptionEntry(Entry):
    """What follows when a stronger claim needs a workspace's GPU, or the cluster takes it."""

    protected: Duration = None
    """A workspace younger than this is not ended for a stronger claim. Default: 30m."""
    grace: PositiveDuration = None
    """Between the notice and the end. Default: 5m."""
    back_in_queue: Annotated[bool | None, BeforeValidator(parse_yes)] = None
    """Whether it returns to its place in the queue and starts again by itself. Default: true."""


class QueueEntry(Entry):
    """How long people wait at most because others have used less."""

    wait: PositiveDuration = None
    """Who has waited longer goes before those who have used less. Default: 12h."""


class PolicyEntry(Entry):
    """A lifecycle policy."""

    extends: Annotated[str | None, BeforeValidator(parse_name)] = None
    """The policy from which it has all that it does not write itself."""
    mode: Annotated[Mode | None, BeforeValidator(parse_mode)] = None
    """What follows where a workspace is idle: observe records, warn tells people, enforce stops. Default: observe."""
    idle: Annotated[IdleEntry, Section] = IdleEntry()
    """How idleness of GPUs is judged."""
    also_counts: Annotated[list[str] | None, BeforeValidator(parse_soft_evidence)] = None
    """The soft evidence that counts as use for a while: cpu, kernel, terminal, ssh, editor. Default: [cpu]."""
    activity: Annotated[ActivityEntry, Section] = ActivityEntry()
    """How workspaces without a GPU are judged. Where it is not written, they are not."""
    keep: Annotated[KeepEntry, Section] = KeepEntry()
    """What its user may answer to a warning."""
    extend: Annotated[ExtendEntry, Section] = ExtendEntry()
    """How its end may be moved."""
    preemption: Annotated[PreemptionEntry, Section] = PreemptionEntry()
    """What holds where others need its GPUs more."""
    queue: Annotated[QueueEntry, Section] = QueueEntry()
    """What holds while it waits."""
    claim: PositiveDuration = None
    """Within it somebody must come to a workspace with GPUs that came out of the queue while its user was away: open
    it in a browser, connect by SSH, or use a GPU. Until then its idle time does not count, and halfway its user is
    warned. Then `enforce` gives it back; under the other modes idle time counts from there. Default: 30m."""
    ready_at: Annotated[bool | None, BeforeValidator(parse_yes)] = None
    """Whether a workspace is made ready at a time while this policy judges. With `hours`, false says when not, as on
    holidays. Default: true."""
    lifetime: Lifetimes = None
    """The shortest and longest life of its workspaces. Default: 1m-30d."""


class ReadingsEntry(Entry):
    """Who else measures GPUs, beside the probe in each workspace."""

    prometheus: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """The address of a Prometheus that scrapes DCGM exporter. What it saw counts beside the probe's own readings."""
    activity: Annotated[str | None, BeforeValidator(parse_activity_metric)] = None
    """The exporter's metric of engine activity, 0 to 1, an average over `interval`; `none` where it exports no such
    metric. Default: DCGM_FI_PROF_GR_ENGINE_ACTIVE."""
    utilization: Annotated[str | None, BeforeValidator(parse_utilization_metric)] = None
    """Its metric of a GPU's utilization, 0 to 100. Default: DCGM_FI_DEV_GPU_UTIL."""
    encoder: Annotated[str | None, BeforeValidator(parse_utilization_metric)] = None
    """Its metric of the encoder's utilization, 0 to 100. Default: DCGM_FI_DEV_ENC_UTIL."""
    decoder: Annotated[str | None, BeforeValidator(parse_utilization_metric)] = None
    """Its metric of the decoder's utilization, 0 to 100. Default: DCGM_FI_DEV_DEC_UTIL."""
    energy: Annotated[str | None, BeforeValidator(parse_metric)] = None
    """Its counter of a GPU's energy. One that stands still shows that the exporter is frozen. Default:
    DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION."""
    interval: PositiveDuration = None
    """How often the exporter collects, as its DCGM_EXPORTER_INTERVAL says. Default: 30s."""
    token_file: Annotated[str | None, BeforeValidator(parse_path)] = None
    """A file with the token that Prometheus asks for. Default: it asks for none."""


class CatalogEntry(Entry):
    """The whole file."""

    version: Annotated[int | None, BeforeValidator(parse_version)] = None
    """Of the file: 1. It must be written."""
    timezone: Annotated[str | None, BeforeValidator(parse_timezone)] = None
    """In which hours, days, weeks and months are meant. Default: UTC."""
    contact: Annotated[str | None, BeforeValidator(TextOf(300))] = None
    """Whom people ask for more, as refusals tell them."""
    currency: Annotated[str | None, BeforeValidator(parse_currency)] = None
    """In which `price` and budgets of `cost` are, as it stands before an amount. Default: none is shown."""
    gpus: Annotated[dict[KindName, Annotated[GpuEntry, Section]], Section] = Field(default_factory=dict)
    """The kinds of GPU that people may ask for."""
    clusters: Annotated[dict[Name, Annotated[ClusterEntry, Section]], Section] = Field(default_factory=dict)
    """The clusters in which workspaces may start, the first preselected. Default: the hub's own alone."""
    simulated: Annotated[dict[KindName, GpuCount], Section] = Field(default_factory=dict)
    """How many GPUs of which kind to simulate, where the machine has none."""
    templates: Annotated[dict[Name, Annotated[TemplateEntry, Section]], Section] = Field(default_factory=dict)
    """What a workspace can be; the first is preselected. At least one must be written."""
    policies: Annotated[dict[Name, Annotated[PolicyEntry, Section]], Section] = Field(default_factory=dict)
    """What becomes of workspaces. Templates that name none have `default`, which is there unwritten."""
    teams: Annotated[dict[Group, Annotated[TeamEntry, Section]], Section] = Field(default_factory=dict)
    """Groups of the hub that are charged for what their members use."""
    quotas: Annotated[dict[Name, Annotated[QuotaEntry, Section]], Section] = Field(default_factory=dict)
    """What is held at once, and used in a period, at most. Without one there is no limit."""
    hours: Annotated[list[HoursEntry], Sections] = Field(default_factory=list)
    """Which policy judges at which hours of the week, or on which dates."""
    closed: Annotated[list[dt.date], BeforeValidator(parse_closed)] = Field(default_factory=list)
    """Days, such as holidays, on which no workspace is made ready at a time, whatever its policy."""
    holds: Annotated[list[HoldEntry], Sections] = Field(default_factory=list)
    """GPUs that are kept free for a group at some hours of the week."""
    make_room: Annotated[MakeRoomEntry, Section] = MakeRoomEntry()
    """When those over their soft share give room to those under theirs. Default: never."""
    readings: Annotated[ReadingsEntry, Section] = ReadingsEntry()
    """Who else measures GPUs. Default: the probe in each workspace alone."""
    scheduler: Annotated[SchedulerEntry, Section] = SchedulerEntry()
    """Who owns the queue. Default: gpuspawner."""
