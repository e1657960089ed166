"""How a queue of people is served: the trace "openb" replayed through the product's own functions.

Beside first come, first served, and plain FGD that lets whoever fits pass. LOADS names the loads (0.9, 1.1, 1.5); PART
takes every so many-th task (2), to be quick. What is said of estimates counts those who wait.
Figures do not depend on the machine.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "placement"))  # the trace is read there

from disciplines import DISCIPLINES, Discipline
from openb import folder, read
from served import Served, serve
from sessions import users_of, workload

SIZES = (("a share", 0.0, 0.99), ("one GPU", 1.0, 1.0), ("several", 1.01, 99.0))
NEAR_SECONDS = 600.0


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 where all have the same, 1/n where one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def figures(served: Sequence[Served], end: float) -> dict[str, str]:
    """Return the figures of one run, by their titles."""
    found = {}
    for title, least, most in SIZES:
        waits = sorted(x.waited_seconds(end) / 3600 for x in served if least <= x.session.gpus <= most)
        mean, p95 = (statistics.mean(waits), waits[int(0.95 * len(waits))]) if waits else (0.0, 0.0)
        found[f"{title}: h, p95"] = f"{mean:.1f}, {p95:.1f}"
    slowed = {name: [0.0, 0.0] for name in users_of([x.session for x in served])}
    granted = 0.0
    for x in served:
        ran = 0.0 if x.started_at is None else x.session.gpus * min(x.ran_seconds, max(0.0, end - x.started_at))
        granted += ran
        sums = slowed[x.session.request.user]
        sums[0] += ran
        sums[1] += x.session.gpus * min(x.session.seconds, end - x.session.asked_at)
    found["Jain"] = f"{jain([got / asked for got, asked in slowed.values() if asked]):.3f}"
    found["GPU h"] = f"{granted / 3600:,.0f}"
    return found


def estimates(served: Sequence[Served]) -> str:
    """Return how good was what those were told who waited, and started."""
    told = [x for x in served if x.likely_at is not None and x.started_at is not None]
    if not told:
        return "nobody was told a time"
    near = sum(abs((x.started_at or 0.0) - (x.likely_at or 0.0)) <= NEAR_SECONDS for x in told)
    bound = [x for x in told if x.latest_at is not None]
    held = sum((x.started_at or 0.0) <= (x.latest_at or 0.0) + 60 for x in bound)
    words = f"{len(told)} were told a time: {100 * near / len(told):.0f} % started within 10 min of it"
    return f"{words}, {100 * held / max(1, len(bound)):.0f} % by the latest time"


def run(load: float, part: int, disciplines: Sequence[Discipline] = DISCIPLINES) -> None:
    """Print the figures at one load."""
    place = folder()
    assert place is not None, "it was looked for"
    work = workload(read(place, "default"), load, part)
    end = work.sessions[-1].asked_at
    print(f"load {load}: {len(work.sessions)} sessions on {len(work.fleet.gpus)} GPUs in {end / 86400:.0f} days")
    for discipline in disciplines:
        served = serve(work, discipline)
        print(f"  {discipline.name:<24} " + "; ".join(f"{k} {v}" for k, v in figures(served, end).items()), flush=True)
        if discipline.estimates:
            print(f"  {'':<24} {estimates(served)}")


def main() -> int:
    if folder() is None:
        print("not run: the trace is not here. OPENB says where it lies.")
        return 0
    for load in os.environ.get("LOADS", "0.9,1.1,1.5").split(","):
        run(float(load), int(os.environ.get("PART", "2")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
