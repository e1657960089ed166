"""The backend and the scheduler of the environment and the catalog: this machine, or Kubernetes clusters."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuspawner.backends.base import Backend
from gpuspawner.backends.clusters import ClusterBackend, ClustersBackend, kinds_in
from gpuspawner.backends.custom_resources.base import Resources
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.catalog import Catalog, Cluster, HttpSchedulerAddress, KueueQueues, PodQueues
from gpuspawner.catalog.requests.profile_options import FILE, read_menus
from gpuspawner.catalog.watched_file import Prepared
from gpuspawner.core.errors import CatalogError, Problem
from gpuspawner.core.rules import Rules
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.schedulers.clusters import BoundedScheduler, ClusterScheduler, ClustersScheduler, SharedGpus
from gpuspawner.schedulers.http.client import SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from gpuspawner.service.custom_resources.relay import Relay
from gpuspawner.service.engine.lease_documents import is_signed

if TYPE_CHECKING:
    from gpuspawner.backends.kubernetes.backend import KubernetesBackend
    from gpuspawner.backends.kubernetes.settings import ClusterSettings

SignatureCheck = Callable[[str, Mapping[str, str]], bool]
BACKEND = "GPUSPAWNER_BACKEND"
"""``local`` (the default) or ``kubernetes``."""
CLUSTER = "GPUSPAWNER_KUBERNETES"
"""The settings of the cluster as JSON, with the names of ``backends.kubernetes.settings.ClusterSettings``."""
CLUSTER_TIMES = {"fleet_seconds": 1.0, "probes_at_once": 256}
"""Settings that differ on a cluster, where observations are cheap, and probes run on other machines."""


Connect = Callable[[], Awaitable[None]]


class BackendError(Exception):
    """The backend cannot be used as configured. The message has the fault and the remedy."""


async def _nothing() -> None:
    return


@dataclass(frozen=True)
class BackendChoice:
    """The backend and scheduler with the catalog, settings and custom resources that fit them."""

    catalog: Catalog
    prepare: Callable[[Catalog], Prepared]
    """Adapts a later catalog to this backend. Raises CatalogError."""
    backend: Backend
    scheduler: Scheduler | None = None
    resources: Resources | None = None
    makes_pods: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    connect: Connect = _nothing
    """Checks that the scheduler can be used. Raises UnusableScheduler, or Unavailable without an answer."""
    close: Callable[[], Awaitable[None]] = _nothing


def choose_backend(
    catalog: Catalog, data: Path, hub_id: str, environment: Mapping[str, str], secret: bytes = b""
) -> BackendChoice:
    """Return the backend that the environment names, and the scheduler that the catalog names.

    ``secret`` is the key with which the service signs leases.

    Raises:
        BackendError: there is no such backend, or its settings are wrong.
    """
    chosen = _backend(catalog, data, hub_id, environment, partial(is_signed, secret, hub_id))
    address = catalog.scheduler
    chosen = replace(chosen, prepare=partial(_same_scheduler, address, chosen.prepare))
    if isinstance(address, HttpSchedulerAddress):
        mine = chosen.scheduler or InMemoryScheduler(chosen.backend, chosen.catalog.gpus)
        home = chosen.backend.home if isinstance(chosen.backend, ClustersBackend) else ""
        http = HttpScheduler(SchedulerClient(address, hub_id), mine, home=home)
        return _with(chosen, http, http.connect)
    if address is not None and not chosen.makes_pods:
        right = "they are on a Kubernetes cluster, and this hub has no cluster"
        raise BackendError(f"The catalog names {address.title}'s queues: {right}.")
    try:
        return _with_owners(chosen, address, hub_id)
    except ValueError as error:
        raise BackendError(str(error)) from error


def _with_owners(chosen: BackendChoice, queues: KueueQueues | PodQueues | None, hub_id: str) -> BackendChoice:
    """Add the schedulers that own the queues of clusters."""
    owned = {name: one.scheduler for name, one in chosen.catalog.clusters.items() if one.scheduler is not None}
    if queues is None and not owned:
        return chosen
    from gpuspawner.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415 - an extra

    backend, mine = chosen.backend, chosen.scheduler
    assert mine is not None
    if queues is not None:
        assert isinstance(backend, KubernetesBackend)
        owner = _queue_owner(queues, backend, mine, hub_id)
        return _with(chosen, owner, owner.connect)
    assert isinstance(backend, ClustersBackend)
    others = dict[str, BoundedScheduler]()
    for name, of_cluster in owned.items():
        one = backend.clusters[name]
        assert isinstance(one, KubernetesBackend)
        scheduler = _queue_owner(of_cluster, one, SharedGpus(mine), hub_id)
        others[name] = BoundedScheduler(chosen.catalog.clusters[name].title, scheduler)
    return _with(chosen, ClustersScheduler(mine, backend.home, others))


def _queue_owner(
    queues: KueueQueues | PodQueues, backend: KubernetesBackend, mine: Scheduler, hub_id: str
) -> ClusterScheduler:
    """Return the scheduler that owns the queues of a cluster, over that cluster's client.

    Raises:
        ValueError: the queues cannot be found.
    """
    from gpuspawner.schedulers.kueue.cluster import KueueCluster  # noqa: PLC0415 - an extra
    from gpuspawner.schedulers.kueue.scheduler import KueueScheduler  # noqa: PLC0415
    from gpuspawner.schedulers.pod_queues import SYSTEMS, PodGroups, PodQueueScheduler  # noqa: PLC0415

    settings = backend.settings
    if isinstance(queues, PodQueues):
        return PodQueueScheduler(backend, PodGroups(backend.api, settings, SYSTEMS[queues.system]), mine, queues)
    if settings.all_namespaces and not queues.namespace:
        right = "add namespace: to scheduler: {kueue: ...}, where the LocalQueues are"
        raise ValueError(f"Each user has a namespace, and the catalog names no namespace of Kueue's queues: {right}.")
    cluster = KueueCluster(backend.api, settings, queues.namespace or settings.namespace, hub_id)
    return KueueScheduler(cluster, mine, queues, hub_id, backend.tolerations)


def _with(
    chosen: BackendChoice, scheduler: HttpScheduler | ClusterScheduler | ClustersScheduler, connect: Connect = _nothing
) -> BackendChoice:
    """Add the scheduler that owns the queue."""

    async def close() -> None:
        await scheduler.close()
        await chosen.close()

    return replace(chosen, scheduler=scheduler, connect=connect, close=close)


def _same_scheduler(
    address: HttpSchedulerAddress | KueueQueues | PodQueues | None,
    prepare: Callable[[Catalog], Prepared],
    catalog: Catalog,
) -> Prepared:
    """Adapt a later catalog. The scheduler is chosen at the start only."""
    prepared, waits = prepare(catalog)
    if catalog.scheduler == address:
        return prepared, waits
    return replace(prepared, scheduler=address), (*waits, "Another scheduler takes effect after a restart of the hub.")


def _backend(
    catalog: Catalog, data: Path, hub_id: str, environment: Mapping[str, str], believes: SignatureCheck
) -> BackendChoice:
    name = environment.get(BACKEND, "local")
    if name == "local" and catalog.clusters:
        raise BackendError("clusters: workspaces are processes of this machine here. Remove it from the catalog.")
    if name == "local":
        folder = _simulated_folder(data) if catalog.simulated else data
        backend = LocalBackend(catalog.gpus.values(), catalog.simulated, folder)
        return BackendChoice(catalog, partial(_on_this_machine, catalog.simulated), backend)
    if name != "kubernetes":
        raise BackendError(f"{BACKEND}={name!r} is not a backend: local or kubernetes.")
    return _cluster(catalog, data, hub_id, environment.get(CLUSTER, ""), believes)


def _simulated_folder(data: Path) -> Path:
    """Return the folder of simulated GPUs. Processes of all users must reach it, but not the service's own folder."""
    if os.geteuid() != 0:  # then workspaces are processes of the same user
        return data
    folder = data.resolve().with_name(f"{data.resolve().name}-simulated")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    except OSError:  # a read-only parent, as in a container of the service alone
        return data
    return folder


def _cluster(catalog: Catalog, data: Path, hub_id: str, text: str, believes: SignatureCheck) -> BackendChoice:
    try:
        from gpuspawner.backends.custom_resources.cluster import CustomResources  # noqa: PLC0415
        from gpuspawner.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415 - an extra
        from gpuspawner.backends.kubernetes.fleet import cluster_kinds  # noqa: PLC0415
        from gpuspawner.backends.kubernetes.settings import cluster_settings  # noqa: PLC0415
        from gpuspawner.core.gpus.vendors import is_gpu_resource  # noqa: PLC0415
        from gpuspawner.schedulers.kubernetes import KubernetesScheduler  # noqa: PLC0415
    except ImportError as error:
        raise BackendError(f"{error.name} is not installed: pip install '.[kubernetes]' in a checkout.") from error
    try:
        settings = cluster_settings(json.loads(text or "{}"))
    except ValueError as error:
        raise BackendError(f"{CLUSTER}: {error}.") from error
    named, clusters = frozenset(kind.resource for kind in catalog.gpus.values()), catalog.clusters

    def prepare(catalog: Catalog) -> Prepared:
        if catalog.clusters != clusters:
            right = "Restart the hub. The previous catalog stays in force until then."
            raise CatalogError((Problem("catalog", None, "clusters", "it was changed while the hub runs", right),))
        try:
            menus = read_menus(data)
        except ValueError as error:
            right = "Remove it and start the hub: configure() writes it."
            raise CatalogError((Problem(str(data / FILE), None, "menus", str(error).rstrip("."), right),)) from error
        new = sorted(
            kind.resource
            for kind in catalog.gpus.values()
            if kind.resource and not is_gpu_resource(kind.resource, named)
        )
        waits = (f"GPUs that nodes call {', '.join(new)} are seen after a restart of the hub.",) if new else ()
        rules = _rules_in_namespace(catalog.rules, settings)
        return replace(catalog, gpus=cluster_kinds(catalog.gpus), menus=menus, rules=rules), waits

    try:
        catalog, _ = prepare(catalog)
    except CatalogError as error:
        raise BackendError(str(error.problems[0])) from error
    backend = _clusters(catalog, lambda kinds, there: KubernetesBackend(kinds, hub_id, there, believes), settings)
    times = {**CLUSTER_TIMES, "probes_at_once": settings.probes_at_once}
    scheduler = KubernetesScheduler(backend, catalog.gpus)
    resources: Resources | None = CustomResources(settings) if settings.custom_resources else None
    if resources is not None and settings.operated_elsewhere:
        resources = Relay(resources)

    async def close() -> None:
        if resources is not None:
            await resources.close()
        await backend.close()

    return BackendChoice(catalog, prepare, backend, scheduler, resources, makes_pods=True, settings=times, close=close)


def _rules_in_namespace(rules: Rules, settings: ClusterSettings) -> Rules:
    """Return the rules for the workspaces' namespace.

    Raises:
        CatalogError: a quota names a namespace, and each user has one.
    """
    if settings.all_namespaces and rules.quotas_of_namespaces:
        first = next(iter(rules.quotas_of_namespaces.values()))[0].name
        wrong = "each user has a namespace of their own here (enable_user_namespaces)"
        problem = Problem("catalog", None, f"quotas.{first}.namespace", wrong, "Limit the user by user: instead.")
        raise CatalogError((problem,))
    return rules.in_namespace(settings.namespace)


def _clusters(catalog: Catalog, make: Callable[..., ClusterBackend], settings: ClusterSettings) -> ClusterBackend:
    """Return the backend of the hub's own cluster. If the catalog names several, return one backend of all."""
    kinds, clusters = catalog.gpus.values(), catalog.clusters
    if not clusters:
        return make(kinds, settings)

    def backend_of(cluster: Cluster) -> ClusterBackend:
        if not cluster.kubeconfig:
            return make(kinds_in("", kinds), settings)
        there = replace(settings, kubeconfig=cluster.kubeconfig, context=cluster.context)
        return make(kinds_in(cluster.name, kinds), there)

    home = next(name for name, one in clusters.items() if not one.kubeconfig)
    return ClustersBackend({name: backend_of(one) for name, one in clusters.items()}, home, kinds)


def _on_this_machine(simulated: Mapping[str, int], catalog: Catalog) -> Prepared:
    """Adapt a later catalog on one machine. Its simulated GPUs are made at the start only."""
    if catalog.simulated == simulated:
        return catalog, ()
    waits = "Other numbers of simulated GPUs take effect after a restart of the hub."
    return replace(catalog, simulated=simulated), (waits,)
