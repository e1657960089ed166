"""Our own queue learns how long workspaces run, and estimates starts from that."""

from dataclasses import replace

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.run_times import LEAST_RUNS
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.own_queue import InMemoryScheduler

KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30)}


async def test_workspaces_that_end_tell_when_those_that_run_probably_end():
    scheduler = InMemoryScheduler(FakeBackend(fake_gpus("a100", 1)), KINDS)
    fleet = await scheduler.observe(0.0)
    slots = (Slot(fleet.gpus[0].id),)
    request = Request("anna", "lab", "default", "a100", 1, 2.0, 2**30, 3600)
    waits = Lease("waits", Key("hub", "bert", "w"), "bert", request, {}, 0.0)
    runs = replace(
        waits, id="runs", key=Key("hub", "anna", "r"), phase=Phase.RUNNING, slots=slots, running_at=0.0,
        deadline_at=3600.0,
    )  # fmt: skip

    async def likely(now, *leases):
        answer = await scheduler.sync(Snapshot(now, KINDS, leases, scheduler.fleet))
        return answer.places()["waits"].likely_seconds

    assert await likely(0.0, runs, waits) == 3600
    for number in range(LEAST_RUNS):
        begin = 1000.0 * number
        one = replace(runs, id=f"past{number}", running_at=begin, deadline_at=begin + 3600)
        await likely(begin, one, waits)
        await likely(begin + 900, waits)
    now = 1000.0 * LEAST_RUNS
    assert await likely(now, replace(runs, running_at=now, deadline_at=now + 3600), waits) == 900
