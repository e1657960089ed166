"""Plain kube-scheduler: GPUs are granted by the fleet before a pod is made, and it then places the pod.

What it gave is seen by the service (``service.seating``); a pod for which it finds no place goes back to the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import resource_of
from gpuspawner.core.gpus import Gpu, GpuKind, Slot
from gpuspawner.core.lease import Lease
from gpuspawner.core.placement import grantable, used_shares
from gpuspawner.core.queue import Conditions, Place
from gpuspawner.schedulers.base import Grant, Offer
from gpuspawner.schedulers.memory import InMemoryScheduler


class KubernetesScheduler(InMemoryScheduler):
    """As the in-memory scheduler, within what the namespace's quotas leave.

    A GPU that the quotas leave out is withheld: as if in use, by nobody whose end would free it.
    """

    def __init__(self, backend: KubernetesBackend, kinds: Mapping[str, GpuKind]) -> None:
        """Serve ``kinds`` (``cluster_kinds``) from a cluster."""
        super().__init__(backend, kinds)
        self._cluster = backend

    def decide(self, leases: Sequence[Lease], at: Conditions) -> list[Grant]:
        """Return the grants to make now, in order. The first that would exceed a quota makes the rest of its pool wait.

        What is withheld bounds each pool by itself; several pools may share a resource, and so a quota.
        """
        left = self._left(leases, at.others)
        within: list[Grant] = []
        over: set[str] = set()
        for grant in super().decide(leases, replace(at, others=(*at.others, *self._withheld(leases, at.others)))):
            pool = self._kinds[grant.lease.request.gpu].pool if grant.lease.request.gpu else ""
            asked = Counter(resource_of(slot.gpu) for slot in grant.slots)
            if pool in over or any(count > left.get(resource, count) for resource, count in asked.items()):
                over.add(pool)
                continue
            left = {resource: count - asked[resource] for resource, count in left.items()}
            within.append(grant)
        return within

    def offers(self, leases: Sequence[Lease], others: Sequence[Slot]) -> list[Offer]:
        """Return what could be had of every kind, in the catalog's order."""
        caps = self._cluster.quota_caps()
        found = super().offers(leases, (*others, *self._withheld(leases, others)))
        return [self._bounded(offer, caps) for offer in found]

    def place(self, lease: Lease, leases: Sequence[Lease], others: Sequence[Slot], now: float) -> Place:
        """Return where a waiting lease stands."""
        return super().place(lease, leases, (*others, *self._withheld(leases, others)), now)

    def _bounded(self, offer: Offer, caps: Mapping[str, int]) -> Offer:
        """Return the offer with the most that one workspace may ever ask for, by the nodes and by the quotas.

        Nodes that are cordoned, drained or not ready come back: what they have is waited for, and not refused.
        """
        gpus = [gpu for gpu in self.fleet.gpus if gpu.pool == self._kinds[offer.kind].pool]
        if offer.largest is None or not gpus:
            return offer
        on_one_node = max(Counter(gpu.node for gpu in gpus).values())
        of_quotas = [caps[resource] for resource in {resource_of(gpu.id) for gpu in gpus} if resource in caps]
        return replace(offer, largest=min([on_one_node, *of_quotas]))

    def _left(self, leases: Sequence[Lease], others: Sequence[Slot]) -> dict[str, int]:
        """Return how many GPUs of each resource that has a quota may still be granted."""
        held = Counter(resource_of(gpu) for gpu in used_shares(leases, others))
        return {resource: max(0, cap - held[resource]) for resource, cap in self._cluster.quota_caps().items()}

    def _withheld(self, leases: Sequence[Lease], others: Sequence[Slot]) -> tuple[Slot, ...]:
        """Return the free GPUs beyond what the quotas leave. Of each pool the fullest nodes keep theirs last.

        1. What is left stays where most is free, so that several GPUs on one node can still be had;
        2. node name, then index.
        """
        left = self._left(leases, others)
        if not left:
            return ()
        used = used_shares(leases, others)
        free: dict[tuple[str, str], list[Gpu]] = {}
        for gpu in self._as_held(leases, others).gpus:
            if grantable(gpu) and gpu.id not in used and resource_of(gpu.id) in left:
                free.setdefault((gpu.pool, resource_of(gpu.id)), []).append(gpu)
        return tuple(slot for (_, resource), gpus in sorted(free.items()) for slot in _beyond(gpus, left[resource]))


def _beyond(gpus: Iterable[Gpu], left: int) -> Iterable[Slot]:
    """Return slots on all but ``left`` of these free GPUs."""
    gpus = tuple(gpus)
    on_node = Counter(gpu.node for gpu in gpus)
    ordered = sorted(gpus, key=lambda gpu: (-on_node[gpu.node], gpu.node, gpu.index))
    return [Slot(gpu.id, Fraction(1)) for gpu in ordered[left:]]
