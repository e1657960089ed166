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
    """A batch scheduler that speaks the contract of docs/scheduler.openapi.yaml."""

    __pydantic_config__ = section()
    url: Annotated[
        Url,
        Required(
            "http://batch:8080",
            "where the scheduler is is not said",
            "add {key}: with its address, for example scheduler: {{http: {{url: {example}}}}}",
        ),
    ]
    """Its address: what stands before /v1."""
    token_file: FilePath = ""
    """A file with the token that it asks for. Default: it asks for none."""
    timeout_seconds: UnscaledDuration = 5.0
    """How long an answer may take."""
    callback: Url = ""
    """Where it reaches the GPU service, to tell by itself what changed: what stands before the hub's base_url. It signs
    with the token. Default: it is asked, and holds its answer until something changes."""


@dataclass(frozen=True)
class KueueQueues:
    """Kueue of the cluster, 0.19 or newer."""

    __pydantic_config__ = section()
    queue: Annotated[
        ObjectName,
        Required(
            "workspaces",
            "the queue of all is not said",
            "add {key}: with the name of a LocalQueue, for example scheduler: {{kueue: {{queue: {example}}}}}",
        ),
    ]
    """The LocalQueue of all who are in none of those below."""
    teams: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The LocalQueue of who asks for a team."""
    users: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The LocalQueue of a user, where the team has none."""
    namespace: ObjectName = ""
    """Where the LocalQueues are. Default: where workspaces are."""
    priority_class: ObjectName = ""
    """The WorkloadPriorityClass of all workspaces. Default: none; the priority of the template counts."""

    @property
    def title(self) -> str:
        """The scheduler's name."""
        return "Kueue"


@dataclass(frozen=True)
class PodQueues:
    """A scheduler of the cluster in whose queues pods wait."""

    __pydantic_config__ = section(wait_seconds="wait")
    system: Annotated[str, Internal] = ""
    queue: ObjectName = ""
    """The queue of all who are in none of those below. Default: the one that it has for pods that name none."""
    teams: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The queue of who asks for a team."""
    users: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The queue of a user, where the team has none."""
    priority_class: ObjectName = ""
    """The PriorityClass of all who ask for none of the teams below. Default: none."""
    priority_classes: Mapping[GroupName, ObjectName] = field(default_factory=dict)
    """The PriorityClass of who asks for a team."""
    wait_seconds: PositiveDuration = 1800.0
    """How long a pod waits there at most, before it is made anew, behind who came meanwhile."""

    @property
    def title(self) -> str:
        """The scheduler's name."""
        return {"volcano": "Volcano", "kai": "KAI"}[self.system]


@dataclass(frozen=True)
class SchedulerChoice:
    """Who owns the queue, where that is not gpuspawner: one of these."""

    __pydantic_config__ = section()
    http: HttpSchedulerAddress | None = None
    """A batch scheduler that decides who gets which GPUs, and when."""
    kueue: KueueQueues | None = None
    """Kueue decides, by its queues on the cluster."""
    volcano: PodQueues | None = None
    """Volcano decides, 1.15 or newer: the pod waits in a queue of its own."""
    kai: PodQueues | None = None
    """The KAI scheduler decides: the pod waits in a queue of its own."""

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
    default. ``gateway`` names the Gateway, "" if there is none. ``namespace`` is where the Gateway is, "" where
    workspaces are.
    """

    url: str
    class_name: str = ""
    gateway: str = ""
    namespace: str = ""


def _required(example: str) -> Required:
    return Required(example, "its {key} is not said", "add {key}:, for example {key}: {example}")


@dataclass(frozen=True)
class Ingress:
    """An ingress controller of a cluster: the hub makes an Ingress for each workspace."""

    __pydantic_config__ = section()
    url: Annotated[Url, _required("https://workspaces.us-east.example.org")]
    """Where the hub's proxy reaches the controller. It must be written."""
    class_name: ObjectName = ""
    """The IngressClass. Default: the cluster's default one."""


@dataclass(frozen=True)
class Gateway:
    """A Gateway of a cluster: the hub makes an HTTPRoute for each workspace."""

    __pydantic_config__ = section()
    url: Annotated[Url, _required("https://workspaces.us-east.example.org")]
    """Where the hub's proxy reaches the Gateway. It must be written."""
    name: Annotated[ObjectName, _required("public")]
    """The Gateway. It must be written."""
    namespace: ObjectName = ""
    """Where the Gateway is. Default: where workspaces are."""


@dataclass(frozen=True)
class Cluster:
    """A cluster in which workspaces may start. The one without ``kubeconfig`` is the hub's own."""

    __pydantic_config__ = section(scheduler_choice="scheduler")
    name: Annotated[str, Internal] = ""
    title: Title = ""
    """What people read: its region, for example. Default: its own name."""
    kubeconfig: FilePath = ""
    """A file that says how hub and service reach it. Default: it is the hub's own cluster."""
    context: Annotated[str, text_reader(LONGEST_NAME)] = ""
    """Of that file. Default: its current one."""
    price_factor: PriceFactor = 1.0
    """By how much the prices of `gpus` are multiplied there."""
    gpus: Annotated[tuple[str, ...] | None, KINDS] = None
    """The kinds of GPU that it has. Default: all."""
    data: DataNameSet = frozenset()
    """What data lies there, as templates name it. Default: none."""
    hub: Url = ""
    """Where its workspaces reach the hub: what stands before the hub's base_url. It must be written but for the hub's
    own."""
    nodes: HostName = ""
    """Where the hub's proxy reaches its nodes, on a NodePort of each workspace. Default: it reaches the pods' own
    addresses, where neither `ingress` nor `gateway` is written."""
    ingress: Ingress | None = None
    """Where the hub's proxy reaches its workspaces by an ingress controller, instead of `nodes`."""
    gateway: Gateway | None = None
    """Where the hub's proxy reaches its workspaces by a Gateway, instead of `nodes`."""
    scheduler_choice: SchedulerChoice = field(default_factory=SchedulerChoice, hash=False)
    """Who owns the queue of this cluster: `kueue`, `volcano` or `kai`. Default: gpuspawner, in one queue with all other
    clusters that it owns."""

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
