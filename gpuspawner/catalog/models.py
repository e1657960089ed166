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
from gpuspawner.catalog.pod_models import Container, Port, Resources, Variables, Volume
from gpuspawner.catalog.quota_models import Hold, QuotaLimits
from gpuspawner.catalog.requests.profile_options import Menu
from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import Internal, Reader, Required, choice_reader, section, text_reader, write_nothing
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.number_fields import (
    Bytes,
    BytesRange,
    ComputeCapability,
    Cores,
    CoresRange,
    CudaVersion,
    Days,
    DriverVersion,
    Flag,
    GpuCount,
    GpuCountRange,
    GuaranteedPercent,
    LifetimeRange,
    OnStopTimeout,
    Priority,
    Seconds,
    UnscaledDuration,
    Version,
)
from gpuspawner.core.rules import Alerts, ApprovalRule, Hours, MakeRoom, Quota, Rules, Team
from gpuspawner.core.text_fields import (
    NAME,
    PICTURE,
    ActivityMetric,
    ClusterPlace,
    Currency,
    DataNames,
    FilePath,
    GroupName,
    GroupNames,
    Icon,
    Image,
    ImagePattern,
    KindName,
    KindNames,
    LongText,
    MetricName,
    Name,
    ObjectName,
    Packages,
    TimeZone,
    Title,
    Topology,
    Url,
    UtilizationMetric,
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
MONITOR = "monitor"
"""The GPU monitor in a workspace, as an image may lack it."""


def _read_opens(value: object) -> tuple[str, ...]:
    right = "write a list of lab, vscode and ssh, the default first, for example [lab, vscode, ssh]"
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is not a way to open a workspace", right)
    for item in value:
        if item not in OPENS:
            raise BadValue(f"{quoted(item)} is not a way to open a workspace", right)
        if value.count(item) > 1:
            raise BadValue(f"{item} is written twice", right)
    if value == [SSH]:
        raise BadValue("ssh alone leaves nothing for the browser to open", "write opens: [lab, ssh]")
    return tuple(value)


_OPENS_SCHEMA = {"type": "array", "items": {"type": "string", "enum": list(OPENS)}, "maxItems": len(OPENS)}
Opens = Annotated[
    tuple[str, ...], Reader(_read_opens, "a list of `lab`, `vscode` and `ssh`", _OPENS_SCHEMA, write_nothing)
]


_EDIT = choice_reader("not a value for edit", "write true or false", {True: True, False: False})


@dataclass(frozen=True)
class Bounds:
    """The least and the most that users may ask for."""

    __pydantic_config__ = section()
    cpu_cores: CoresRange = (1.0, 8.0)
    """CPU cores."""
    memory_bytes: BytesRange = (GIBIBYTE, 32 * GIBIBYTE)
    """Memory."""
    lifetime_seconds: LifetimeRange = (1800, 86400)
    """The lifetime of a workspace. The policy may narrow it."""


@dataclass(frozen=True)
class Defaults:
    """The values that users get if they do not choose."""

    __pydantic_config__ = section()
    gpu: Annotated[str | None, NAME] = None
    """The GPU kind, or `none` for no GPU. Default: the first of `gpus`."""
    count: GpuCount = 0
    """The number of GPUs. Default: the least that `gpus` allows."""
    cpu_cores: Cores = 2.0
    """CPU cores."""
    memory_bytes: Bytes = 8 * GIBIBYTE
    """Memory."""
    lifetime_seconds: Seconds = 8 * 3600
    """The lifetime of a workspace."""


@dataclass(frozen=True)
class Guarantee:
    """The part of its CPU and memory that a workspace is guaranteed. It may use the rest while that is free."""

    __pydantic_config__ = section()
    cpu_percent: GuaranteedPercent = 100.0
    """The guaranteed part of the CPU cores."""
    memory_percent: GuaranteedPercent = 100.0
    """The guaranteed part of the memory."""


@dataclass(frozen=True)
class Needs:
    """The least that each GPU of a workspace must have, of any kind."""

    __pydantic_config__ = section()
    memory_bytes: Bytes = 0
    """Memory of one GPU."""
    compute: ComputeCapability = ""
    """Compute capability of the GPU."""
    driver: DriverVersion = ""
    """The oldest driver. Its kinds must say `driver`."""
    cuda: CudaVersion = ""
    """The CUDA version that the driver must support. Its kinds must say `cuda`."""
    memory_isolated: Flag = False
    """Whether no other workspace may use the memory of its GPU. Then every share needs `memory_enforced`."""


@dataclass(frozen=True)
class OnStop:
    """Commands that run before the service ends a workspace: this one, then `~/.gpuspawner/on-stop` of its user."""

    __pydantic_config__ = section(timeout_seconds="timeout")
    command: LongText = ""
    """A shell command that runs in the home as the workspace's user. Default: no command."""
    timeout_seconds: OnStopTimeout = 60.0
    """How long both commands may take together, up to 10m. The workspace may end later by this time."""


@dataclass(frozen=True)
class Template:
    """A kind of workspace that users can choose."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = ""
    extends: Name = ""
    """Another template. Every key that is not written here is taken from it."""
    title: Title = ""
    """The title that users read. Default: the name of the template."""
    description: LongText = ""
    """The description in the form, for example with the versions of its software: `PyTorch 2.9, CUDA 13`."""
    icon: Icon = ""
    """The picture in front of its title: an icon, or a small picture. Default: `layers` with GPUs, else `notebook`."""
    image: Image = ""
    """The container image. Default: the image in the hub's configuration."""
    own_images: ImagePattern = ""
    """On Kubernetes: the images of their own that users may start, as a pattern for whole names with the registry.
    Default: no images."""
    profile: Title = ""
    """The slug of a profile in KubeSpawner's `profile_list`. Its settings apply first."""
    opens: Opens = ()
    """The ways to open a workspace, the default first. Default: the page in `c.Spawner.default_url`."""
    policy: Name = "default"
    """The policy for its workspaces."""
    gpus: Mapping[KindName, GpuCountRange] = field(default_factory=dict)
    """The GPU kinds that users may choose, and how many of each. Default: no GPUs."""
    data: DataNames = ()
    """The data that its workspaces use. Clusters that have all of it are offered first. Default: no data."""
    bounds: Bounds = field(default_factory=Bounds)
    """The bounds of CPU, memory and lifetime."""
    default: Defaults = field(default_factory=Defaults)
    """The values that users get if they do not choose."""
    guarantee: Guarantee | None = None
    """On Kubernetes: the guaranteed part of CPU and memory."""
    groups: GroupNames = frozenset()
    """The groups of the hub that may use it. For other users it does not exist. Default: everybody."""
    priority: Priority = 0
    """Requests with a higher priority go first in the queue."""
    substitutes: Mapping[KindName, KindNames] = field(default_factory=dict)
    """For each GPU kind, other kinds that the form offers instead, in this order. Users get them only if they agree."""
    needs: Needs = field(default_factory=Needs)
    """The least that each of its GPUs must have."""
    place: ClusterPlace = ""
    """With several clusters, which of those that a user accepts a workspace gets, and which comes first in the form.
    `cheapest` is the lowest `price_factor` with free GPUs. `nearest` is the first with free GPUs that has the `data`,
    then the first of `clusters`. `soonest` is the first with free GPUs, before one where a node must start. Default:
    the one that the user chose, if its GPUs are free."""
    topology: Topology = ""
    """Whether several GPUs of one workspace share an NVLink or NUMA domain of their node. With `prefer` they do if such
    GPUs are free. With `require` the workspace waits for them. Default: any GPUs of one node."""
    on_stop: OnStop = field(default_factory=OnStop)
    """Commands that run before a workspace ends."""
    tools: Mapping[Name, Packages] = field(default_factory=dict)
    """Lists of packages that users may tick, by name. Each becomes a kernel with its own environment in the home.
    Default: no tools."""
    ports: Mapping[Name, Port] = field(default_factory=dict)
    """Pages of programs in the workspace that the workspace's page links to, for example TensorBoard. Default: none."""
    environment: Variables = ()
    """Variables of the workspace. Default: none."""
    volumes: Mapping[Name, Volume] = field(default_factory=dict)
    """Volumes in addition to the home. Default: none."""
    resources: Resources = ()
    """On Kubernetes: other resources of the node that the workspace gets, for example `rdma/hca: 1`. Default: none."""
    init: Mapping[Name, Container] = field(default_factory=dict)
    """On Kubernetes: containers that run before the workspace, in this order. Default: none."""
    sidecars: Mapping[Name, Container] = field(default_factory=dict)
    """On Kubernetes: containers that run next to the workspace. Default: none."""
    priority_class: ObjectName = ""
    """On Kubernetes: the PriorityClass of the pods. Default: the one in the hub's configuration."""

    @property
    def shown_icon(self) -> str:
        """The name of the icon that pages show in front of its title. A picture of its own has the template's name."""
        if self.picture:
            return f"template-{self.name}"
        return self.icon or ("layers" if self.gpus else "notebook")

    @property
    def picture(self) -> str:
        """The address of a picture of its own, "" for one of the icons of all pages."""
        return self.icon if self.icon.startswith(PICTURE) else ""

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
    """Another source of GPU measurements, in addition to the probe in each workspace."""

    __pydantic_config__ = section(url="prometheus")
    url: Annotated[
        Url,
        Required(
            "http://prometheus.monitoring:9090",
            "add {key}: with its address, for example {example}",
        ),
    ]
    """The address of a Prometheus that scrapes DCGM exporter. Required."""
    activity: ActivityMetric = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    """The metric for the engine activity of a GPU or MIG instance, from 0 to 1. It is an average over `interval`.
    `none` if the exporter has no such metric."""
    utilization: UtilizationMetric = "DCGM_FI_DEV_GPU_UTIL"
    """The metric for the utilization of a whole GPU, from 0 to 100."""
    encoder: UtilizationMetric = "DCGM_FI_DEV_ENC_UTIL"
    """The metric for the utilization of its video encoder, from 0 to 100."""
    decoder: UtilizationMetric = "DCGM_FI_DEV_DEC_UTIL"
    """The metric for the utilization of its video decoder, from 0 to 100."""
    energy: MetricName = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    """The counter of a GPU's energy. A counter that stands still shows that the exporter is frozen."""
    interval_seconds: UnscaledDuration = 30.0
    """How often the exporter collects: its DCGM_EXPORTER_INTERVAL."""
    token_file: FilePath = ""
    """A file with the token for Prometheus. Default: Prometheus needs no token."""


@dataclass(frozen=True)
class Console:
    """The changes of the catalog that administrators may make in the console."""

    __pydantic_config__ = section()
    edit: Annotated[bool, _EDIT] = True
    """Whether the console and the API may write a new version of this file. `false` if it is kept elsewhere."""
    kept_in: Url = ""
    """The address of the place where the catalog is kept, for example a Git repository. The console names it."""


@dataclass(frozen=True)
class WrittenCatalog:
    """The whole file."""

    __pydantic_config__ = section()
    version: Annotated[Version, Required(1, "begin the file with version: 1")]
    """The version of the file's format, which is 1. Required."""
    timezone: TimeZone = "UTC"
    """The time zone of hours, days, weeks and months in this file."""
    contact: Annotated[str, text_reader(300)] = ""
    """The contact of users who need more. Refusals show it."""
    currency: Currency = ""
    """The currency of `price` and of budgets of `cost`, as written before an amount. Default: no currency is shown."""
    gpus: Mapping[KindName, GpuKind] = field(default_factory=dict)
    """The GPU kinds that users may ask for."""
    clusters: Mapping[Name, Cluster] = field(default_factory=dict)
    """The clusters in which workspaces may start. The first is preselected. Default: only the hub's own cluster."""
    simulated: Mapping[KindName, GpuCount] = field(default_factory=dict)
    """How many GPUs of each kind to simulate if the machine has no GPU."""
    templates: Mapping[Name, Template] = field(default_factory=dict)
    """The kinds of workspace that users can choose. The first is preselected. At least one is required."""
    policies: Mapping[Name, LifecyclePolicy] = field(default_factory=dict)
    """The lifecycle policies. Templates without `policy` use `default`, which always exists."""
    teams: Mapping[GroupName, Team] = field(default_factory=dict)
    """The groups of the hub that are charged for the usage of their members."""
    quotas: Mapping[Name, QuotaLimits] = field(default_factory=dict)
    """The limits of GPUs at the same time, and the budgets of usage in a period. Default: no limits."""
    hours: tuple[Hours, ...] = ()
    """Other policies for some hours of the week, or for some dates."""
    closed: Days = frozenset()
    """Days on which schedules start no workspace, for example holidays."""
    holds: tuple[Hold, ...] = ()
    """GPUs that are reserved for a group at some hours of the week."""
    make_room: MakeRoom | None = None
    """When workspaces of users above their fair share make room for users below theirs. Default: never."""
    approve: ApprovalRule | None = None
    """Which requests of users for extra GPU hours are approved at once. Default: a person answers each."""
    alerts: Alerts = field(default_factory=Alerts)
    """When leads and administrators are told of waste."""
    quarantine_faulty_gpus: Flag = True
    """Whether a GPU with a fatal error is put in quarantine at once, and its users are told. Fatal errors are the Xid
    codes 48, 63, 64, 74, 79, 94 and 95, and new uncorrected memory errors."""
    readings: Exporter | None = None
    """Another source of GPU measurements. Default: only the probe in each workspace."""
    scheduler: SchedulerChoice = field(default_factory=SchedulerChoice)
    """The scheduler that owns the queue. Default: gpuspawner."""
    console: Console = field(default_factory=Console)
    """The changes of this file that administrators may make in the console."""

    def rules(self) -> Rules:
        """Return the organisation's rules as the decisions read them."""
        quotas, of_namespaces = list[Quota](), dict[str, tuple[Quota, ...]]()
        for name, one in self.quotas.items():
            if (whom := one.whom) is not None:
                quota = one.quota(name, whom)
                if one.namespace:
                    of_namespaces[one.namespace] = (*of_namespaces.get(one.namespace, ()), quota)
                else:
                    quotas.append(quota)
        return Rules(
            teams={name: replace(one, name=name, title=one.title or name) for name, one in self.teams.items()},
            quotas=tuple(quotas),
            quotas_of_namespaces=of_namespaces,
            holds=tuple(one.hold(self.timezone) for one in self.holds),
            hours=self.hours,
            closed=self.closed,
            make_room=self.make_room,
            approve=self.approve,
            alerts=self.alerts,
            quarantine_faulty_gpus=self.quarantine_faulty_gpus,
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
    """How many GPUs of each kind to simulate if the machine has no GPU."""
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
    console: Console = field(default_factory=Console)
    """The changes of the file that administrators may make in the console."""
    fast: float | None = None
    """The factor by which all times were shortened (:func:`scaled`), or None. Pages show it."""

    def policy_of(self, template: str) -> LifecyclePolicy:
        """Return the lifecycle policy of a template of this catalog."""
        return self.policies[self.templates[template].policy]
