"""Models of clusters and of the schedulers that own a queue: what administrators write under those keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from gpuspawner.core.fields import Internal, Required, section, text_reader
from gpuspawner.core.number_fields import PositiveDuration, PriceFactor, UnscaledDuration
from gpuspawner.core.text_fields import (
    KINDS,
    LONGEST_NAME,
    DataNameSet,
    FilePath,
    GroupName,
    HostName,
    ObjectName,
    Title,
    Url,
)


@dataclass(frozen=True)
class HttpSchedulerAddress:
    """A batch scheduler that implements the contract in docs/scheduler.openapi.yaml."""

    __pydantic_config__ = section()
    url: Annotated[
        Url,
        Required(
            "http://batch:8080",
            "add {key}: with its address, for example scheduler: {{http: {{url: {example}}}}}",
        ),
    ]
    """The address of the scheduler, without /v1. Required."""
    token_file: FilePath = ""
    """A file with the token for the scheduler. Default: the scheduler needs no token."""
    timeout_seconds: UnscaledDuration = 5.0
    """How long an answer may take."""
    callback: Url = ""
    """The address at which the scheduler reaches the GPU service to report changes, without the hub's base_url. The
    scheduler signs its reports with the token. Default: the service asks the scheduler, which answers when something
    changes."""


@dataclass(frozen=True)
class KueueQueues:
    """Kueue in the cluster, version 0.19 or newer."""

    __pydantic_config__ = section()
    queue: Annotated[
        ObjectName,
        Required(
            "workspaces",
            "add {key}: with the name of a LocalQueue, for example scheduler: {{kueue: {{queue: {example}}}}}",
        ),
    ]
    """The LocalQueue of everybody without a queue below. Required."""
    teams: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The LocalQueue of each team."""
    users: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The LocalQueue of each user whose team has no queue."""
    namespace: ObjectName = ""
    """The namespace of the LocalQueues. Default: the namespace of the workspaces."""
    priority_class: ObjectName = ""
    """The WorkloadPriorityClass of all workspaces. Default: no class, so the template's priority counts."""

    @property
    def title(self) -> str:
        """The scheduler's name."""
        return "Kueue"


@dataclass(frozen=True)
class PodQueues:
    """A scheduler of the cluster. Pods wait in its queues."""

    __pydantic_config__ = section(wait_seconds="wait")
    system: Annotated[str, Internal] = ""
    queue: ObjectName = ""
    """The queue of everybody without a queue below. Default: the scheduler's own default queue."""
    teams: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The queue of each team."""
    users: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The queue of each user whose team has no queue."""
    priority_class: ObjectName = ""
    """The PriorityClass of everybody whose team has no class below. Default: no class."""
    priority_classes: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The PriorityClass of each team."""
    wait_seconds: PositiveDuration = 1800.0
    """How long a pod waits in the queue before it is created again, behind newer pods."""

    @property
    def title(self) -> str:
        """The scheduler's name."""
        return {"volcano": "Volcano", "kai": "KAI"}[self.system]


@dataclass(frozen=True)
class SchedulerChoice:
    """The scheduler that owns the queue instead of gpuspawner. Only one may be written."""

    __pydantic_config__ = section()
    http: HttpSchedulerAddress | None = None
    """A batch scheduler decides who gets which GPUs, and when."""
    kueue: KueueQueues | None = None
    """Kueue decides with its queues in the cluster."""
    volcano: PodQueues | None = None
    """Volcano decides, version 1.15 or newer. Pods wait in its queues."""
    kai: PodQueues | None = None
    """The KAI scheduler decides. Pods wait in its queues."""

    @property
    def names(self) -> tuple[str, ...]:
        """The schedulers that are written."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is not None)

    @property
    def scheduler(self) -> HttpSchedulerAddress | KueueQueues | PodQueues | None:
        """The scheduler that owns the queue, or None if gpuspawner does."""
        pods = next((replace(one, system=name) for name in ("volcano", "kai") if (one := getattr(self, name))), None)
        return self.http or self.kueue or pods


@dataclass(frozen=True)
class Route:
    """How the hub's proxy reaches workspaces of another cluster.

    ``url`` is the address of an ingress controller or a Gateway. ``class_name`` is the IngressClass, "" for the
    default. ``gateway`` names the Gateway, "" without one. ``namespace`` is where the Gateway is, "" where
    workspaces are.
    """

    url: str
    class_name: str = ""
    gateway: str = ""
    namespace: str = ""


def _required(example: str) -> Required:
    return Required(example, "add {key}:, for example {key}: {example}")


@dataclass(frozen=True)
class Ingress:
    """An ingress controller of a cluster. The hub creates an Ingress for each workspace."""

    __pydantic_config__ = section()
    url: Annotated[Url, _required("https://workspaces.us-east.example.org")]
    """The address at which the hub's proxy reaches the controller. Required."""
    class_name: ObjectName = ""
    """The IngressClass. Default: the cluster's default class."""


@dataclass(frozen=True)
class Gateway:
    """A Gateway of a cluster. The hub creates an HTTPRoute for each workspace."""

    __pydantic_config__ = section()
    url: Annotated[Url, _required("https://workspaces.us-east.example.org")]
    """The address at which the hub's proxy reaches the Gateway. Required."""
    name: Annotated[ObjectName, _required("public")]
    """The name of the Gateway. Required."""
    namespace: ObjectName = ""
    """The namespace of the Gateway. Default: the namespace of the workspaces."""


@dataclass(frozen=True)
class Cluster:
    """A cluster in which workspaces may start. The hub's own cluster is the one without ``kubeconfig``."""

    __pydantic_config__ = section(scheduler_choice="scheduler")
    name: Annotated[str, Internal] = ""
    title: Title = ""
    """The title that users read, for example a region. Default: the name of the cluster."""
    kubeconfig: FilePath = ""
    """The file with which hub and service reach the cluster. Default: it is the hub's own cluster."""
    context: Annotated[str, text_reader(LONGEST_NAME)] = ""
    """The context in that file. Default: the current context."""
    price_factor: PriceFactor = 1.0
    """The factor for the prices of `gpus` in this cluster."""
    gpus: Annotated[tuple[str, ...] | None, KINDS] = None
    """The GPU kinds of the cluster. Default: all."""
    data: DataNameSet = frozenset()
    """The data in this cluster, by the names that templates use. Default: no data."""
    hub: Url = ""
    """The address at which its workspaces reach the hub, without the hub's base_url. Required except for the hub's own
    cluster."""
    nodes: HostName = ""
    """The address at which the hub's proxy reaches the nodes. Each workspace then has a NodePort. Default: the proxy
    reaches pods at their own addresses, unless `ingress` or `gateway` is written."""
    ingress: Ingress | None = None
    """The ingress controller through which the hub's proxy reaches workspaces, instead of `nodes`."""
    gateway: Gateway | None = None
    """The Gateway through which the hub's proxy reaches workspaces, instead of `nodes`."""
    scheduler_choice: SchedulerChoice = field(default_factory=SchedulerChoice, hash=False)
    """The scheduler that owns the queue of this cluster: `kueue`, `volcano` or `kai`. Default: gpuspawner, which has
    one queue for all its clusters."""

    @property
    def route(self) -> Route | None:
        """How the hub's proxy reaches it instead of its nodes, or None."""
        if self.gateway is not None:
            return Route(self.gateway.url, gateway=self.gateway.name, namespace=self.gateway.namespace)
        return None if self.ingress is None else Route(self.ingress.url, self.ingress.class_name)

    @property
    def scheduler(self) -> KueueQueues | PodQueues | None:
        """The scheduler that owns its queue, or None if gpuspawner does, with one queue for all such clusters."""
        found = self.scheduler_choice.scheduler
        return None if isinstance(found, HttpSchedulerAddress) else found
