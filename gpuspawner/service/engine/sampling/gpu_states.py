"""The state of each GPU of the fleet, for pages and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind
from gpuspawner.core.gpus.pools import counting_resource, move_marks_to_free_gpus
from gpuspawner.core.gpus.vendors import measurement_note, vendor_of
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.service.parts import Parts

STATES = ("free", "busy", "idle", "unmeasured", "foreign", "suspect", "drained")
"""Free; allocated and busy; allocated and idle; allocated and unknown; used by a process without a lease; unhealthy;
free and closed by an administrator."""
NO_KIND = "none"
"""The kind of a lease without a GPU, and of a GPU that matches no kind of the catalog."""


class ObservedGpu(NamedTuple):
    """One GPU of the fleet, its state, and the leases that hold it or a share of it."""

    gpu: Gpu
    state: str
    holders: tuple[Lease, ...]


def observe_gpus(parts: Parts) -> list[ObservedGpu]:
    """Return every GPU with its state, in the fleet's order. Empty while the fleet is unknown."""
    fleet = parts.allocator.observed.fleet
    if not fleet.complete:
        return []
    holders: dict[str, list[Lease]] = {}
    for lease in parts.registry:
        for slot in lease.slots if lease.phase in HOLDING else ():
            holders.setdefault(slot.gpu, []).append(lease)
    others = {slot.gpu for slot in parts.allocator.observed.others}
    found = []
    for gpu in move_marks_to_free_gpus(fleet, holders.keys() | others).gpus:
        held_by = holders.get(gpu.id, [])
        found.append(ObservedGpu(gpu, _state(parts, gpu, held_by, left_over=gpu.id in others), tuple(held_by)))
    return found


def count_gpu_states(parts: Parts) -> Counter[tuple[str, str]]:
    """Count the GPUs by kind and state, one of STATES. Empty while the fleet is unknown."""
    return Counter((one.gpu.pool or NO_KIND, one.state) for one in observe_gpus(parts))


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


MODELS_SHOWN = 10
"""Arbitrary: more models than a cluster has, as a rule."""


def find_unmatched_kinds(kinds: Iterable[GpuKind], fleet: Fleet) -> tuple[str, ...]:
    """Return a sentence for administrators about each kind that no GPU of a complete view matches.

    A kind whose nodes are started on demand may have no GPU now. A share is judged by the kind of its devices.
    """
    if not fleet.complete:
        return ()
    found = {gpu.pool for gpu in fleet.gpus}
    missing = [k for k in kinds if k.of is None and k.autoscale is None and k.name not in found]
    return tuple(f"No GPU matches the kind {kind.name} ({_looked_for(kind)}). {_seen(fleet)}" for kind in missing)


def find_unmeasured_kinds(kinds: Iterable[GpuKind], fleet: Fleet) -> tuple[str, ...]:
    """Return a sentence for administrators about each kind with GPUs of an unknown vendor."""
    resources = {kind.name: counting_resource(kind, fleet) for kind in kinds}
    return tuple(
        f"GPUs of the kind {name}: {measurement_note(resource)} Give their templates a short lifetime."
        for name, resource in resources.items()
        if resource and vendor_of(resource) is None
    )


def _looked_for(kind: GpuKind) -> str:
    if kind.claim is not None:
        wanted = " and ".join((f"the class {kind.claim.device_class}", *kind.claim.selectors))
        return f"no device of a ResourceSlice meets {wanted}"
    keys = ("match", "resource", "driver", "cuda")
    parts = [f"{key}: {value}" for key in keys if (value := getattr(kind, key))]
    return ", ".join(parts) or "simulated alone"


def _seen(fleet: Fleet) -> str:
    models = Counter((gpu.model, gpu.note) for gpu in fleet.gpus if not gpu.pool)
    if models:
        shown = ", ".join(f"{count} {model}" for (model, _), count in models.most_common(MODELS_SHOWN))
        first, note = models.most_common(1)[0][0]
        if note.startswith("the driver"):
            return f"GPUs that match no kind: {shown}, because {note}. Update the driver, or lower driver and cuda."
        told = note.startswith(("no label", "add a kind"))
        write = note if told else f"write, for example, match: '*{first.replace(' ', '*')}*'"
        return f"GPUs that match no kind: {shown}. To offer them, {write}."
    if fleet.gpus:
        others = ", ".join(sorted({gpu.model for gpu in fleet.gpus})[:MODELS_SHOWN])
        return f"Every GPU that is seen ({others}) has another kind: correct its match, or take the kind away."
    return (
        "No GPU is seen at all: nvidia-smi on this machine, or kubectl describe nodes on a cluster, tells whether "
        "there is one."
    )
