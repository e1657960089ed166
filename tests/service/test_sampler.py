"""Sampling: what is stored, what it is judged by, and that one bad probe is one workspace's trouble."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from dataclasses import replace

import page_world
import pytest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import GpuReading, Sample, SoftReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak, judge
from gpuspawner.core.leases import running_steps
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.units import show_bytes
from gpuspawner.service.engine.sampling import sampler
from gpuspawner.service.workspaces.cards import Card
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.warnings import warnings_of


async def test_every_sample_of_every_gpu_is_stored_with_what_it_proved(world):
    lease = await world.up("alice", count=2)
    first, second = (slot.gpu for slot in lease.slots)
    world.shows(lease, {first: 80, second: "[N/A]"})
    await world.sample()
    await world.go_on(60)
    rows = world.parts.store.readings.of_lease(lease.id)
    assert [(row.gpu, row.utilization_percent, row.kind) for row in rows] == [
        (first, 80.0, "busy"),
        (second, None, "unknown"),
    ] * 2
    assert "[N/A]" in rows[1].because
    assert [row.seconds for row in rows] == [60.0] * 4
    assert world.parts.sampler.newest(lease.id) == {row.gpu: row for row in rows[2:]}
    assert world.parts.sampler.counts == {"busy": 2}
    assert [(row.shared, row.holders) for row in rows] == [(False, 1)] * 4


async def test_a_reading_is_stored_with_all_that_it_is_judged_by(world):
    lease = await world.up("alice", gpu="half")
    for seconds, ticks in ((100, 0), (160, 600)):
        text = probe_text({lease.slots[0].gpu: 9}, clock_seconds=seconds, cpu_ticks=ticks, holders=[lease.slots[0].gpu])
        world.shows(lease, 9, text=text)
        await world.go_on(60)
    rows = world.parts.store.readings.of_lease(lease.id)
    assert [(row.shared, row.holders, row.holders_cpu_cores, row.cpu_cores, row.kind) for row in rows] == [
        (True, 1, None, None, "unknown"),
        (True, 1, 0.1, 0.1, "busy"),
    ]


async def test_a_workspace_is_sampled_once_a_period_and_those_without_gpus_never(world):
    lease, _ = await world.up("alice"), await world.up("bob", gpu="none")
    for _ in range(120):
        world.clock.advance(1)
        await world.sample()
    assert world.backend.calls.count(("probe", lease.id)) == 2
    assert {name for call, name in world.backend.calls if call == "probe"} == {lease.id}


async def test_in_its_grace_a_workspace_is_sampled_every_five_seconds_until_it_is_used(world):
    lease = await world.up("alice")
    await world.go_on(7 * 60)
    assert world.now_of(lease).phase is Phase.RECLAIMING

    async def probes_in_a_minute():
        before = world.backend.calls.count(("probe", lease.id))
        await world.go_on(60, step=1)
        return world.backend.calls.count(("probe", lease.id)) - before

    assert await probes_in_a_minute() == 12
    world.shows(lease, 90)
    await world.go_on(5, step=1)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert await probes_in_a_minute() == 1


async def test_readings_of_an_ended_workspace_are_forgotten(world):
    lease = await world.up("alice")
    await world.sample()
    assert world.parts.sampler.newest(lease.id)
    await world.hub_stops(lease)
    await world.sample()
    assert world.parts.sampler.newest(lease.id) == {}


async def test_long_workspace_output_is_read_outside_the_main_loop(world, monkeypatch):
    threads, parse = [], sampler.parse_probe

    def noted(*told, **seen):
        threads.append(threading.current_thread())
        return parse(*told, **seen)

    monkeypatch.setattr(sampler, "parse_probe", noted)
    lease = await world.up("alice")
    world.shows(lease, 80, text="gpuspawner-probe 1 begin\n" + "\n" * sampler.LONG_CHARACTERS)
    await world.sample()
    assert [one is threading.main_thread() for one in threads] == [False]
    assert world.now_of(lease).streak.because == "the workspace can't be read (the probe's output was cut off)"


async def stored(world):
    """Wait until the probes that do not hang are reported and stored, and the work that waits for them has run."""
    for _ in range(2):
        for _ in range(20):
            await asyncio.sleep(0)
        await world.registry.settled()


async def test_a_hanging_probe_delays_no_other_workspace(world):
    stuck, fine = await world.up("alice"), await world.up("bob")
    probe, never = world.backend.probe, asyncio.Event()

    async def hangs(lease_id, *rest):
        if lease_id == stuck.id:
            await never.wait()
        return await probe(lease_id, *rest)

    world.backend.probe = hangs
    for _ in range(3):
        world.parts.sampler.start_due()
        await stored(world)
        world.clock.advance(60)
    assert len(world.parts.store.readings.of_lease(fine.id)) == 3
    assert world.parts.store.readings.of_lease(stuck.id) == []
    await world.parts.sampler.close()


async def test_a_probe_that_hung_once_takes_no_slot_of_others(make_world):
    world = make_world(probes_at_once=1)
    stuck, fine = await world.up("alice"), await world.up("bob")
    world.shows(stuck, 0, problem="the probe did not end within 20 s")
    await world.sample()
    probe, never = world.backend.probe, asyncio.Event()

    async def hangs(lease_id, *rest):
        if lease_id == stuck.id:
            await never.wait()
        return await probe(lease_id, *rest)

    world.backend.probe = hangs
    for _ in range(3):
        world.clock.advance(60)
        world.parts.sampler.start_due()
        await stored(world)
    assert [len(world.parts.store.readings.of_lease(lease.id)) for lease in (stuck, fine)] == [1, 3]
    never.set()
    await world.settle()
    world.shows(stuck, 0)
    await world.go_on(60)
    assert world.parts.sampler._failed == set(), "once it is well, it is one of the others again"


@pytest.mark.parametrize("error", [RuntimeError("broken"), Unavailable("the store is away"), OSError("no process")])
async def test_a_probe_that_raises_judges_nothing_and_kills_no_other(world, caplog, error):
    bad, fine = await world.up("alice"), await world.up("bob")
    probe = world.backend.probe

    async def raises(lease_id, *rest):
        if lease_id == bad.id:
            raise error
        return await probe(lease_id, *rest)

    world.backend.probe = raises
    await world.go_on(900)
    assert world.now_of(bad).phase is Phase.RUNNING
    assert world.now_of(bad).sampled_at is None
    assert world.now_of(fine).phase is Phase.ENDED
    assert bad.id in caplog.text


async def test_a_locked_database_is_logged_once_for_all_workspaces(world, caplog):
    leases = [await world.up("alice"), await world.up("bob")]
    path = world.parts.store._engine.url.database
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            world.clock.advance(60)
            world.parts.sampler.start_due()
            await world.settle()
        other.execute("ROLLBACK")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, warnings
    assert "The service's database has not answered since" in warnings[0]
    await world.go_on(60)
    assert None not in {world.now_of(lease).sampled_at for lease in leases}


async def test_no_more_probes_run_at_once_than_allowed(make_world):
    world = make_world(gpus=6, probes_at_once=2)
    leases = [await world.up(user) for user in "abcdef"]
    world.parts.sampler._due_at = dict.fromkeys((lease.id for lease in leases), 0.0)
    probe, running, most = world.backend.probe, [], []

    async def counted(lease_id, *rest):
        running.append(lease_id)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(lease_id)
        return await probe(lease_id, *rest)

    world.backend.probe = counted
    await world.sample()
    assert (len(most), max(most)) == (6, 2)


async def test_a_sample_that_can_t_be_stored_changes_nothing_and_the_next_one_counts(world):
    lease = await world.up("alice")
    await world.go_on(120)
    before, save = world.registry.get(lease.id), world.parts.store.save

    def away(*_arguments, **_named):
        raise Unavailable("The store does not answer.")

    world.parts.store.save = away
    world.clock.advance(60)
    await world.sample()
    assert world.registry.get(lease.id) == before
    world.parts.store.save = save
    world.clock.advance(60)
    await world.sample()
    after = world.registry.get(lease.id)
    assert after.sampled_at == world.clock.now()
    assert before.streak.idle_seconds < after.streak.idle_seconds <= before.streak.idle_seconds + 90


async def test_a_workspace_that_stopped_while_it_was_probed_is_left_alone(world):
    lease = await world.up("alice")
    probe = world.backend.probe

    async def meanwhile(*arguments):
        await world.hub_stops(lease)
        return await probe(*arguments)

    world.backend.probe = meanwhile
    await world.sample()
    assert world.now_of(lease).phase is Phase.STOPPING
    assert world.parts.store.readings.of_lease(lease.id) == []


async def test_shares_are_judged_by_their_own_processes_not_by_the_gpu(make_world):
    world = make_world(gpus=1)
    lease = await world.up("alice", gpu="half")
    other = await world.up("bob", gpu="half")
    assert [x.slots[0].gpu for x in (lease, other)] == [world.backend.gpus[0].id] * 2
    world.shows(lease, 95)  # the neighbour's work: alice's own process uses no CPU
    for _ in range(4):
        world.probes += 1
        world.shows(lease, 95)
        await world.go_on(60)
    seen = {(row.kind, row.because) for row in world.parts.store.readings.of_lease(lease.id)[1:]}
    assert seen == {("unknown", "GPU 0 at 95 %, perhaps by others")}
    for _ in range(4):
        world.probes += 1
        world.shows(lease, 0)
        await world.go_on(60)
    assert {row.kind for row in world.parts.store.readings.of_lease(lease.id)[-3:]} == {"idle"}


async def test_a_kept_workspace_is_measured_but_not_judged(world):
    lease = await world.up("alice")
    await world.parts.actions.keep(lease, "alice")
    await world.go_on(3000)
    assert len(world.parts.store.readings.of_lease(lease.id)) == 50
    assert (world.registry.get(lease.id).streak.idle_seconds, world.did(lease)[-1]) == (0.0, "kept")
    await world.go_on(1500)
    assert world.now_of(lease).phase is Phase.ENDED


async def test_the_host_memory_of_a_workspace_is_on_its_card_with_its_limit(world):
    lease = await world.up("alice")
    gpu = lease.slots[0].gpu
    text = probe_text({gpu: 50}, clock_seconds=100.0, holders=[gpu], soft=[f"memory {3 * 2**30}"])
    world.shows(lease, 50, text=text)
    await world.go_on(60)
    shown = present_workspace(world.parts, world.registry.get(lease.id))
    assert shown.host_memory_used_bytes == 3 * 2**30
    gauge = next(one for one in Card(shown, "", ()).gauges if one.words == "Memory")
    assert (gauge.used, gauge.of, gauge.percent) == ("3", "8", 37.5)


async def test_a_memory_kill_is_a_warning_and_recorded_once(world):
    lease = await world.up("alice")
    gpu = lease.slots[0].gpu

    async def reads(kills):
        world.probes += 1
        text = probe_text({gpu: 50}, clock_seconds=100.0 + world.probes, holders=[gpu], soft=[f"kills {kills}"])
        world.shows(lease, 50, text=text)
        await world.go_on(60)

    def warned():
        return [one.kind for one in warnings_of(world.parts, world.registry.get(lease.id))]

    await reads(0)
    assert "memory" not in warned()
    for kills in (1, 1, 2):
        await reads(kills)
        assert "memory" in warned()
    assert world.did(lease).count("killed for memory") == 1
    (text,) = (one.text for one in warnings_of(world.parts, world.registry.get(lease.id)) if one.kind == "memory")
    assert show_bytes(lease.request.memory_bytes) in text
    await world.go_on(3700)
    assert "memory" not in warned()


async def test_a_long_reason_is_cut_to_what_the_store_holds(world):
    lease = await world.up("alice")
    world.backend.probes[lease.id] = [ProbeResult(problem="x" * 5000)]
    await world.sample()
    assert world.parts.store.readings.of_lease(lease.id)[0].because == "x" * 255


async def test_simultaneous_samples_are_written_in_one_transaction(make_world, monkeypatch):
    world = make_world(gpus=5)
    leases = [await world.up(f"user{n}") for n in range(5)]
    saved, save = [], world.parts.store.save
    monkeypatch.setattr(world.parts.store, "save", lambda some, *more: saved.append(len(some)) or save(some, *more))
    await world.sample()
    assert saved == [5]
    assert [len(world.parts.store.readings.of_lease(lease.id)) for lease in leases] == [1] * 5


async def test_an_unsaved_sample_blocks_no_other_sample(world, monkeypatch, caplog):
    bad, fine = await world.up("alice"), await world.up("bob")
    judge = running_steps.judge

    def judged(streak, evidence, *more):
        if evidence.gpus[0].gpu == bad.slots[0].gpu:
            raise RuntimeError("broken")
        return judge(streak, evidence, *more)

    monkeypatch.setattr(running_steps, "judge", judged)
    await world.sample()
    assert [len(world.parts.store.readings.of_lease(lease.id)) for lease in (bad, fine)] == [0, 1]
    assert [
        record.exc_info is not None
        for record in caplog.records
        if f"sampling failed for the lease {bad.id}" in record.getMessage()
    ] == [True]


async def test_more_than_can_be_probed_at_once_are_spread_over_their_period(make_world):
    world = make_world(gpus=6, probes_at_once=2)
    leases = [await world.up(f"user{n}") for n in range(6)]
    world.parts.sampler._due_at.clear()  # as after a restart

    def sampled():
        return sum(len(world.parts.store.readings.of_lease(lease.id)) for lease in leases)

    told = []
    for _ in range(12):
        await world.sample()
        told.append(sampled())
        world.clock.advance(10.0)
    assert told == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_the_stored_state_of_a_gpu_ignores_other_evidence():
    seen = Sample(
        ("a",),
        (GpuReading("a", 0.0, memory_used_bytes=2**30, holders=1, holders_cpu_cores=0.0),),
        interval_seconds=60.0,
        age_seconds=3600.0,
        cpu_cores=0.0,
        soft=(SoftReading("kernel", active=True, words="kernel train.ipynb busy"),),
    )
    policy = IdlePolicy(soft_names=("kernel",))
    evidence, kinds = read_evidence(seen, policy), []
    for since_busy_seconds in (0.0, 1e6):
        streak, _ = judge(Streak(since_busy_seconds=since_busy_seconds), evidence, policy, Mode.ENFORCE)
        lease = page_world.running("runs", gpus=(0,))
        (row,) = sampler.reading_rows(replace(lease, streak=streak), seen, evidence, policy, 0.0)
        kinds.append((streak.kind, row.kind))
    assert kinds == [(SampleKind.SOFT, "idle"), (SampleKind.IDLE, "idle")]
