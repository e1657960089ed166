"""The map of the console: nodes and what each of their GPUs is doing. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuspawner.core.gpus.fleet import GpuKind, NodeName
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.engine.gpu_states import NO_KIND, STATES, SeenGpu

NODES_SHOWN = 40
"""On one page of the map. Arbitrary: about a screen."""
WORDS = {"idle": "held but idle"}
"""States that people read otherwise."""
LETTERS = {"free": "", "busy": "B", "idle": "I", "unmeasured": "?", "foreign": "F", "suspect": "!", "drained": "D"}
"""What stands in a GPU's square: its state is never told by colour alone."""
NOTED = ("suspect", "foreign", "drained", "unmeasured", "idle")
"""States in the order in which nodes with them come first."""


@dataclass(frozen=True)
class Square:
    """One GPU of the map. ``words`` tells all of it in a sentence; ``page`` is its holder's, "" for none."""

    index: int
    state: str
    letter: str
    words: str
    lease: str


@dataclass(frozen=True)
class Machine:
    """One node: its GPUs, and how many are in which state, in words."""

    name: str
    kinds: str
    gpus: tuple[SeenGpu, ...]
    words: str
    counts: Mapping[str, int]

    @property
    def squares(self) -> tuple[Square, ...]:
        """Its GPUs as they are drawn: made of the nodes that are shown alone."""
        return tuple(_square(one) for one in sorted(self.gpus, key=lambda one: one.gpu.index))


def shown(state: str) -> str:
    """Return a state as people read it."""
    return WORDS.get(state, state)


def kind_counts(seen: Iterable[SeenGpu], kinds: Mapping[str, GpuKind]) -> list[dict[str, object]]:
    """Return how many GPUs of each kind are in each state, in the catalog's order, those of no kind last."""
    counted = Counter((one.gpu.pool or NO_KIND, one.state) for one in seen)
    simulated = {one.gpu.pool for one in seen if one.gpu.simulated}
    return [
        {
            "kind": kind,
            "title": kinds[kind].title if kind in kinds else "no kind of the catalog",
            "simulated": kind in simulated,
            "counts": {state: counted[kind, state] for state in STATES},
            "total": sum(counted[kind, state] for state in STATES),
        }
        for kind in [*kinds, NO_KIND]
        if any(counted[kind, state] for state in STATES)
    ]


def foreign_holders(seen: Iterable[SeenGpu], kinds: Mapping[str, GpuKind]) -> list[dict[str, object]]:
    """Return who else holds GPUs of which kind, and how many: whoever holds most comes first."""
    counted = Counter((one.gpu.holder or "Somebody unknown", one.gpu.pool) for one in seen if one.state == "foreign")
    return [
        {"holder": holder, "kind": kinds[pool].title if pool in kinds else "no kind", "gpus": count}
        for (holder, pool), count in sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    ]


def machines(seen: Iterable[SeenGpu], kinds: Mapping[str, GpuKind]) -> list[Machine]:
    """Return the nodes: those with something to look at first (NOTED, in that order), then by name."""
    nodes: dict[NodeName, list[SeenGpu]] = defaultdict(list)
    for one in seen:
        nodes[one.gpu.on].append(one)
    found = [_machine(name.node, gpus, kinds) for name, gpus in nodes.items()]
    return sorted(found, key=lambda one: ([not one.counts.get(state) for state in NOTED], _natural(one.name)))


def matching(found: Sequence[Machine], node: str, state: str, kind: str) -> list[Machine]:
    """Return the nodes whose name has a part, with a GPU in a state, of a kind's title; "" lets all through."""
    return [
        one
        for one in found
        if node.casefold() in one.name.casefold() and (not state or one.counts.get(state)) and kind in one.kinds
    ]


def _machine(name: str, gpus: Sequence[SeenGpu], kinds: Mapping[str, GpuKind]) -> Machine:
    counts = Counter(one.state for one in gpus)
    pools = dict.fromkeys(one.gpu.pool for one in gpus)
    titles = ", ".join(kinds[pool].title if pool in kinds else "no kind" for pool in pools)
    words = ", ".join(f"{counts[state]} {shown(state)}" for state in STATES if counts[state])
    zone, cluster = gpus[0].gpu.zone, gpus[0].gpu.cluster
    titles += (f" in zone {zone}" if zone else "") + (f" of {cluster}" if cluster else "")
    titles += ", spot" if gpus[0].gpu.spot else ""
    return Machine(name, titles, tuple(gpus), words, counts)


def _square(one: SeenGpu) -> Square:
    gpu, names = one.gpu, ", ".join(dict.fromkeys(lease.user for lease in one.holders))
    words = f"GPU {gpu.index}: {shown(one.state)}"
    if names:
        words += f", held by {names}"
    if gpu.holder:
        words += f", held by {gpu.holder}"
    elif gpu.note:
        words += f". {gpu.note}"
    return Square(gpu.index, one.state, LETTERS.get(one.state, "?"), words, _first(one.holders))


def _first(holders: Sequence[Lease]) -> str:
    return holders[0].id if holders else ""


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Order node-9 before node-10."""
    parts, text = [], ""
    for letter in f"{name} ":
        if text and (letter.isdigit() != text[-1].isdigit() or letter == " "):
            is_number = text.isascii() and text.isdigit()
            parts.append((0, int(text), "") if is_number else (1, 0, text))
            text = ""
        text += letter
    return parts
