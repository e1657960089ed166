"""What each GPU of the fleet is doing: the one count behind pages and metrics."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.core.gpus.pools import unmarked
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.service.parts import Parts

STATES = ("free", "busy", "idle", "unmeasured", "foreign", "suspect", "drained")
"""free; held and computing; held but idle; held and not known; used by what is no workspace; not to be given; free, and
closed by an administrator."""
NO_KIND = "none"
"""The kind of a lease without a GPU, and of a GPU that matches no kind of the catalog."""


class SeenGpu(NamedTuple):
    """One GPU of the fleet, what it is doing, and which leases hold it or a share of it."""

    gpu: Gpu
    state: str
    holders: tuple[Lease, ...]


def seen_gpus(parts: Parts) -> list[SeenGpu]:
    """Return every GPU with its state, in the fleet's order. Empty while they are unknown."""
    fleet = parts.allocator.observed.fleet
    if not fleet.complete:
        return []
    holders: dict[str, list[Lease]] = {}
    for lease in parts.registry:
        for slot in lease.slots if lease.phase in HOLDING else ():
            holders.setdefault(slot.gpu, []).append(lease)
    others = {slot.gpu for slot in parts.allocator.observed.others}
    found = []
    for gpu in unmarked(fleet, holders.keys() | others).gpus:
        held_by = holders.get(gpu.id, [])
        found.append(SeenGpu(gpu, _state(parts, gpu, held_by, left_over=gpu.id in others), tuple(held_by)))
    return found


def gpu_states(parts: Parts) -> Counter[tuple[str, str]]:
    """Return how many GPUs of each kind are in each of STATES: (kind, state) → count. Empty while they are unknown."""
    return Counter((one.gpu.pool or NO_KIND, one.state) for one in seen_gpus(parts))


def _state(parts: Parts, gpu: Gpu, holders: list[Lease], *, left_over: bool) -> str:
    if not gpu.healthy:
        return "suspect"
    if gpu.foreign:
        return "foreign"
    if not holders:
        return "unmeasured" if left_over else "drained" if gpu.closed else "free"
    readings = [parts.sampler.newest(lease.id).get(gpu.id) for lease in holders]
    kinds = {reading.kind if reading else "unknown" for reading in readings}
    if "busy" in kinds:
        return "busy"
    return "idle" if kinds == {"idle"} else "unmeasured"
