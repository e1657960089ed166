"""GPU work is seen, and an idle GPU is seen as idle: a training loop, a burst, a pause, other users' processes."""

from gpuspawner.backends.probes.gpu_tools import read_reports
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.lease import Phase

BURSTS = 5
"""A machine that is too slow to look within the 16 s of a buffer gets another one to see."""


async def test_a_training_loop_is_busy_and_is_never_warned(machine):
    lease = await machine.up("alice")
    machine.load("train", lease)
    await machine.eventually(lambda: machine.streak(lease).kind is SampleKind.BUSY, lambda: machine.streak(lease))
    for _ in range(4):
        await machine.go_on(60)
    assert (machine.phase(lease), machine.streak(lease).idle_seconds) == (Phase.RUNNING, 0.0)
    assert machine.did(lease).count("warned") == 0


async def test_a_burst_that_is_over_is_use(machine):
    lease = await machine.up("alice")
    await machine.eventually(lambda: machine.streak(lease).kind is SampleKind.IDLE, lambda: machine.streak(lease))
    kinds = []
    while SampleKind.BUSY not in kinds and len(kinds) < BURSTS:
        burst = machine.load("burst", lease)
        await machine.go_on(60)
        kinds.append(machine.streak(lease).kind)
        machine.end(burst)
    result = await machine.backend.probe(lease.id, lease.attempt, tuple(slot.gpu for slot in lease.slots), 60.0)
    said = [line.removeprefix("buffer ") for line in result.text.splitlines() if line.startswith("buffer ")]
    # Where the driver keeps no buffer, the CPU time that the burst took holds the workspace.
    assert SampleKind.BUSY in kinds or not any(report.buffers for report in read_reports(said)), machine.streak(
        lease
    ).because


async def test_a_paused_job_that_holds_its_memory_is_idle(machine):
    lease = await machine.up("alice")
    machine.load("rest", lease)
    await machine.eventually(lambda: machine.streak(lease).kind is SampleKind.IDLE, lambda: machine.streak(lease))
    newest = next(iter(machine.parts.sampler.newest(lease.id).values()))
    assert (newest.kind, newest.holders) == ("idle", 1)
    await machine.eventually(lambda: machine.did(lease).count("warned"), "it was not warned")


async def test_a_gpu_that_a_stranger_computes_on_is_shown_and_not_granted(machine):
    found = await machine.gpus()
    strangers = [machine.load("train", gpu=gpu) for gpu, seen in found.items() if seen.healthy and not seen.foreign]
    seen = (await machine.gpus()).values()
    assert all(gpu.foreign or not gpu.healthy for gpu in seen)
    assert all("computes on it" in gpu.note or "are in use" in gpu.note for gpu in seen if gpu.foreign)
    await machine.round()
    waits = await machine.start("alice")
    await machine.round()
    assert machine.phase(waits) is Phase.QUEUED
    for stranger in strangers:
        machine.end(stranger)
    await machine.eventually(lambda: machine.now_of(waits).slots, "it was not granted once they had gone")


async def test_a_workspace_on_a_gpu_that_is_not_its_own_is_flagged(machine):
    lease = await machine.up("alice", gpu="none")
    gpu = next(gpu for gpu, seen in (await machine.gpus()).items() if seen.healthy and not seen.foreign)
    machine.load("train", lease, gpu=gpu)
    seen = (await machine.gpus())[gpu]
    assert seen.foreign
    assert lease.id in seen.note or "of its memory are in use although no workspace has it" in seen.note
