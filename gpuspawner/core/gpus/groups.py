"""GPUs that cannot be told apart from outside, only counted: which of a group is whose is ours to say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Group, Slot


@dataclass(frozen=True)
class Occupant:
    """What was seen to hold GPUs: ``given`` counts them by group, None where it holds exactly its ``slots``.

    ``slots`` are those it is known by: what its lease holds or, without one, what it says.
    """

    slots: tuple[Slot, ...]
    given: Mapping[Group, int] | None = None


def seats(occupants: Iterable[Occupant], reserved: Iterable[Slot] = ()) -> list[tuple[Slot, ...]]:
    """Return the slots of each occupant, as many of each group as it was given.

    1. It keeps those of its own slots that are of these groups, as many as it was given.
    2. For the rest it takes the first of the group that neither another occupant keeps nor is ``reserved`` for a lease
       that was given nothing yet. Where the group has no more, there are more given than the group has: the next
       numbers stand for them.
    """
    occupants = list(occupants)
    kept = [_kept(occupant) for occupant in occupants]
    taken = {slot.gpu for slot in reserved} | {slot.gpu for slots in kept for slot in slots}
    for occupant, slots in zip(occupants, kept, strict=True):
        for group, count in sorted((occupant.given or {}).items()):
            index, missing = 0, count - sum(slot.group == group for slot in slots)
            while missing > 0:
                gpu = group.gpu(index)
                if gpu not in taken:
                    taken.add(gpu)
                    slots.append(Slot(gpu))
                    missing -= 1
                index += 1
    return [tuple(slots) for slots in kept]


def _kept(occupant: Occupant) -> list[Slot]:
    if occupant.given is None:
        return list(occupant.slots)
    left = dict(occupant.given)
    kept = []
    for slot in occupant.slots:
        if slot.group is not None and left.get(slot.group, 0) > 0:
            left[slot.group] -= 1
            kept.append(slot)
    return kept


def resource_of(kind: GpuKind, fleet: Fleet) -> str:
    """Return the resource that counts a kind's GPUs; "" where none does, as on one machine."""
    groups = (gpu.group for gpu in fleet.of_pool.get(kind.pool, ()))
    return kind.resource or next((group.resource for group in groups if group is not None), "")


def unmarked(fleet: Fleet, held: Collection[str]) -> Fleet:
    """Return the fleet with the marks of each group (foreign, unhealthy) on GPUs that nobody holds, where there are.

    Somebody else's GPU is any of its group: were it one that a lease holds, the group would look to have one more free.
    """
    members_of: dict[Group | None, list[Gpu]] = {
        g.group: [] for g in fleet.gpus if g.id in held and g.group and is_marked(g)
    }
    if not members_of:
        return fleet
    for gpu in fleet.gpus:
        if gpu.group in members_of:
            members_of[gpu.group].append(gpu)
    changed: dict[str, Gpu] = {}
    for members in members_of.values():
        free = [gpu for gpu in members if gpu.id not in held and not is_marked(gpu)]
        for gpu in [gpu for gpu in members if gpu.id in held and is_marked(gpu)][: len(free)]:
            other = free.pop()
            changed[gpu.id] = _with_mark_of(other, gpu)
            changed[other.id] = _with_mark_of(gpu, other)
    return replace(fleet, gpus=tuple(changed.get(gpu.id, gpu) for gpu in fleet.gpus))


def is_marked(gpu: Gpu) -> bool:
    """Whether it may not be given: somebody else's, or unhealthy."""
    return gpu.foreign or not gpu.healthy


def _with_mark_of(marked: Gpu, gpu: Gpu) -> Gpu:
    return replace(gpu, healthy=marked.healthy, foreign=marked.foreign, note=marked.note)
