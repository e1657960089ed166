"""GPU kinds, devices, their names, and the shares of them that leases hold.

Some devices have a name of their own, for example a UUID. Other devices are only counted: a node advertises their
number as one resource. They form a group and are called ``NODE/RESOURCE/INDEX``, or ``CLUSTER:NODE/RESOURCE/INDEX`` in
a cluster that is not the hub's own. Stored leases, pods and readings hold such names. Decisions use the fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Annotated, NamedTuple

from gpuspawner.core.fields import Internal, Required, section, whole_number_reader
from gpuspawner.core.number_fields import (
    COUNTS,
    PRICE,
    PRICE_CHANGES,
    Bytes,
    ComputeCapability,
    CudaVersion,
    DriverVersion,
    Flag,
    GpuCount,
    PositiveDuration,
)
from gpuspawner.core.outages import GPU_SOURCE, Outage
from gpuspawner.core.text_fields import (
    NAME,
    Capacity,
    GroupNames,
    Labels,
    ObjectName,
    Parameters,
    ResourceName,
    Selectors,
    Title,
)

# --- names

_COMING = "~"
"""The first character of the invented name of a node that an autoscaler may start."""


class Group(NamedTuple):
    """The GPUs that a node advertises as one resource. ``cluster`` is "" for the hub's own."""

    node: str
    resource: str
    cluster: str = ""

    def gpu(self, index: int) -> str:
        """Return the name of the GPU with this index."""
        return f"{qualified_node_name(self.cluster, self.node)}/{self.resource}/{index}"

    @property
    def is_coming(self) -> bool:
        """Whether the node has not started yet. See ``gpus.pools.coming_gpus``."""
        return self.node.startswith(_COMING)

    @property
    def coming_kind(self) -> str:
        """The kind for which the node is started, or "" for an existing node."""
        return self.node.removeprefix(_COMING).rpartition("-")[0] if self.is_coming else ""


def qualified_node_name(cluster: str, node: str) -> str:
    """Return the name of a node among several clusters. ``cluster`` is "" for the hub's own."""
    return f"{cluster}:{node}" if cluster else node


def nodes_of_cluster(cluster: str, nodes: Iterable[str]) -> set[str]:
    """Return the nodes of one cluster, as the cluster calls them."""
    parts = (node.rpartition(":") for node in nodes)
    return {name for where, _, name in parts if where == cluster}


def kind_in_cluster(cluster: str, kind: str) -> str:
    """Return the name of a kind in a further cluster. The first cluster with a kind uses the name of the catalog."""
    return f"{kind}@{cluster}"


def catalog_kind_name(kind: str) -> str:
    """Return the catalog's name of a kind in any cluster."""
    return kind.partition("@")[0]


def coming_node_group(kind: str, number: int, resource: str) -> Group:
    """Return the group of a coming node, the ``number``-th for a kind."""
    return Group(f"{_COMING}{kind}-{number}", resource)


@lru_cache(maxsize=65536)
def group_of_gpu(gpu: str) -> Group | None:
    """Return the group of a GPU, or None if it has a name of its own."""
    where, _, rest = gpu.partition("/")
    resource, slash, _index = rest.rpartition("/")
    cluster, _, node = where.rpartition(":")
    return Group(node, resource, cluster) if slash else None


# --- claims of devices

_WRITE_BOTH = "write driver: and parameters:"


@dataclass(frozen=True)
class DriverConfig:
    """Settings for one driver about the devices of a claim, for example how they are shared."""

    __pydantic_config__ = section()
    driver: Annotated[ObjectName, Required("gpu.nvidia.com", right=_WRITE_BOTH)]
    """The name of the driver, for example gpu.nvidia.com. Required."""
    parameters: Annotated[Parameters, Required({"apiVersion": "v1", "kind": "Config"}, right=_WRITE_BOTH)]
    """An object as the driver documents it, with apiVersion and kind. Required."""


@dataclass(frozen=True)
class DeviceClaim:
    """How pods claim GPUs of a kind, on Kubernetes 1.34 or newer with a DRA driver."""

    __pydantic_config__ = section()
    device_class: Annotated[ObjectName, Required("gpu.nvidia.com", "add {key}: for example {example}")]
    """The DeviceClass, for example gpu.nvidia.com or mig.nvidia.com. Required."""
    selectors: Selectors = ()
    """CEL expressions over `device`. All of them must hold. Default: every device of the class."""
    capacity: Capacity = ()
    """The capacity that one claim takes of a shared device, for example memory: 10Gi. Default: the driver decides."""
    config: tuple[DriverConfig, ...] = ()
    """Settings of drivers, for example how GPUs are shared. Default: no settings."""

    def counted_as(self, kind: str) -> str:
        """Return the resource name by which these devices are counted. No pod requests it."""
        return f"{self.device_class}/{kind}"


# --- kinds, devices and the fleet


@dataclass(frozen=True)
class Autoscale:
    """Nodes that the cluster's autoscaler starts when a pod waits for one."""

    __pydantic_config__ = section(most="max")
    most: Annotated[GpuCount, Required(8, "add {key}: with all that the pool may have")]
    """The most GPUs of this kind that all nodes together may have. Required."""
    each: GpuCount = 1
    """The number of GPUs of one node."""
    start_seconds: Annotated[
        PositiveDuration, Required("4m", "add {key}: with its usual time, for example {example}")
    ] = 0.0
    """How long a node takes until its GPUs can be used. Required."""
    labels: Labels = ()
    """The labels of new nodes. Default: nvidia.com/gpu.product with the name in `match`."""


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU that users can ask for. A share has ``of`` and ``shares``. Any other kind needs ``memory``."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = ""
    title: Title = ""
    """The title that users read. Default: the name of the kind."""
    memory_bytes: Bytes = 0
    """The memory of one GPU. Default: for a share, its part of the whole GPU's memory."""
    compute: ComputeCapability = ""
    """The compute capability. Default: for a share, that of the whole GPU."""
    driver: DriverVersion = ""
    """The oldest driver. GPUs with an older or unknown driver are not of this kind. Default: any driver."""
    cuda: CudaVersion = ""
    """The CUDA version that the driver must support. GPUs whose driver supports only older versions, or is unknown, are
    not of this kind. Default: any version."""
    match: Title = ""
    """The name in `nvidia-smi -L`, or on Kubernetes in the label nvidia.com/gpu.product. `*` means any characters."""
    price_per_hour: Annotated[float | None, PRICE] = None
    """The price of one GPU for an hour. Users see costs only for kinds with a price. A workspace keeps the price of
    its start."""
    price_changes: Annotated[tuple[tuple[date, float], ...], PRICE_CHANGES] = ()
    """New prices by their first day, in the catalog's time zone. Each applies to workspaces that start from then on.
    Default: no changes, for a share those of the whole GPU."""
    of: Annotated[str | None, NAME] = None
    """For a share: the kind whose GPUs it divides."""
    shares: Annotated[int, whole_number_reader(2, 64)] = 1
    """For a share: the number of shares of one GPU. Default: it is not a share."""
    memory_enforced: Flag = False
    """Whether MPS, HAMi or another program limits the memory of each share. Only then a share meets a need for
    memory."""
    resource: ResourceName = ""
    """The extended resource of nodes, if this is not a whole GPU or no label shows its kind. Default: nvidia.com/gpu.

    For a kind with a ``claim`` its devices are counted by this name, and no pod requests it.
    """
    replicas: Annotated[int, Internal] = 1
    """The number of parts of each device by time-slicing or MPS."""
    autoscale: Autoscale | None = None
    """The nodes that the cluster's autoscaler starts for this kind."""
    groups: GroupNames = frozenset()
    """The groups of the hub that may use it. For other users it does not exist. Default: everybody."""
    counts: Annotated[Fraction | None, COUNTS] = None
    """How much one GPU counts in quotas and GPU hours. Default: 1, for a share its part, for MIG its slices of
    seven."""
    cluster: Annotated[str, Internal] = ""
    """The cluster of these GPUs. "" if it is the hub's own cluster, or the only one."""
    claim: DeviceClaim | None = None
    """How pods claim these GPUs by dynamic resource allocation, instead of `match` and `resource`. Default: no
    claims."""
    spot: Flag = False
    """Whether these GPUs are on spot nodes, which the cloud may take back at any time. Users get them only if they
    choose this kind. Other kinds never use spot nodes."""
    where: Annotated[str, Internal] = ""
    """The title of the cluster, with which ``title`` ends. "" if there is only one cluster."""

    def fits_driver(self, driver: str, cuda: str) -> bool:
        """Return whether a driver is new enough. ``cuda`` is the version that it supports, "" is unknown."""
        return is_at_least(driver, self.driver) and is_at_least(cuda, self.cuda)

    def old_driver_words(self, driver: str, cuda: str) -> str:
        """Return why GPUs with a driver are not of this kind, without a full stop."""
        needed = [f"{name} {version}" for name, version in (("driver", self.driver), ("CUDA", self.cuda)) if version]
        has = f"the driver {driver or 'is unknown'}" + (f" supports CUDA up to {cuda}" if cuda else "")
        return f"{has}, and the kind {self.name} needs {' and '.join(needed)}"

    def price_on(self, day: date) -> float | None:
        """Return the price of one GPU for an hour on a day, or None without one."""
        valid = [price for since, price in self.price_changes if since <= day]
        return valid[-1] if valid else self.price_per_hour

    @property
    def pool(self) -> str:
        """The kind whose devices serve this one. All kinds of a pool compete for the same GPUs."""
        return self.of or self.name

    @property
    def title_anywhere(self) -> str:
        """The title of this kind in any cluster."""
        return self.title.removesuffix(f" in {self.where}") if self.where else self.title

    @property
    def share(self) -> Fraction:
        """The share of one device that one unit takes, 0 < share <= 1."""
        return Fraction(1, self.shares)

    @property
    def is_shared(self) -> bool:
        """Whether several workspaces may use one device at a time."""
        return self.shares > 1 or self.replicas > 1 or bool(self.claim and self.claim.capacity)

    @property
    def own_memory_bytes(self) -> int:
        """The memory that each workspace has for itself. It is 0 if others on the same device may take all of it."""
        return self.memory_bytes if self.memory_enforced or not self.is_shared else 0


def is_at_least(version: str, needed: str) -> bool:
    """Return whether a version like ``570.86.15`` is not older than ``needed``. "" is unknown, and needs nothing."""
    return not needed or version_numbers(version) >= version_numbers(needed)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (570, 86, 15). "" has no numbers."""
    return tuple(int(part) for part in takewhile(str.isdecimal, version.split(".")))


Kinds = Mapping[str, GpuKind]


@dataclass(frozen=True)
class Gpu:
    """One device of the fleet. ``pool`` is the catalog kind that it matches, or "".

    Devices of a ``group`` are only counted. So any of them may be the foreign or unhealthy one.
    """

    id: str
    pool: str
    node: str
    index: int
    model: str
    memory_bytes: int
    simulated: bool = False
    healthy: bool = True
    foreign: bool = False
    note: str = ""
    group: Group | None = None
    cluster: str = ""
    zone: str = ""
    reachable: bool = True
    """Whether its node answers."""
    spot: bool = False
    """Whether its node is spot: the cloud may take it back at any time."""
    closed: str = ""
    """The reason why an administrator closed it to new workspaces, without a full stop, or ""."""
    holder: str = ""
    """The holder of a foreign GPU, for administrators: ``RayCluster team-a/nightly``, or "" if not known."""
    domains: tuple[str, ...] = ()
    """Its NVLink domain and its NUMA domain on its node, as far as they are known."""

    @property
    def is_coming(self) -> bool:
        """Whether its node has not started yet."""
        return self.group is not None and self.group.is_coming

    @property
    def node_in_cluster(self) -> str:
        """The name of its node in the node's own cluster."""
        return self.group.node if self.group else self.node

    @property
    def on(self) -> NodeName:
        """Its node, with the cluster."""
        return NodeName(self.cluster, self.node)


class NodeName(NamedTuple):
    """A node of the fleet. Two clusters may have nodes with the same name."""

    cluster: str
    node: str


class HostResources(NamedTuple):
    """Host resources of a node or a request: CPU in thousandths of a core, and memory in bytes."""

    cpu: int = 0
    memory: int = 0


NO_HOST_RESOURCES = HostResources()


class PoolCount(NamedTuple):
    """The number of GPUs of a pool. ``present`` does not count GPUs that are coming; the other two do.

    ``unavailable`` are unhealthy or closed GPUs, which cannot be granted even if no workspace holds them.
    ``on_one_node`` is the most healthy GPUs of one node. It includes foreign GPUs, because they come back later.
    ``in_one_domain`` is the same for one NVLink or NUMA domain.
    """

    present: int
    unavailable: int
    on_one_node: int
    in_one_domain: int = 0


@dataclass(frozen=True)
class Fleet:
    """All GPUs at one instant. Nothing is granted before a fleet was observed completely.

    ``host_resources`` are those of each node that the backend knows, for the leases that hold GPUs there. Pods of
    others are subtracted, leases are not.
    """

    gpus: tuple[Gpu, ...] = ()
    complete: bool = False
    observed_at: float = 0.0
    age_seconds: float = 0.0
    """The age of the backend's own data when it was read."""
    host_resources: Mapping[NodeName, HostResources] = field(default_factory=dict)
    outage: Outage | None = None
    """The outage that prevents a new look at the fleet."""
    outages: Mapping[str, Outage] = field(default_factory=dict)
    """The outage of each cluster by its name. "" is the hub's own."""

    def outage_of(self, cluster: str) -> Outage | None:
        """Return the outage that hides the present state of a cluster's GPUs, or None."""
        return self.outage or self.outages.get(cluster)

    def outage_of_kind(self, kind: GpuKind | None) -> Outage | None:
        """Return the outage during which nothing of a kind is granted, or None. ``kind`` is None without a GPU.

        A workspace without a GPU does not need the list of GPUs.
        """
        outage = self.outage_of(kind.cluster if kind else "")
        return None if kind is None and outage is not None and outage.part == GPU_SOURCE else outage

    @cached_property
    def by_id(self) -> Mapping[str, Gpu]:
        """The GPUs by id."""
        return {gpu.id: gpu for gpu in self.gpus}

    def node_of(self, gpu_id: str) -> str:
        """Return the node of a GPU, or "" if it is not known."""
        return self.by_id[gpu_id].node if gpu_id in self.by_id else ""

    @cached_property
    def gpus_by_pool(self) -> Mapping[str, Sequence[Gpu]]:
        """The GPUs of each pool."""
        found: dict[str, list[Gpu]] = {}
        for gpu in self.gpus:
            found.setdefault(gpu.pool, []).append(gpu)
        return found

    @cached_property
    def counts(self) -> Mapping[str, PoolCount]:
        """The number of GPUs of each pool. It is computed once, because the service needs it often."""
        return {pool: _counted(gpus) for pool, gpus in self.gpus_by_pool.items()}

    @cached_property
    def simulated_pools(self) -> frozenset[str]:
        """The pools that have a simulated GPU."""
        return frozenset(gpu.pool for gpu in self.gpus if gpu.simulated)


def _counted(gpus: Sequence[Gpu]) -> PoolCount:
    nodes = Counter((gpu.cluster, gpu.node) for gpu in gpus if gpu.healthy)
    domains = Counter((gpu.on, name) for gpu in gpus if gpu.healthy for name in gpu.domains)
    away = sum(not gpu.healthy or bool(gpu.closed) for gpu in gpus)
    on_one_node, in_one_domain = (max(counts.values(), default=0) for counts in (nodes, domains))
    return PoolCount(sum(not gpu.is_coming for gpu in gpus), away, on_one_node, in_one_domain)


@dataclass(frozen=True)
class Slot:
    """The right to a share of one device. An exclusive right has share 1."""

    gpu: str
    share: Fraction = Fraction(1)

    @property
    def group(self) -> Group | None:
        """The group of its GPU, or None if the GPU has a name of its own."""
        return group_of_gpu(self.gpu)

    @property
    def is_coming(self) -> bool:
        """Whether the node of its GPU has not started yet."""
        return self.group is not None and self.group.is_coming
