"""Models of the catalog: what administrators write, and the catalog that the rest of gpuspawner reads.

``gpuspawner.core.fields`` says how a field becomes a key. Models of policies, GPU kinds, device claims and rules are in
``core``, because the decisions read them as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from gpuspawner.catalog.cluster_models import (
    Cluster,
    HttpSchedulerAddress,
    KueueQueues,
    PodQueues,
    SchedulerChoice,
)
from gpuspawner.catalog.profile_options import Menu
from gpuspawner.catalog.quota_models import Hold, QuotaLimits
from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import Internal, Reader, Required, section, text_reader, write_nothing
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.number_fields import (
    Bytes,
    BytesRange,
    ComputeCapability,
    Cores,
    CoresRange,
    Days,
    GpuCount,
    GpuCountRange,
    GuaranteedPercent,
    LifetimeRange,
    OnStopTimeout,
    Priority,
    Seconds,
    Version,
)
from gpuspawner.core.rules import Hours, MakeRoom, Rules, Team
from gpuspawner.core.text_fields import (
    NAME,
    Currency,
    DataNames,
    FilePath,
    GroupName,
    GroupNames,
    Image,
    ImagePattern,
    KindName,
    KindNames,
    LongText,
    MetricName,
    Name,
    Packages,
    TimeZone,
    Title,
    Url,
)
from gpuspawner.core.units import GIBIBYTE, BadValue

NO_GPU = "none"
"""The name of "no GPU" in forms, links and the API. No GPU kind may have this name."""
ANY_GPU = "any"
"""The name of "any GPU that is large enough" there. No GPU kind may have this name either."""
SSH = "ssh"
PAGES = {"lab": "/lab", "vscode": "/vscode/"}
"""The pages of a workspace that a browser can open, with their path below the workspace's address."""
OPENS = (*PAGES, SSH)
"""Every way into a workspace that a template may offer."""


def _read_opens(value: object) -> tuple[str, ...]:
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
    return tuple(value)


_OPENS_SCHEMA = {"type": "array", "items": {"type": "string", "enum": list(OPENS)}, "maxItems": len(OPENS)}
Opens = Annotated[
    tuple[str, ...], Reader(_read_opens, "a list of `lab`, `vscode` and `ssh`", _OPENS_SCHEMA, write_nothing)
]


@dataclass(frozen=True)
class Bounds:
    """The least and the most that a request may ask."""

    __pydantic_config__ = section()
    cpu_cores: CoresRange = (1.0, 8.0)
    """CPU cores."""
    memory_bytes: BytesRange = (GIBIBYTE, 32 * GIBIBYTE)
    """Memory."""
    lifetime_seconds: LifetimeRange = (1800, 86400)
    """How long it may live, which its policy may narrow."""


@dataclass(frozen=True)
class Defaults:
    """What a request gets that does not ask otherwise."""

    __pydantic_config__ = section()
    gpu: Annotated[str | None, NAME] = None
    """The kind of GPU; `none` is none. Default: the first of `gpus`."""
    count: GpuCount = 0
    """How many. Default: the least that `gpus` allows."""
    cpu_cores: Cores = 2.0
    """CPU cores."""
    memory_bytes: Bytes = 8 * GIBIBYTE
    """Memory."""
    lifetime_seconds: Seconds = 8 * 3600
    """How long it lives."""


@dataclass(frozen=True)
class Guarantee:
    """Which percentage of the CPU and memory that a request asks is its own; it uses the rest where it is free."""

    __pydantic_config__ = section()
    cpu_percent: GuaranteedPercent = 100.0
    """Of the CPU cores."""
    memory_percent: GuaranteedPercent = 100.0
    """Of the memory."""


@dataclass(frozen=True)
class Needs:
    """The least that a GPU must have, whichever kind it is."""

    __pydantic_config__ = section()
    memory_bytes: Bytes = 0
    """Memory of one GPU."""
    compute: ComputeCapability = ""
    """Compute capability of the GPU."""


@dataclass(frozen=True)
class OnStop:
    """What runs in a workspace before the service ends it, then its user's own `~/.gpuspawner/on-stop`."""

    __pydantic_config__ = section(timeout_seconds="timeout")
    command: LongText = ""
    """A shell command, run in the home as the workspace's user. Default: none."""
    timeout_seconds: OnStopTimeout = 60.0
    """How long both may take, up to 10m. So much later the workspace may end."""


@dataclass(frozen=True)
class Template:
    """What a workspace can be."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = ""
    extends: Name = ""
    """The template from which it has all that it does not write itself."""
    title: Title = ""
    """What people read. Default: the template's own name."""
    description: LongText = ""
    """What the form says of it."""
    image: Image = ""
    """The image of its pods. Default: the hub's own."""
    own_images: ImagePattern = ""
    """On Kubernetes: which images people may bring, as a pattern of whole names with the registry. Default: none."""
    profile: Title = ""
    """The slug of a profile in KubeSpawner's `profile_list`, whose settings apply first."""
    opens: Opens = ()
    """What its workspaces open, the default first. Default: as `c.Spawner.default_url` says."""
    policy: Name = "default"
    """The policy by which its workspaces are judged."""
    gpus: Mapping[KindName, GpuCountRange] = field(default_factory=dict)
    """The kinds of GPU that may be asked for, and how many of each at once. Default: none."""
    data: DataNames = ()
    """The data that it works on: clusters that have all of it come first. Default: none."""
    bounds: Bounds = field(default_factory=Bounds)
    """What people may ask for."""
    default: Defaults = field(default_factory=Defaults)
    """What they get without asking."""
    guarantee: Guarantee | None = None
    """On Kubernetes: how much of that is theirs alone."""
    groups: GroupNames = frozenset()
    """The groups of the hub that alone see it; for others it does not exist. Default: everybody."""
    priority: Priority = 0
    """A higher one goes first in the queue."""
    substitutes: Mapping[KindName, KindNames] = field(default_factory=dict)
    """By the kind asked for: which others the form offers, given to those alone who tick them, in this order."""
    needs: Needs = field(default_factory=Needs)
    """What any of its GPUs must have."""
    on_stop: OnStop = field(default_factory=OnStop)
    """What runs before the end."""
    tools: Mapping[Name, Packages] = field(default_factory=dict)
    """Lists of packages to tick, by name: each becomes a kernel with an environment of its own in the home. Default:
    none."""

    def default_count(self, gpu: str | None) -> int:
        """Return how many of ``gpu`` a request gets by default, within the kind's range."""
        if gpu is None:
            return 0
        least, most = self.gpus[gpu]
        return min(max(self.default.count, least), most)


def default_url(opens: Iterable[str]) -> str:
    """Return the path of the first page that workspaces open, or "" if the hub's configuration decides."""
    return next((PAGES[what] for what in opens if what in PAGES), "")


@dataclass(frozen=True)
class Exporter:
    """Who else measures GPUs, beside the probe in each workspace."""

    __pydantic_config__ = section(url="prometheus")
    url: Annotated[
        Url,
        Required(
            "http://prometheus.monitoring:9090",
            "who measures is not said",
            "add {key}: with its address, for example {example}",
        ),
    ]
    """The address of a Prometheus that scrapes DCGM exporter. Work that it saw counts; what it did not see proves
    nothing."""
    utilization: MetricName = "DCGM_FI_DEV_GPU_UTIL"
    """Its metric of a whole GPU's utilization, 0 to 100."""
    instances: MetricName = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    """Its metric of a MIG instance's activity, 0 to 1."""
    token_file: FilePath = ""
    """A file with the token that Prometheus asks for. Default: it asks for none."""


@dataclass(frozen=True)
class WrittenCatalog:
    """The whole file."""

    __pydantic_config__ = section()
    version: Annotated[Version, Required(1, "missing", "begin the file with version: 1")]
    """Of the file: 1. It must be written."""
    timezone: TimeZone = "UTC"
    """In which hours, days, weeks and months are meant."""
    contact: Annotated[str, text_reader(300)] = ""
    """Whom people ask for more, as refusals tell them."""
    currency: Currency = ""
    """In which `price` and budgets of `cost` are, as it stands before an amount. Default: none is shown."""
    gpus: Mapping[KindName, GpuKind] = field(default_factory=dict)
    """The kinds of GPU that people may ask for."""
    clusters: Mapping[Name, Cluster] = field(default_factory=dict)
    """The clusters in which workspaces may start, the first preselected. Default: the hub's own alone."""
    simulated: Mapping[KindName, GpuCount] = field(default_factory=dict)
    """How many GPUs of which kind to simulate, where the machine has none."""
    templates: Mapping[Name, Template] = field(default_factory=dict)
    """What a workspace can be; the first is preselected. At least one must be written."""
    policies: Mapping[Name, LifecyclePolicy] = field(default_factory=dict)
    """What becomes of workspaces. Templates that name none have `default`, which is there unwritten."""
    teams: Mapping[GroupName, Team] = field(default_factory=dict)
    """Groups of the hub that are charged for what their members use."""
    quotas: Mapping[Name, QuotaLimits] = field(default_factory=dict)
    """What is held at once, and used in a period, at most. Without one there is no limit."""
    hours: tuple[Hours, ...] = ()
    """Which policy judges at which hours of the week, or on which dates."""
    closed: Days = frozenset()
    """Days, such as holidays, on which no workspace is made ready at a time, whatever its policy."""
    holds: tuple[Hold, ...] = ()
    """GPUs that are kept free for a group at some hours of the week."""
    make_room: MakeRoom | None = None
    """When those over their soft share give room to those under theirs. Default: never."""
    readings: Exporter | None = None
    """Who else measures GPUs. Default: the probe in each workspace alone."""
    scheduler: SchedulerChoice = field(default_factory=SchedulerChoice)
    """Who owns the queue. Default: gpuspawner."""

    def rules(self) -> Rules:
        """Return the organisation's rules as the decisions read them."""
        quotas = [one.quota(name, whom) for name, one in self.quotas.items() if (whom := one.whom) is not None]
        return Rules(
            teams={name: replace(one, name=name, title=one.title or name) for name, one in self.teams.items()},
            quotas=tuple(quotas),
            holds=tuple(one.hold(self.timezone) for one in self.holds),
            hours=self.hours,
            closed=self.closed,
            make_room=self.make_room,
            timezone=self.timezone,
            contact=self.contact,
            currency=self.currency,
        )


@dataclass(frozen=True)
class Catalog:
    """The catalog in use. Entries are in the order of the file. ``policies`` always has ``default``."""

    gpus: Mapping[str, GpuKind]
    templates: Mapping[str, Template]
    policies: Mapping[str, LifecyclePolicy]
    simulated: Mapping[str, int] = field(default_factory=dict)
    """How many GPUs of each kind to simulate if the machine has none."""
    menus: Mapping[str, Menu] = field(default_factory=dict)
    """Choices of KubeSpawner's profiles, by template. They come from the hub's configuration, not from the file."""
    rules: Rules = field(default_factory=Rules)
    """Teams, quotas, budgets, class holds and hours."""
    exporter: Exporter | None = None
    """Another source of GPU measurements, or None."""
    scheduler: HttpSchedulerAddress | KueueQueues | PodQueues | None = None
    """The scheduler that owns the queue, or None if gpuspawner does."""
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    """Clusters in which workspaces may start. Empty if the file names no cluster, so the hub's own is the only one."""
    fast: float | None = None
    """The factor by which all times were shortened (:func:`scaled`), or None. Pages show it."""

    def policy_of(self, template: str) -> LifecyclePolicy:
        """Return the lifecycle policy of a template of this catalog."""
        return self.policies[self.templates[template].policy]
