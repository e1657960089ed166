"""Parked leases and the hub: granted while it answers, and started exactly once for their user."""

import asyncio

import pytest
from service_world import a_catalog

from gpuspawner.core.errors import RequestRefused, Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act


async def test_a_parked_lease_is_granted_only_while_its_hub_answers_and_started_once(world):
    lease = await world.parked("alice", lifetime="2h")
    world.hub.unreachable = "The hub does not answer."
    await world.go_on(60, step=10)
    assert world.now_of(lease).phase is Phase.PARKED
    world.hub.unreachable = ""
    await world.go_on(20, step=5)
    assert world.now_of(lease).phase is Phase.RESERVED
    assert [call[:2] for call in world.hub.calls] == [("start", "alice")]
    await world.go_on(10, step=2)
    assert len(world.hub.calls) == 1


async def test_a_start_that_the_hub_refuses_does_not_end_the_next_start_of_its_user(world):
    lease = await world.parked("alice", lifetime="2h")

    async def refused(*_):
        world.hub.start = lambda *_: asyncio.sleep(0, "")
        await world.start("alice", lifetime="2h")  # meanwhile its user pressed Start
        return "too many named servers"

    world.hub.start = refused
    await world.go_on(10, step=2)
    assert (world.phase(lease), world.now_of(lease).attempt) == (Phase.RESERVED, 2)


async def test_promise_6_a_queue_position_stays_when_the_last_node_of_the_kind_leaves(world):
    holder = await world.start("holder", gpu="a100", count=2)
    lease = await world.start("alice", gpu="a100")
    gpus, world.backend.gpus = world.backend.gpus, ()
    await world.round()
    again = await world.ask("alice", gpu="a100")
    assert (again.id, again.phase, again.asked_at) == (lease.id, Phase.QUEUED, lease.asked_at)
    with pytest.raises(RequestRefused, match="no A100 80 GB is there now"):
        await world.ask("bob", gpu="a100")
    with pytest.raises(RequestRefused, match="no A100 80 GB is there now"):
        await world.ask("alice", gpu="a100", count=2)
    world.backend.gpus = gpus
    await world.parts.attempts.release(holder.id, 1, "stopped", "")
    await world.go_on(10, step=1)
    assert world.now_of(lease).phase is Phase.RESERVED


async def test_a_parked_lease_is_started_for_its_owner_under_any_name(world):
    world.backend.complete = False
    await world.round()
    leases = {name: await world.start(name) for name in ("alice", "bob")}
    for lease in leases.values():
        await world.park(lease)
    world.hub.rename("alice", "alicia")
    world.hub.users["alice"] = world.hub.users["bob"] = "somebody else born"
    world.backend.complete = True
    await world.go_on(5, step=1)
    assert {world.now_of(lease).phase for lease in leases.values()} == {Phase.RESERVED}
    assert [call[:2] for call in world.hub.calls] == [("start", "alicia")], "nobody else's server starts"


async def test_a_grant_that_is_withdrawn_while_the_hub_is_asked_for_the_name_starts_nothing(world):
    """promise 3: it would return as a new lease, and hold a GPU that its user does not want."""
    holder, lease = await world.up("holder", count=2), await world.start("alice")
    await world.park(lease)
    name_of = world.hub.name_of

    async def slow(*who):
        await act(world.parts, Person("alice", lease.key.owner), world.registry.get(lease.id), "stop", "its page")
        return await name_of(*who)

    world.hub.name_of = slow
    await world.hub_stops(holder)
    await world.go_on(30, step=1)
    assert (world.now_of(lease).phase, world.hub.calls) == (Phase.ENDED, [])


async def test_a_parked_lease_granted_when_its_hub_dies_keeps_its_place(world):
    """The parked lease is granted, the start answered 202, and the hub dies before it uses the grant."""
    lease = await world.parked("alice")
    await world.go_on(2, step=1)
    assert world.now_of(lease).phase is Phase.RESERVED
    world.hub.unreachable = "The hub does not answer."
    world.hub.forget("alice")
    await world.go_on(60, step=5)
    parked = world.now_of(lease)
    assert (parked.phase, parked.asked_at) == (Phase.PARKED, lease.asked_at)
    world.hub.unreachable = ""
    await world.go_on(120, step=5)
    assert [call[:2] for call in world.hub.calls] == [("start", "alice")] * 2


async def test_a_hanging_start_does_not_block_the_next_start(world):
    world.backend.complete = False
    await world.round()
    lease = await world.start("alice")
    await world.park(lease)
    started, never = [], asyncio.Event()

    async def slow(*_):
        started.append(world.clock.now())
        await never.wait()

    world.hub.start = slow
    world.backend.complete = True
    for _ in range(100):
        world.clock.advance(1)
        await world.parts.scheduler.observe(world.clock.now())
        await world.parts.engine.round()
        for _ in range(5):
            await world.registry.settled()
            await asyncio.sleep(0)
    assert len(started) == 2  # the second after the timeout and its back-off
    await world.parts.engine.close()


def waits(world):
    found = (s for family in world.registry.start_times.collect() for s in family.samples)
    return {
        s.name: s.value for s in found if s.name in {"gpuspawner_queue_wait_seconds_" + x for x in ("sum", "count")}
    }


async def test_the_wait_of_a_parked_request_ends_with_its_first_grant(make_world):
    world = make_world(gpus=1)
    alice = await world.up("alice")
    world.shows(alice, 80)
    bob = await world.start("bob")
    await world.park(bob)
    await world.go_on(3600)
    await world.hub_stops(alice)
    await world.go_on(4, step=1)
    granted = world.now_of(bob)
    assert granted.phase is Phase.RESERVED
    assert granted.first_granted_at == granted.granted_at
    await world.go_on(2, step=1)
    starting = await world.create(await world.ask("bob"))
    assert starting.attempt == 2
    world.hub.answer("bob")
    await world.round()
    assert world.phase(bob) is Phase.RUNNING
    waited = granted.granted_at - bob.asked_at
    assert waits(world) == {"gpuspawner_queue_wait_seconds_count": 2, "gpuspawner_queue_wait_seconds_sum": waited}


async def test_a_request_that_loses_its_place_waits_again(make_world):
    world = make_world(gpus=2)
    await world.up("alice", count=2)
    bob = await world.start("bob")
    await world.parts.attempts.park(bob.id, 1)
    kept = await world.ask("bob", lifetime="2h")
    assert kept.asked_at == bob.asked_at
    await world.go_on(60)
    changed = await world.ask("bob", count=2)
    assert changed.asked_at > bob.asked_at
    carol = await world.ask("carol", gpu="none")
    assert carol.first_granted_at == carol.granted_at
    await world.go_on(60)
    anew = await world.ask("carol")
    assert (anew.phase, anew.asked_at > carol.asked_at, anew.first_granted_at) == (Phase.QUEUED, True, None)


async def test_without_groups_from_the_hub_nothing_starts_or_ends(make_world):
    world = make_world(gpus=1, templates={"leads": {"title": "Leads", "gpus": {"a100": 1}, "groups": ["leads"]}})
    world.hub.members["bob"] = {"leads"}
    bob = await world.start("bob", template="leads")
    assert bob.phase is Phase.QUEUED
    world.hub.forget("bob")
    await world.parts.attempts.park(bob.id, bob.attempt)
    ask = world.hub.groups

    async def away(*_who):
        raise Unavailable("The hub does not answer.")

    world.hub.groups = away
    await world.rounds(2)
    assert world.phase(bob) in {Phase.PARKED, Phase.RESERVED}
    assert world.hub.calls == []
    world.hub.groups = ask
    world.clock.advance(2.0)
    await world.round()
    assert [call[:2] for call in world.hub.calls] == [("start", "bob")]


async def test_a_grant_whose_hub_goes_away_before_its_start_is_parked_and_counts_as_no_failed_start(world):
    lease = await world.parked("alice")
    while world.phase(lease) is not Phase.RESERVED:
        await world.round()
    world.hub.unreachable = "The hub does not answer."  # between the grant and the start of its server
    world.parts.engine._servers._listed_at = float("-inf")
    await world.go_on(5, step=1)
    found = world.now_of(lease)
    assert (found.phase, found.failed_starts, found.asked_at) == (Phase.PARKED, 0, lease.asked_at)
    assert "parked" not in world.did(lease), "no start failed"


def with_image(image, cpu="2"):
    default = {"gpu": "a100", "count": 1, "cpu": cpu, "memory": "8GiB", "lifetime": "8h"}
    bounds = {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"}
    template = {"title": "P", "image": image, "gpus": {"a100": "1-8"}, "bounds": bounds, "default": default}
    return a_catalog(templates={"pytorch": template})


async def test_a_waiting_request_gets_its_original_options_despite_a_changed_catalog(world):
    world.parts.in_force.catalog = with_image("ml/pytorch:1")
    world.allocator.observed.processes_known = False  # nothing is granted yet
    first = await world.start("alice", cpu="4")
    assert (first.phase, first.request.image, first.request.cpu_cores) == (Phase.QUEUED, "ml/pytorch:1", 4)
    world.parts.in_force.catalog = with_image("ml/pytorch:2", cpu="3")
    again = await world.start("alice", cpu="4")
    assert (again.id, again.request, again.attempt) == (first.id, first.request, 2)
    await world.round()
    starting = await world.acknowledge(world.now_of(again))
    assert starting.request == first.request


async def test_a_changed_request_is_resolved_by_the_present_catalog(world):
    world.parts.in_force.catalog = with_image("ml/pytorch:1")
    world.allocator.observed.processes_known = False
    await world.start("alice", cpu="4")
    world.parts.in_force.catalog = with_image("ml/pytorch:2")
    assert (await world.start("alice", cpu="5")).request.image == "ml/pytorch:2"
