"""How a queue of people is served: the trace "openb" replayed through the product's own functions.

Beside first come, first served, and plain FGD that lets whoever fits pass. LOADS names the loads (0.9, 1.1, 1.5); PART
takes every so many-th task (3), to be quick; ``--quick`` every 24th. What is said of estimates counts those who wait.
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
from served import TICK_SECONDS, Served, serve
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
        if waits:
            p50, p90 = waits[len(waits) // 2], waits[int(0.9 * len(waits))]
            found[title] = f"{p50:.2f} {p90:.2f} {statistics.mean(waits):.2f}"
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
    came = [x.outcome for x in served if x.outcome is not None]
    told = sum(x.told is not None for x in served)
    if not came:
        return "nobody was told a time"
    near = sum(abs(x.actual_seconds - x.likely_seconds) <= NEAR_SECONDS for x in came) / len(came)
    held = sum(x.was_right for x in came) / len(came)
    latest = sum(x.actual_seconds <= x.latest_seconds + TICK_SECONDS for x in came) / len(came)
    return (
        f"of {told} who were told a time {len(came)} started: {100 * near:.0f} % within 10 min of it, "
        f"{100 * held:.0f} % in the range, {100 * latest:.0f} % by the latest time"
    )


def run(load: float, part: int, disciplines: Sequence[Discipline] = DISCIPLINES) -> None:
    """Print the figures at one load."""
    place = folder()
    assert place is not None, "it was looked for"
    work = workload(read(place, "default"), load, part)
    end = work.sessions[-1].asked_at
    print(
        f"load {load}: {len(work.sessions)} sessions of {len(users_of(work.sessions))} users on "
        f"{len({gpu.node for gpu in work.fleet.gpus})} nodes with {len(work.fleet.gpus)} GPUs "
        f"in {end / 86400:.1f} days, {len(work.fleet.gpus) * end / 3600:,.0f} GPU h"
    )
    for discipline in disciplines:
        served = serve(work, discipline)
        print(f"  {discipline.name:<24} " + "; ".join(f"{k} {v}" for k, v in figures(served, end).items()), flush=True)
        if discipline.estimates:
            print(f"  {'':<24} {estimates(served)}")


def main() -> int:
    if folder() is None:
        print("not run: the trace is not here. OPENB says where it lies.")
        return 0
    part = "24" if "--quick" in sys.argv else os.environ.get("PART", "3")
    print("waits in hours: p50 p90 mean")
    for load in os.environ.get("LOADS", "0.9,1.1,1.5").split(","):
        run(float(load), int(part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
