"""The on-stop script of a workspace: its time, its environment, and the readers of its output."""

import asyncio

from harness.waiting import until
from service_world import GRACE, IDLE_FOR

from gpuspawner.backends.base import ProbeResult
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine import effects
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.presenter import present_output


def noted(world, monkeypatch):
    """Note each run, and which server stops the hub had been told until then."""
    calls, run_script = [], world.backend.run_script

    async def note(lease_id, attempt, script, deadline_seconds):
        told = [line.partition("=")[2] for line in script.decode().split("\n")[:3]]
        calls.append((lease_id, attempt, *told, deadline_seconds, list(world.hub.calls)))
        return await run_script(lease_id, attempt, script, deadline_seconds)

    monkeypatch.setattr(world.backend, "run_script", note)
    return calls


async def test_it_runs_before_an_idle_workspace_is_stopped_and_its_user_alone_reads_what_it_wrote(world, monkeypatch):
    calls = noted(world, monkeypatch)
    lease = await world.up("alice")
    world.backend.scripts[lease.id] = ProbeResult("on-stop 0\nstep 1200 saved\npassword=hunter22\n")
    await world.go_on(IDLE_FOR + GRACE + 120)
    assert world.now_of(lease).reason is ExitReason.IDLE
    assert calls == [(lease.id, lease.attempt, "''", "60", "idle", 75.0, [])], "once, and before the hub is told"
    assert world.hub.calls == [("stop", "alice", lease.server_started)]
    told = await present_output(world.parts, lease, Person("alice", lease.key.owner))
    assert told.text == "What was to run before the end ended with exit code 0.\nstep 1200 saved\npassword=***"
    assert (
        await present_output(world.parts, lease, Person("root", scopes=frozenset({"custom:gpu:admin"})))
    ).text is None


async def test_a_template_says_what_runs_and_for_how_long(make_world, monkeypatch):
    own = {"title": "Synced", "gpus": {"a100": 1}, "on_stop": {"command": "sync-data", "timeout": "3m"}}
    world = make_world(templates={"synced": own})
    calls = noted(world, monkeypatch)
    lease = await world.up("alice", template="synced")
    await world.stop(lease)
    await world.round()
    assert [call[2:6] for call in calls] == [("sync-data", "180", "stopped", 195.0)]


async def test_a_failing_on_stop_script_does_not_keep_the_workspace(world):
    lease = await world.up("alice")
    world.backend.scripts[lease.id] = ProbeResult(problem="the script did not end within 75 s")
    await world.stop(lease)
    await world.go_on(5, step=1)
    assert world.now_of(lease).phase is Phase.ENDED
    assert not (await present_output(world.parts, lease, Person("alice", lease.key.owner))).there


def full(_row):
    raise Unavailable("The disk is full.")


async def test_the_on_stop_script_runs_once_despite_an_unavailable_store(world, monkeypatch):
    calls = noted(world, monkeypatch)
    lease = await world.up("alice")
    world.backend.scripts[lease.id] = ProbeResult("on-stop 0\nsaved\n")
    await world.stop(lease)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(world.registry.store.outputs, "save", full)
        for _ in range(3):
            await world.parts.engine.drive(lease.id)
    await world.go_on(5, step=1)
    assert len(calls) == 1
    assert world.now_of(lease).phase is Phase.ENDED
    assert "saved" in (await present_output(world.parts, lease, Person("alice", lease.key.owner))).text
    assert world.parts.engine.effects._wrote == {}


async def test_a_server_that_was_started_meanwhile_is_not_stopped_and_the_time_it_took_is_charged(world, monkeypatch):
    alice, bob = await world.up("alice"), await world.up("bob")

    async def run_script(lease_id, *_how):
        world.clock.advance(60)
        if lease_id == alice.id:
            world.hub.forget("alice")
            world.hub.put("alice")
        return ProbeResult("on-stop 0\nsaved\n")

    monkeypatch.setattr(world.backend, "run_script", run_script)
    for lease in (alice, bob):
        await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.STOPPED, "root", "enough"))
        began = world.clock.now()
        await world.parts.engine.drive(lease.id)
    assert world.hub.calls == [("stop", "bob", bob.server_started)]
    assert world.now_of(alice).phase is Phase.ENDED
    assert world.now_of(bob).stop_sent_at == began + 60


async def test_workspaces_that_never_ran_or_are_gone_run_no_script(world, monkeypatch):
    calls = noted(world, monkeypatch)
    lease = await world.up("alice")
    world.lose(lease)
    await world.go_on(300)
    waits = await world.ask("bob")
    await world.stop(waits)
    await world.go_on(5, step=1)
    assert world.now_of(lease).phase is Phase.ENDED
    assert calls == []


def slow(world, monkeypatch):
    """Have what runs before an end go on; return what tells that it began, and what ends it."""
    began, over = asyncio.Event(), asyncio.Event()

    async def run(*_arguments):
        began.set()
        await over.wait()
        return ProbeResult("on-stop 0\nsaved\n")

    monkeypatch.setattr(world.backend, "run_script", run)
    monkeypatch.setattr(effects, "AT_ONCE_SECONDS", 0.01)
    return began, over


async def ended(world, lease):
    """Let rounds pass until the lease has ended. Its output is stored outside the rounds."""

    async def is_over():
        await world.go_on(1, step=1)
        return world.now_of(lease).phase is Phase.ENDED

    return await until(is_over)


async def test_promise_3_a_server_that_began_meanwhile_is_not_the_one_that_is_stopped(world, monkeypatch):
    began, over = slow(world, monkeypatch)
    lease = await world.up("alice")
    await world.stop(lease)
    driven = asyncio.create_task(world.parts.engine.drive(lease.id))
    await asyncio.wait_for(began.wait(), 30)
    world.clock.at += 30
    world.hub.forget("alice")  # its user stopped it by the hub, and started another one
    world.hub.put("alice", ready=True)
    over.set()
    await driven
    assert await ended(world, lease)
    assert world.hub.calls == []


async def test_a_user_script_does_not_wait_for_another_workspaces_end(world, monkeypatch):
    _, over = slow(world, monkeypatch)
    lease = await world.up("alice")
    await world.stop(lease)
    await asyncio.wait_for(world.parts.engine.drive(lease.id), 30)
    await world.go_on(5, step=1)
    assert (world.now_of(lease).phase, world.hub.calls) == (Phase.STOPPING, [])
    over.set()
    assert await ended(world, lease)
    assert world.hub.calls == [("stop", "alice", lease.server_started)]


async def test_many_tasks_of_one_user_do_not_delay_other_users(world, monkeypatch):
    running, saved = [], asyncio.Event()

    async def run_script(lease_id, *_how):
        running.append(lease_id)
        await saved.wait()
        return ProbeResult("on-stop 0\nsaved\n")

    monkeypatch.setattr(effects, "ON_STOP_OF_A_USER", 2)
    monkeypatch.setattr(effects, "AT_ONCE_SECONDS", 0.01)
    monkeypatch.setattr(world.backend, "run_script", run_script)
    alices = [await world.up("alice", name, gpu="none") for name in ("one", "two", "three")]
    bobs = await world.up("bob", gpu="none")
    for lease in (*alices, bobs):
        await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.STOPPED, lease.user, "enough"))
        await world.parts.engine.drive(lease.id)
    assert running == [alices[0].id, alices[1].id, bobs.id]
    saved.set()
    await asyncio.gather(*world.parts.engine.effects._on_stop.values())
    await world.go_on(5, step=1)
    assert {world.phase(lease) for lease in (*alices, bobs)} == {Phase.ENDED}
    assert running.count(alices[2].id) == 1, "its turn came"
