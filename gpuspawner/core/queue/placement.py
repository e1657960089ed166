"""Which GPUs a request gets: the tightest fit over what no lease and no process uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.leases.lease import HOLDING, Lease


def used_shares(leases: Iterable[Lease], others: Iterable[Slot] = ()) -> dict[str, Fraction]:
    """Return the share in use of each GPU id: leases that hold GPUs, and ``others`` seen running without a lease.

    What runs for a lease that holds its GPUs must not be in ``others``: it would count twice.
    """
    used: dict[str, Fraction] = {}
    for slot in [*(slot for lease in leases if lease.phase in HOLDING for slot in lease.slots), *others]:
        used[slot.gpu] = used[slot.gpu] + slot.share if slot.gpu in used else slot.share  # few are shared
    return used


def left_over(seen: Iterable[tuple[str, Slot]], leases: Iterable[Lease]) -> tuple[Slot, ...]:
    """Return what runs on GPUs that its lease does not hold, or not any more: it uses them all the same.

    ``seen`` is what runs: lease id and slot. Leases and processes are joined by both, so that nothing counts twice.
    """
    held = {(lease.id, slot) for lease in leases if lease.phase in HOLDING for slot in lease.slots}
    return tuple(slot for _, slot in sorted(set(seen) - held, key=lambda x: (x[0], x[1].gpu, x[1].share)))


def grantable(gpu: Gpu) -> bool:
    """Whether a device may be given at all."""
    return gpu.healthy and not gpu.foreign


def place(
    kind: GpuKind, count: int, fleet: Fleet, used: Mapping[str, Fraction], tried: Sequence[str] = ()
) -> tuple[Slot, ...] | None:
    """Return ``count`` slots of ``kind`` on distinct devices, or None where they do not fit.

    Devices are taken in this order, so that shares stay together and whole GPUs stay whole:

    1. a node that was not ``tried``, then the one that was tried longest ago: it lacked something else than GPUs;
    2. a node that is there before one that is coming;
    3. the node with the fewest free GPUs of the pool that still fits all (several GPUs of one lease share a node);
    4. the device with the largest share in use;
    5. node name, index, id.
    """
    if not fleet.complete:
        return None
    pool, share = kind.pool, kind.share
    candidates = [
        gpu
        for gpu in fleet.gpus  # of tens of thousands, few are in use: only for those is anything computed
        if gpu.pool == pool and grantable(gpu) and (gpu.id not in used or used[gpu.id] + share <= 1)
    ]
    free_on_node = Counter(gpu.node for gpu in candidates)
    fitting = [node for node, free in free_on_node.items() if free >= count]
    if not fitting:
        return None
    last_tried = {node: at for at, node in enumerate(tried, 1)}
    coming = {gpu.node for gpu in candidates if gpu.is_coming}
    node = min(fitting, key=lambda node: (last_tried.get(node, 0), node in coming, free_on_node[node], node))
    on_node = [gpu for gpu in candidates if gpu.node == node]
    on_node.sort(key=lambda gpu: (-used.get(gpu.id, Fraction(0)), gpu.index, gpu.id))
    return tuple(Slot(gpu.id, share) for gpu in on_node[:count])


def largest_fit(kind: GpuKind, fleet: Fleet, *, foreign_too: bool = False) -> int:
    """Return how many units of ``kind`` an empty fleet could give one lease (GPUs of a lease share a node).

    ``foreign_too`` counts GPUs that strangers use: they come back, though nobody knows when.
    """
    pool = kind.pool
    own = [gpu for gpu in fleet.gpus if gpu.pool == pool and gpu.healthy and (foreign_too or not gpu.foreign)]
    nodes = Counter(gpu.node for gpu in own)
    return max(nodes.values(), default=0)


def count_free(kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction]) -> int:
    """Return how many units of ``kind`` are free now: slices of a shared device count each, what is coming does not."""
    free, pool, share = 0, kind.pool, kind.share
    for gpu in fleet.gpus:
        if gpu.pool == pool and grantable(gpu) and not gpu.is_coming:
            free += kind.shares if gpu.id not in used else max(0, int((1 - used[gpu.id]) // share))
    return free


def count_all(kind: GpuKind, fleet: Fleet) -> int:
    """Return how many units of ``kind`` the fleet has, without what is coming."""
    pool = kind.pool
    return kind.shares * sum(gpu.pool == pool and not gpu.is_coming for gpu in fleet.gpus)


def count_away(kind: GpuKind, fleet: Fleet) -> int:
    """Return how many units of ``kind`` may not be given, whoever holds them: unhealthy, or on a closed node."""
    pool = kind.pool
    return kind.shares * sum(gpu.pool == pool and not gpu.healthy for gpu in fleet.gpus)
