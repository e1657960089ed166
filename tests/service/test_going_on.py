"""Going on without a GPU and back: who may, what it does to leases and GPUs, and what is said before."""

import asyncio
from dataclasses import replace

import pytest
from service_world import IDLE_FOR

from gpuspawner.backends.base import ProbeResult
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine import effects
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.restarts import wait_words


async def go_on(world, lease, way):
    """Ask for it as the lease's user, and let its server end and what follows be started by the service."""
    await act(world.parts, Person(lease.user, lease.key.owner), lease, way, "its page")
    for _ in range(2):  # the hub stops it; then what is left of it is seen gone
        await world.round()
    return world.registry.of_key(lease.key)


async def goes_up(world, lease):
    """Let the start that the service has asked the hub for be granted, created and answer."""
    await world.rounds(3)
    lease = world.registry.get(lease.id)
    assert lease.phase is Phase.RESERVED
    again = await world.ask(lease.user, lease.key.server, **lease.options)
    assert again.id == lease.id, "what the service starts in the hub takes this lease"
    await world.create(again)
    world.hub.answer(lease.user, lease.key.server)
    await world.round()
    return world.registry.get(lease.id)


async def test_a_workspace_restarts_without_its_gpu_and_later_with_it(make_world):
    world = make_world(gpus=1)
    lease = await world.up("alice", count=1, lifetime="2h", cpu=3)
    waiting = await world.start("bob")
    assert waiting.phase is Phase.QUEUED
    after = await go_on(world, lease, "without-gpu")
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.CHANGED, "alice")
    assert ended.message.startswith("alice goes on with no GPU, from its page. It starts again by itself.")
    assert world.phase(waiting) is Phase.RESERVED, "who waits has the GPU"
    assert (after.request.gpu, after.request.count, after.request.cpu_cores) == (None, 0, 3)
    assert after.request.lifetime_seconds == 7200
    up = await goes_up(world, after)
    assert (up.phase, up.slots) == (Phase.RUNNING, ())
    assert [call[:2] for call in world.hub.calls] == [("stop", "alice"), ("start", "alice")]
    view = present_workspace(world.parts, up).going_on
    assert view.action == "with-gpu"
    assert "requests 1 A100 80 GB" in view.words
    assert "You lose running kernels and what they hold in memory" in view.words
    told = await wait_words(world.parts, up, ())
    assert told.startswith("It would wait, and this workspace ends first. The only simulated A100 80 GB is in use.")
    assert "Start" not in told
    back = await go_on(world, up, "with-gpu")
    assert (back.request, back.with_gpu) == (lease.request, None)
    assert back.asked_at > waiting.asked_at, "it stands behind who asked before"
    await world.rounds(3)
    assert world.phase(back) is Phase.PARKED
    await world.hub_stops(world.registry.get(waiting.id))
    assert (await goes_up(world, back)).slots == lease.slots


async def test_a_restart_without_gpu_survives_a_killed_service(world):
    lease = await world.up("alice")
    await act(world.parts, Person("alice", lease.key.owner), lease, "without-gpu", "its page")
    if world.now_of(lease).phase is Phase.STOPPING:
        assert world.now_of(lease).goes_on.request.gpu is None
    world.boot()
    await world.rounds(3)
    assert world.now_of(lease).phase is Phase.ENDED
    assert world.registry.of_key(lease.key).request.gpu is None


async def test_a_restart_with_a_gpu_respects_quotas_and_refusals_change_nothing(make_world):
    world = make_world(quota=1)
    lease = await world.up("alice", gpu="none")
    assert await wait_words(world.parts, lease, ()) == "The requested GPUs are free now."
    await world.up("alice", "second")
    with pytest.raises(RequestRefused, match="1"):
        await go_on(world, lease, "with-gpu")
    with pytest.raises(Conflict, match="It has no GPU now"):
        await go_on(world, lease, "without-gpu")
    assert world.phase(lease) is Phase.RUNNING
    assert world.now_of(lease).goes_on is None
    await world.up("bob")
    waits = await world.start("carol")
    with pytest.raises(Conflict, match="It does not run: change what it asks for on the form"):
        await go_on(world, waits, "without-gpu")


async def test_a_start_can_go_without_a_gpu_only_once_it_runs(make_world):
    world = make_world()
    starts = await world.start("alice")
    await world.round()
    assert world.phase(starts) is Phase.RESERVED
    with pytest.raises(Conflict, match="It does not run yet: try again once it runs"):
        await go_on(world, world.now_of(starts), "without-gpu")


async def test_the_idle_warning_offers_a_restart_without_gpu(world):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60)
    warned = world.registry.get(lease.id)
    assert present_workspace(world.parts, warned).warning.actions == ["keep", "without-gpu"]
    person = Person("alice", lease.key.owner)
    await act(world.parts, person, warned, "without-gpu", "its page")
    await act(world.parts, person, world.now_of(lease), "without-gpu", "its page")
    assert world.now_of(lease).reason is ExitReason.CHANGED


async def test_a_restart_with_a_kind_that_left_the_catalog_is_explained(make_world):
    world = make_world(templates={"half-only": {"title": "Half", "gpus": {"half": 1}}})
    lease = await world.up("alice", template="half-only", gpu="half")
    up = await goes_up(world, await go_on(world, lease, "without-gpu"))
    only = world.catalog.templates["pytorch"]
    world.parts.in_force.catalog = replace(world.catalog, templates={"pytorch": only})
    view = present_workspace(world.parts, up).going_on
    assert view.why
    assert view.words == ""


async def test_the_page_of_a_workspace_works_without_the_scheduler(world, monkeypatch):
    async def away(_claim):
        raise Unavailable("The scheduler does not answer.")

    lease = await world.up("alice", gpu="none")
    monkeypatch.setattr(world.parts.queue, "offers_for", away)
    told = await wait_words(world.parts, lease, ())
    assert told.startswith("We do not know how long the new one waits, and this workspace ends first. The scheduler ")


async def held_back(world, monkeypatch, lease, way="without-gpu"):
    """Ask for it while something is run before the end, until what is returned is set."""
    saved = asyncio.Event()

    async def run_script(*_how):
        await saved.wait()
        return ProbeResult("on-stop 0\nsaved\n")

    monkeypatch.setattr(world.backend, "run_script", run_script)
    monkeypatch.setattr(effects, "AT_ONCE_SECONDS", 0.01)
    await act(world.parts, Person(lease.user, lease.key.owner), lease, way, "its page")
    assert world.phase(lease) is Phase.STOPPING
    return saved


async def test_a_stop_during_a_restart_ends_the_workspace(world, monkeypatch):
    lease = await world.up("alice")
    saved = await held_back(world, monkeypatch, lease)
    person = Person("alice", lease.key.owner)
    for _ in range(2):
        await act(world.parts, person, world.now_of(lease), "stop", "its page")
    saved.set()
    await asyncio.gather(*world.parts.engine.effects._on_stop.values())
    await world.go_on(5, step=1)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.message) == (
        Phase.ENDED,
        ExitReason.STOPPED,
        "It was stopped by alice, from its page.",
    )
    assert world.registry.of_key(lease.key) is None
    lines = [line.event.name for line in await world.parts.store.read(world.parts.store.audit_log.latest, lease.id)]
    assert lines.count("stop") == 2, "what was to go on, and once that it was stopped for good"


async def test_a_stop_in_the_hub_during_a_restart_ends_the_workspace(world, monkeypatch):
    lease = await world.up("alice")
    await held_back(world, monkeypatch, lease)
    world.hub.forget("alice")
    await world.parts.attempts.release(lease.id, lease.attempt, "stopped", "")
    await world.allocator.stoppers.name(lease.key, "root")
    await world.go_on(5, step=1)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.STOPPED, "root")
    assert world.registry.of_key(lease.key) is None


async def test_a_restart_from_an_old_page_is_refused(world):
    lease = await world.up("alice")
    await go_on(world, lease, "without-gpu")
    person = Person("alice", lease.key.owner)
    with pytest.raises(Conflict, match="This workspace has ended"):
        await act(world.parts, person, world.now_of(lease), "with-gpu", "its page")
    await act(world.parts, person, world.now_of(lease), "without-gpu", "its page")
