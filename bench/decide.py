"""How long one round of grants, and telling everybody their place, takes as the queue grows.

Compared with: writing one lease to SQLite, which every grant costs anyway. Figures are ratios to that write, medians
of one run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import queue_places
from gpuspawner.core.queue.grants import decide
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.service.store import Store

KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30)}
SIZES = ((8, 60), (64, 500), (512, 2000))


def lease(number: int, *, running: bool) -> Lease:
    request = Request(f"user{number}", "lab", "default", "a100", 1, 4.0, 2**33, 8 * 3600)
    waiting = Lease(f"{number:06}", Key("hub", str(number), ""), request.user, request, {}, asked_at=float(number))
    if not running:
        return waiting
    slot = Slot(f"gpu{number}")
    return replace(waiting, phase=Phase.RUNNING, slots=(slot,), deadline_at=1e5 + number, running_at=0.0)


def median_seconds(step: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def of_new(decide: Callable[[Snapshot], object], seen: Snapshot) -> object:
    """Decide on a snapshot of which nothing is worked out yet."""
    return decide(replace(seen))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{Path(folder) / 'bench.sqlite'}")
        store.open()
        one = lease(0, running=False)
        write_seconds = median_seconds(lambda: store.save([one]), 50)
        store.close()
    print(f"one write of a lease: {write_seconds * 1e3:.2f} ms (= 1.0)")
    print(f"{'GPUs':>6} {'waiting':>8} {'grant round':>12} {'all places':>10}")
    for gpus, waiting in SIZES:
        fleet = Fleet(
            tuple(Gpu(f"gpu{i}", "a100", f"node{i // 8}", i % 8, "A100", 0) for i in range(gpus)), complete=True
        )
        leases = [lease(i, running=True) for i in range(gpus)] + [
            lease(i, running=False) for i in range(gpus, gpus + waiting)
        ]
        seen = Snapshot(0.0, KINDS, tuple(leases), fleet)
        grants = median_seconds(partial(of_new, decide, seen), 10)
        places = median_seconds(partial(of_new, queue_places, seen), 3)
        print(f"{gpus:>6} {waiting:>8} {grants / write_seconds:>12.2f} {places / write_seconds:>10.2f}")


if __name__ == "__main__":
    main()
