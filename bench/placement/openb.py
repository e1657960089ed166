"""The nodes and tasks of "openb", a public trace of a real GPU cluster; they are no part of this repository."""

from __future__ import annotations

import csv
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuspawner.core.gpus.fragmentation import NodeState, ResourceRequest

LISTS = ("default", "gpuspec10", "gpuspec25", "gpuspec33")
MEMORY_GIB = {"P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32, "A10": 24}
"""The trace as published. It hides the models of G2 and G3, so they are never used as substitutes."""


def folder() -> Path | None:
    """Return where the trace lies, None where it is not: ``OPENB``, or ``shared/data/openb`` in a folder above."""
    above = (parent / "shared" / "data" / "openb" for parent in Path(__file__).resolve().parents)
    places = [Path(os.environ["OPENB"])] if "OPENB" in os.environ else above
    return next((place for place in places if place.is_dir()), None)


@dataclass(frozen=True)
class Task:
    """A task of the list. ``instead`` are the kinds that its user takes where none of those named is free."""

    ask: ResourceRequest
    instead: frozenset[str] = frozenset()
    created: float = 0.0
    seconds: float = 0.0

    @property
    def gpus(self) -> float:
        return self.ask.share * self.ask.gpus


@dataclass(frozen=True)
class Trace:
    """Nodes, empty, and tasks."""

    nodes: tuple[NodeState, ...]
    tasks: tuple[Task, ...]
    gpus: Counter[str] = field(init=False)
    """How many of each kind."""

    def __post_init__(self) -> None:
        found: Counter[str] = Counter()
        for node in self.nodes:
            found[node.pool] += len(node.free)
        object.__setattr__(self, "gpus", +found)

    @property
    def capacity(self) -> int:
        return self.gpus.total()

    def arrivals(self, seed: int, most: float) -> Iterator[Task]:
        """Return tasks in random order until they ask for ``most`` of the capacity: the list, and some of it again."""
        rng, tasks = random.Random(seed), list(self.tasks)
        asked = sum(task.gpus for task in tasks)
        while asked < (most + 0.01) * self.capacity:
            tasks.append(rng.choice(self.tasks))
            asked += tasks[-1].gpus
        rng.shuffle(tasks)
        return iter(tasks)


def read(place: Path, name: str) -> Trace:
    """Return the trace with one of its lists of tasks.

    The lists "multigpu..." have no ``gpu_spec`` and no times: their tasks take any kind, and last for no time.
    """
    with (place / "openb_node_list_all_node.csv").open() as lines:
        nodes = tuple(
            NodeState(row["model"], (1.0,) * int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"]))
            for row in csv.DictReader(lines)
        )
    kinds = frozenset(node.pool for node in nodes if node.free)
    with (place / f"openb_pod_list_{name}.csv").open() as lines:
        tasks = tuple(_task(row, kinds) for row in csv.DictReader(lines))
    return Trace(nodes, tasks)


def _task(row: dict[str, str], kinds: frozenset[str]) -> Task:
    count = int(row["num_gpu"])
    share = 0.0 if count == 0 else 1.0 if count > 1 else int(row["gpu_milli"]) / 1000
    named = frozenset(filter(None, (row.get("gpu_spec") or "").split("|")))
    ask = ResourceRequest(
        named & kinds if named else kinds, share, count, int(row["cpu_milli"]), int(row["memory_mib"])
    )
    created = float(row.get("creation_time") or 0)
    return Task(ask, created=created, seconds=float(row.get("deletion_time") or created) - created)


def with_consent(trace: Trace, part: float, seed: int = 0) -> Trace:
    """Return the trace where this part of those who name kinds take any other of at least their memory instead."""
    rng, tasks = random.Random(seed), []
    for task in trace.tasks:
        named = task.ask.pools
        if task.ask.gpus and named < trace.gpus.keys() and rng.random() < part:
            tasks.append(Task(task.ask, _at_least(named), task.created, task.seconds))
        else:
            tasks.append(task)
    return Trace(trace.nodes, tuple(tasks))


def _at_least(named: frozenset[str]) -> frozenset[str]:
    if not named <= MEMORY_GIB.keys():
        return frozenset()
    least = max(MEMORY_GIB[name] for name in named)
    return frozenset(name for name, memory in MEMORY_GIB.items() if memory >= least) - named


def how_often(tasks: Sequence[Task]) -> Counter[ResourceRequest]:
    """Return how often each ask comes."""
    return Counter(task.ask for task in tasks)
