"""How long it takes until an external scheduler has heard of CLAIMS workspaces that are asked at once.

The client is the service's own; the reference scheduler is a process of its own, with no GPU that is free.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from demo.ports import pick_free
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import Key, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.http.client import SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from tools.install import ROOT

CLAIMS = int(os.environ.get("CLAIMS", "1000"))
INVENTORY = "clusters: [{name: here, near: true, price: {a100: 1}, nodes: {node-1: {a100: 4}}}]"
KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30)}


def a_lease(number: int, now: float) -> Lease:
    """One workspace that waits."""
    request = Request(f"user{number}", "lab", "default", "a100", 1, 2.0, 2**33, 3600)
    key = Key("hub", f"user{number} born", "")
    return Lease(f"lease-{number}", key, request.user, request, {}, now, phase_since=now, heard_at=now)


async def measure(url: str, token: Path) -> None:
    """Report the state of all claims, read their positions, and report again without a change."""
    mine = InMemoryScheduler(FakeBackend(fake_gpus("a100", 4)), KINDS)
    client = HttpScheduler(SchedulerClient(HttpSchedulerAddress(url, str(token), 30.0), "hub"), mine)
    await mine.observe(time.time())
    while True:
        try:
            await client.connect()
            break
        except Unavailable:
            await asyncio.sleep(0.1)
    now = time.time()
    seen = Snapshot(now, KINDS, tuple(a_lease(number, now) for number in range(CLAIMS)), mine.fleet)
    for what in ("told", "placed", "told again, unchanged"):
        begun = time.perf_counter()
        answer = await client.sync(replace(seen, now=time.time()))
        waiting = [place for place in answer.places().values() if place.number is not None]
        seconds = time.perf_counter() - begun
        print(f"{CLAIMS} claims {what}: {seconds:.2f} s, {CLAIMS / seconds:.0f} a second; {len(waiting)} have a place")
        await asyncio.sleep(2)
    await client.close()


def main() -> None:
    """Start the scheduler, measure, and end it."""
    (port,) = pick_free(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        token, inventory = Path(folder) / "token", Path(folder) / "inventory.yaml"
        token.write_text("a-token-of-the-bench")
        inventory.write_text(INVENTORY)
        told = ["--port", str(port), "--token-file", str(token), "--inventory", str(inventory)]
        server = subprocess.Popen([sys.executable, "-m", "demo.scheduler", *told], cwd=ROOT)
        ending.callback(server.wait)
        ending.callback(server.terminate)
        asyncio.run(measure(f"http://127.0.0.1:{port}", token))


if __name__ == "__main__":
    main()
