"""The input of the queue benchmark: a part of the nodes and of the GPU tasks of "openb", at a chosen load.

Arrivals and durations are the trace's own; all gaps between arrivals shrink by one factor to reach the load. The rest
is random, from a seed: users, some of whom ask for much more, and how much longer than it runs each
task says that it will. Shares are those that the product offers: the part of a GPU whose whole number holds the task's.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from openb import Task, Trace

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind
from gpuspawner.core.gpus.fragmentation import NodeState
from gpuspawner.core.leases.request import Request

USERS = 40
LONGEST_SECONDS = 86400.0
"""As a policy would bound it: one task in a hundred of the trace runs longer, and these are nine tenths of its work."""
BUSY_AFTER = 1e7
"""Start of the complete records, in seconds of the trace. Of earlier tasks only those still running are recorded."""
NODES = 100
"""Every n-th node is taken, because the whole cluster has work for only three hours in the trace."""


@dataclass(frozen=True)
class Session:
    """A request of one user and what comes of it: the GPUs, the run time, and when the workspace is idle."""

    id: str
    asked_at: float
    seconds: float
    request: Request
    gpus: float
    idle: tuple[tuple[float, float], ...] = ()
    """When it is idle, in seconds since it began to run."""

    def idle_seconds(self, age_seconds: float) -> float:
        """Return how long it has been idle at this age."""
        return next((age_seconds - begin for begin, end in self.idle if begin <= age_seconds < end), 0.0)


@dataclass(frozen=True)
class Workload:
    """A fleet, its kinds, and the sessions that come, the first first."""

    fleet: Fleet
    kinds: Mapping[str, GpuKind]
    sessions: tuple[Session, ...]


def workload(trace: Trace, load: float, part: int, nodes: int = NODES, seed: int = 0, offset: int = 0) -> Workload:
    """Return every ``part``-th task at this load, and a small cluster for them. ``offset`` is the first task."""
    rng = random.Random(seed)
    looks = [node for node in trace.nodes if node.free][::nodes]
    gpus = [
        Gpu(f"{number}-{index}", look.pool, f"node-{number:04}", index, look.pool, 0)
        for number, look in enumerate(looks)
        for index in range(len(look.free))
    ]
    largest = _largest(looks)
    busy = (task for task in trace.tasks if task.ask.gpus and task.created >= BUSY_AFTER)
    chosen = sorted(busy, key=lambda task: task.created)[offset::part]
    tasks = [task for task in chosen if task.seconds > 0 and _kinds_of(task, largest)]
    kinds: dict[str, GpuKind] = {}
    found = [_session(number, task, largest, kinds, rng) for number, task in enumerate(tasks)]
    work = sum(one.gpus * one.seconds for one in found)
    first, last = found[0].asked_at, found[-1].asked_at
    factor = work / (load * len(gpus)) / (last - first)
    moved = (Session(one.id, (one.asked_at - first) * factor, one.seconds, one.request, one.gpus) for one in found)
    return Workload(Fleet(tuple(gpus), complete=True), kinds, tuple(moved))


def repeated(work: Workload) -> Workload:
    """Return the same sessions twice, one after the other, so that the last ones of the first time may start, too."""
    begin = work.sessions[-1].asked_at + work.sessions[-1].asked_at / len(work.sessions)
    again = (replace(one, id=f"{one.id} again", asked_at=begin + one.asked_at) for one in work.sessions)
    return replace(work, sessions=(*work.sessions, *again))


def _largest(nodes: Iterable[NodeState]) -> dict[str, int]:
    """Return how many GPUs the largest node of each kind has, the kind with the most GPUs first."""
    all_of: dict[str, int] = {}
    largest: dict[str, int] = {}
    for node in nodes:
        all_of[node.pool] = all_of.get(node.pool, 0) + len(node.free)
        largest[node.pool] = max(largest.get(node.pool, 0), len(node.free))
    return {pool: largest[pool] for pool in sorted(largest, key=lambda pool: (-all_of[pool], pool))}


def _kinds_of(task: Task, largest: Mapping[str, int]) -> list[str]:
    return [pool for pool, most in largest.items() if pool in task.ask.pools and most >= task.ask.gpus]


def _session(
    number: int, task: Task, largest: Mapping[str, int], kinds: dict[str, GpuKind], rng: random.Random
) -> Session:
    shares = int(1 / task.ask.share + 1e-9)
    names = []
    for pool in _kinds_of(task, largest):
        kinds.setdefault(pool, GpuKind(pool, pool, 0))
        if shares > 1:
            kinds.setdefault(f"{pool}/{shares}", GpuKind(f"{pool}/{shares}", pool, 0, of=pool, shares=shares))
        names.append(pool if shares == 1 else f"{pool}/{shares}")
    user = min(int(USERS * rng.random() ** 2), USERS - 1)  # a few ask for much
    seconds = min(task.seconds, LONGEST_SECONDS)
    said = ceil(seconds * (1 + rng.random()) / 3600) * 3600
    request = Request(
        f"user{user}", "lab", "default", names[0], task.ask.gpus, task.ask.cpu / 1000, task.ask.memory * 2**20, said,
        substitutes=tuple(names[1:]),
    )  # fmt: skip
    return Session(f"{number:06}", task.created, seconds, request, task.ask.gpus / shares)


def users_of(sessions: Sequence[Session]) -> list[str]:
    """Return all users, sorted."""
    return sorted({one.request.user for one in sessions})
