"""How a queue of people is served, and how right its estimates are: traces replayed through the product's functions.

There are two inputs: the trace "openb", and generated workspaces of people with habits. Compared are first come, first
served, and plain FGD, which lets every fitting request pass. Estimates for those who wait are scored by two methods:
``positions``, which answers at once, and ``estimates``. Figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "placement"))  # the trace is read there

from costs import costs
from disciplines import DISCIPLINES, Discipline
from estimating import report
from openb import folder, read
from people import DAYS, PEOPLE, generated
from served import Served, serve
from sessions import Workload, repeated, users_of, workload

from gpuspawner.core.queue.estimates import DRAWS

FIGURES = ("waits", "estimates", "costs")
SIZES = (("a share", 0.0, 0.99), ("one GPU", 1.0, 1.0), ("several", 1.01, 99.0))


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


def run(title: str, work: Workload, disciplines: Sequence[Discipline]) -> None:
    """Print the figures of one workload."""
    end = work.sessions[-1].asked_at
    print(
        f"{title}: {len(work.sessions)} sessions of {len(users_of(work.sessions))} users on "
        f"{len({gpu.node for gpu in work.fleet.gpus})} nodes with {len(work.fleet.gpus)} GPUs "
        f"in {end / 86400:.1f} days, {len(work.fleet.gpus) * end / 3600:,.0f} GPU h"
    )
    for discipline in disciplines:
        served = serve(work, discipline)
        print(f"  {discipline.name:<24} " + "; ".join(f"{k} {v}" for k, v in figures(served, end).items()), flush=True)


def run_estimates(title: str, works: Sequence[Workload], waiters: int, draws: int) -> None:
    """Print how right the estimates were in some workloads together."""
    days = ", ".join(f"{work.sessions[-1].asked_at / 86400:.1f}" for work in works)
    print(f"estimates, {title}: {sum(len(work.sessions) for work in works)} sessions in {days} days", flush=True)
    for line in report(works, waiters, draws):
        print(f"  {line}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=["openb", "generated"], choices=["openb", "generated"])
    parser.add_argument("--figures", nargs="*", default=FIGURES, choices=FIGURES)
    parser.add_argument("--loads", nargs="*", type=float, default=[0.9, 1.1, 1.5], help="loads of openb")
    parser.add_argument("--part", type=int, default=3, help="take every n-th task of openb")
    parser.add_argument("--days", type=int, default=DAYS, help="days of generated workspaces")
    parser.add_argument("--people", type=int, default=PEOPLE, help="people with generated workspaces")
    parser.add_argument("--samples", type=int, default=3, help="samples of each data set for estimates")
    parser.add_argument("--waiters", type=int, default=170, help="estimated requests in each sample")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws for an estimate")
    parser.add_argument("--quick", action="store_true", help="a small part, for a first look")
    chosen = parser.parse_args(arguments)
    part, days = (24, 12) if chosen.quick else (chosen.part, chosen.days)
    samples, place = range(chosen.samples), folder()
    trace = None if place is None or "openb" not in chosen.data else read(place, "default")
    if trace is None and "openb" in chosen.data:
        print("openb: not run. The trace is not here. OPENB says where it lies.")
    if "waits" in chosen.figures:
        print("waits in hours: p50 p90 mean")
        for load in () if trace is None else chosen.loads:
            run(f"openb at load {load}", workload(trace, load, part), DISCIPLINES)
        if "generated" in chosen.data:
            run("generated", generated(days, chosen.people), DISCIPLINES)
    if "estimates" in chosen.figures:
        for load in () if trace is None else chosen.loads:
            works = [repeated(workload(trace, load, part, offset=number)) for number in samples]
            run_estimates(f"openb at load {load}", works, chosen.waiters, chosen.draws)
        if "generated" in chosen.data:
            works = [generated(days, chosen.people, seed) for seed in samples]
            run_estimates("generated", works, chosen.waiters, chosen.draws)
    if "costs" in chosen.figures:
        for line in costs():
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
