"""Who owns the queue of a Kubernetes cluster, as the catalog names it: Kueue, or one in whose queues pods wait."""

from __future__ import annotations

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.catalog import KueueQueues, PodQueues
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.schedulers.by_cluster.asked import ClusterScheduler
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.scheduler import KueueScheduler
from gpuspawner.schedulers.pod_queues.groups import PodGroups
from gpuspawner.schedulers.pod_queues.scheduler import PodQueueScheduler
from gpuspawner.schedulers.pod_queues.systems import SYSTEMS


def owner_of(
    queues: KueueQueues | PodQueues, backend: KubernetesBackend, mine: Scheduler, hub_id: str
) -> ClusterScheduler:
    """Return who owns the queues of a cluster, asked by that cluster's client.

    Raises ValueError where they can't be found.
    """
    settings = backend.settings
    if isinstance(queues, PodQueues):
        return PodQueueScheduler(backend, PodGroups(backend.api, settings, SYSTEMS[queues.system]), mine, queues)
    if settings.all_namespaces and not queues.namespace:
        right = "add namespace: to scheduler: {kueue: ...}, where the LocalQueues are"
        raise ValueError(f"Each user has a namespace, and the catalog names no namespace of Kueue's queues: {right}.")
    cluster = KueueCluster(backend.api, settings, queues.namespace or settings.namespace, hub_id)
    return KueueScheduler(cluster, mine, queues, hub_id, backend.tolerations)
