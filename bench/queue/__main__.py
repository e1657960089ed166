"""How a queue of people is served: the trace "openb" replayed through the product's own functions.

Compared with first come, first served, and with plain FGD, which lets every fitting request pass. LOADS names the loads
(0.9, 1.1, 1.5); PART takes every n-th task (3), to be quick; ``--quick`` every 24th. Scored are estimates for waiting
requests: simple ones, and those of ``core.queue.estimates``. Figures do not depend on the machine.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "placement"))  # the trace is read there

from disciplines import DISCIPLINES, Discipline
from openb import folder, read
from served import AT_ONCE, DRAWS, Served, Told, serve
from sessions import users_of, workload

SIZES = (("a share", 0.0, 0.99), ("one GPU", 1.0, 1.0), ("several", 1.01, 99.0))
NEAR_SECONDS = 600.0
LEARN_SHARE = 0.3
"""The first part of the time is not scored: the methods learn from it."""


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


def estimates(served: Sequence[Served], method: str, end: float) -> str:
    """Return how good the first estimates of a method were, for those who had to wait.

    Nothing is scored in the first part of the time, from which a method learns. An overdue wait is a miss.
    """
    scored: list[tuple[Told, float]] = []
    for one in served:
        told = one.told.get(method)
        if told is None or told.at < LEARN_SHARE * end:
            continue
        if one.started_at is not None:
            scored.append((told, one.started_at - told.at))
        elif end - told.at > told.point_seconds + NEAR_SECONDS:
            scored.append((told, math.inf))
    if not scored:
        return f"{method}: nobody was told a time"
    near = [abs(actual - told.point_seconds) <= NEAR_SECONDS for told, actual in scored]
    held = [told.from_seconds <= actual <= told.to_seconds for told, actual in scored]
    shown = [is_near for (told, _), is_near in zip(scored, near, strict=True) if told.is_shown]
    errors = [abs(actual - told.point_seconds) / 60 for told, actual in scored]
    widths = [(told.to_seconds - told.from_seconds) / 60 for told, _ in scored]
    return (
        f"{method}: {len(scored)} estimates, {percent(near)} within 10 min, median error "
        f"{statistics.median(errors):.0f} min, {percent(held)} in the range of {statistics.median(widths):.0f} min; "
        f"{len(shown)} times shown, {percent(shown)} of them right"
    )


def percent(values: Sequence[bool]) -> str:
    """Return the share of values that are true."""
    return f"{100 * sum(values) / len(values):.0f} %" if values else "-"


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
            for method in (AT_ONCE, DRAWS):
                print(f"  {'':<24} {estimates(served, method, end)}", flush=True)


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
