"""GPUs that stay unallocated on the trace "openb", by the method of "Beware of Fragmentation" (USENIX ATC'23).

Tasks are placed one by one in random order, none ever leaves, until those that came ask for 100 % and 130 % of the
cluster's GPUs: ours compared with Random, BestFit, Packing and FGD, means of SEEDS orders (10). LISTS and POLICIES name
some of them, to be quick. Figures do not depend on the machine.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping

from filling import unallocated
from openb import LISTS, Trace, folder, how_often, read, with_consent
from rivals import BEST_FIT, PACKING, RANDOM, Policy, fgd, learning, ours


def policies(trace: Trace) -> Mapping[str, Policy]:
    """Return the policies to compare. FGD and ours know the frequency of each request, as the simulator of FGD does."""
    asks = how_often(trace.tasks)
    return {
        "random": RANDOM,
        "bestfit": BEST_FIT,
        "packing": PACKING,
        "fgd": fgd(asks, trace.gpus),
        "ours": ours(asks, trace.gpus),
        "learning": learning(trace.gpus),
    }


def row(title: str, trace: Trace, policy: Policy, seeds: int) -> str:
    """Return a line of the table: the means at 100 % and 130 %, and by how much orders differ."""
    at_100, at_130 = zip(*(unallocated(trace, policy, seed) for seed in range(seeds)), strict=True)
    deviation = statistics.stdev(at_100) if seeds > 1 else 0.0
    means = f"{statistics.mean(at_100):>6.2f} ({deviation:.2f}) {statistics.mean(at_130):>6.2f}"
    return f"{title:<24} {policy.name:<22} {means}"


def main() -> int:
    place = folder()
    if place is None:
        print("not run: the trace is not here. OPENB says where it lies.")
        return 0
    seeds = int(os.environ.get("SEEDS", "10"))
    wanted = set(filter(None, os.environ.get("POLICIES", "").split(",")))
    lists = os.environ.get("LISTS", ",".join(LISTS)).split(",")
    print(f"{'list':<24} {'policy':<22} {'% unallocated at 100 %':>14} {'130 %':>6}")
    for name in lists:
        if not (place / f"openb_pod_list_{name}.csv").exists():
            continue
        trace = read(place, name)
        for key, policy in policies(trace).items():
            if not wanted or key in wanted:
                print(row(name, trace, policy, seeds), flush=True)
        if name != "default" and (not wanted or "ours" in wanted):
            consent = with_consent(trace, 0.5)
            print(row(f"{name}, half consent", consent, policies(consent)["ours"], seeds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
