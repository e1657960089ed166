"""Nodes that are not there yet: a pool that a cluster's autoscaler starts once a pod waits for one.

Their GPUs can be granted like others, after all those that are there: the grant lets the pod be made that the
autoscaler sees waiting. Until it runs, its lease holds GPUs of a node that is coming, whose name is made up
(``gpus.names``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gpuspawner.core.gpus.fleet import Autoscale, Gpu, GpuKind, Group, coming_group
from gpuspawner.core.leases.lease import HOLDING, Lease

WHOLE_GPU = "nvidia.com/gpu"
PATIENCE = 2.0
"""A node that takes this many times as long as the catalog says is not coming now. Arbitrary: as clouds vary."""


def coming_gpus(kinds: Iterable[GpuKind], there: Sequence[Gpu], leases: Iterable[Lease]) -> tuple[Gpu, ...]:
    """Return the GPUs of the nodes that may still be started.

    1. Of each kind as many nodes as are left of the most it may have beside those that are there. A lease may hold
       GPUs of a node that is not seen yet: its pod runs, so the node is there.
    2. Nodes of which a lease holds GPUs are among them; then others, numbered from 0.
    """
    scaled = [kind for kind in kinds if kind.autoscale is not None]
    if not scaled:
        return ()
    held = {(x.kind, slot) for x in leases if x.phase in HOLDING for slot in x.slots}
    found: list[Gpu] = []
    for kind in scaled:
        assert kind.autoscale is not None, "only those were taken"
        own = {slot for name, slot in held if name == kind.name}
        have = {gpu.id for gpu in there if gpu.pool == kind.pool} | {slot.gpu for slot in own if not slot.is_coming}
        nodes = max(0, kind.autoscale.most - len(have)) // kind.autoscale.each
        promised = {slot.group for slot in own if slot.group and slot.group.is_coming}
        found += (gpu for group in _groups(kind, nodes, promised) for gpu in _gpus(kind, kind.autoscale, group))
    return tuple(found)


def patience_seconds(kind: GpuKind | None) -> float:
    """Return how long a pod of this kind is left waiting for a node, 0 where none is ever started for it."""
    return 0.0 if kind is None or kind.autoscale is None else PATIENCE * kind.autoscale.start_seconds


def _groups(kind: GpuKind, nodes: int, held: Collection[Group]) -> list[Group]:
    fresh = (coming_group(kind.name, number, kind.resource or WHOLE_GPU) for number in range(nodes))
    return [*sorted(held), *(group for group in fresh if group not in held)][:nodes]


def _gpus(kind: GpuKind, autoscale: Autoscale, group: Group) -> Iterable[Gpu]:
    for index in range(autoscale.each):
        yield Gpu(group.gpu(index), kind.pool, group.node, index, kind.title, kind.memory_bytes, group=group)
