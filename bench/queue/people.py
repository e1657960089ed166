"""The second input of the queue benchmark: generated workspaces of people with habits of their own, from a seed.

Each person has hours at which they come, a usual length of work, breaks, and a chance to leave without a stop. Then the
workspace is idle until its idle stop. All figures are arbitrary: no trace of interactive workspaces is public.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sessions import Session, Workload

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind
from gpuspawner.core.leases.request import Request

PEOPLE, DAYS, NODES, GPUS_EACH = 90, 60, 4, 8
HOUR, DAY = 3600.0, 86400.0
IDLE_STOP_SECONDS = 40 * 60.0
LIFETIMES = (8 * HOUR, 12 * HOUR, 24 * HOUR)
FIRST_WEEKDAY, WORK_DAYS, WEEK = 3, 5, 7
POOL = "A100"


@dataclass(frozen=True)
class Person:
    """One person's habits."""

    comes: float
    """The share of work days with a workspace."""
    hour: float
    """The usual hour at which they come."""
    seconds: float
    """The median length of their work."""
    leaves_idle: float
    """The share of workspaces that they leave without a stop."""
    break_seconds: float
    """The mean time between two breaks."""
    gpus: int
    lifetime_seconds: float


def person(rng: random.Random) -> Person:
    """Draw one person."""
    return Person(
        comes=rng.uniform(0.4, 1.0),
        hour=rng.gauss(10.5, 2.2),
        seconds=HOUR * math.exp(rng.gauss(math.log(4.0), 0.7)),
        leaves_idle=rng.random(),
        break_seconds=rng.uniform(1.0, 5.0) * HOUR,
        gpus=rng.choices((1, 2, 4), (0.7, 0.2, 0.1))[0],
        lifetime_seconds=rng.choice(LIFETIMES),
    )


def generated(days: int = DAYS, people: int = PEOPLE, seed: int = 0, nodes: int = NODES) -> Workload:
    """Return the sessions of all people, and the GPUs: 8 on each node."""
    rng = random.Random(seed)
    gpus = [
        Gpu(f"{number}-{index}", POOL, f"node-{number}", index, POOL, 0)
        for number in range(nodes)
        for index in range(GPUS_EACH)
    ]
    drawn = [one for number in range(people) for one in _sessions(f"user{number}", person(rng), days, rng)]
    drawn.sort(key=lambda one: (one.asked_at, one.id))
    return Workload(Fleet(tuple(gpus), complete=True), {POOL: GpuKind(POOL, POOL, 0)}, tuple(drawn))


def _sessions(user: str, habits: Person, days: int, rng: random.Random) -> Iterator[Session]:
    for day in range(days):
        if (day + FIRST_WEEKDAY) % WEEK >= WORK_DAYS or rng.random() > habits.comes:
            continue
        at = DAY * day + HOUR * min(23.0, max(0.0, rng.gauss(habits.hour, 0.7)))
        work = min(habits.seconds * math.exp(rng.gauss(0.0, 0.4)), habits.lifetime_seconds - HOUR)
        breaks = tuple(_breaks(work, habits, rng))
        seconds, idle = work, breaks
        if ended := next((begin for begin, end in breaks if end - begin >= IDLE_STOP_SECONDS), None):
            seconds = ended + IDLE_STOP_SECONDS  # too long a break: the workspace is stopped
        elif rng.random() < habits.leaves_idle:
            seconds, idle = work + IDLE_STOP_SECONDS, (*breaks, (work, math.inf))
        request = Request(user, "lab", "default", POOL, habits.gpus, 1.0, 2**30, int(habits.lifetime_seconds))
        yield Session(f"{user}-{day}", at, seconds, request, float(habits.gpus), idle)


def _breaks(work: float, habits: Person, rng: random.Random) -> Iterator[tuple[float, float]]:
    at = rng.expovariate(1 / habits.break_seconds)
    while at < work:
        end = at + 60.0 * math.exp(rng.gauss(math.log(15), 0.7))
        yield at, min(end, work)
        at = end + rng.expovariate(1 / habits.break_seconds)
