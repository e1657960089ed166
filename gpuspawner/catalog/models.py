"""Models of the catalog: what administrators write, and the catalog that the rest of gpuspawner reads.

``gpuspawner.core.fields`` says how a field becomes a key. Models of policies, GPU kinds, device claims and rules are in
``core``, because the decisions read them as they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from gpuspawner.catalog.cluster_models import (
    Cluster,
    HttpSchedulerAddress,
    KueueQueues,
    PodQueues,
    SchedulerChoice,
)
from gpuspawner.catalog.quota_models import Hold, QuotaLimits
from gpuspawner.catalog.requests.profile_options import Menu
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.fields import Required, choice_reader, section, text_reader
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.number_fields import (
    Days,
    Flag,
    GpuCount,
    UnscaledDuration,
    Version,
)
from gpuspawner.core.rules import Alerts, ApprovalRule, Hours, MakeRoom, Quota, Rules, Team
from gpuspawner.core.text_fields import (
    ActivityMetric,
    Currency,
    FilePath,
    GroupName,
    KindName,
    MetricName,
    Name,
    TimeZone,
    Url,
    UtilizationMetric,
)

_EDIT = choice_reader("not a value for edit", "write true or false", {True: True, False: False})


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
