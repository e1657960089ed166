"""Leases follow the grants of a counting-only backend: no GPU counts twice, and a lease without room waits again."""

import pytest
from service_world import SECRET

from gpuspawner.core.gpus.fleet import Gpu, Group
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.lease_documents import lease_variables
from gpuspawner.service.engine.sampling.gpu_states import count_gpu_states
from gpuspawner.service.workspaces.presenter import present_workspace

NODES = {node: Group(node, "nvidia.com/gpu") for node in ("one", "two")}
REASON = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def cluster(per_node=2, foreign=()):
    """GPUs of two nodes; ``foreign`` are the ids of those that others use."""
    return tuple(
        Gpu(group.gpu(index), "a100", node, index, "A100", 80 * 2**30, foreign=group.gpu(index) in foreign, group=group)
        for node, group in NODES.items()
        for index in range(per_node)
    )


@pytest.fixture
async def place(make_world):
    """A world whose GPUs only count: four of them on two nodes."""
    world = make_world()
    world.backend.gpus = cluster()
    await world.round()
    return world


async def gave(world, lease, node="", count=1, **changes):
    """The spawner makes its pod, and the place gives it this."""
    starting = await world.acknowledge(lease)
    world.backend.run(lease.id, lease.attempt, lease_variables(starting, SECRET))
    change(world, lease, given=((NODES[node], count),) if node else None, **changes)
    return starting


def change(world, lease, **changes):
    world.change_process(lease, **changes)


def gpus(world, lease):
    return [slot.gpu for slot in world.now_of(lease).slots]


def free(world):
    return world.parts.scheduler.stock(world.allocator.observed.snapshot())[0].free


async def test_a_lease_follows_its_pod_to_another_node(place):
    alice = await place.start("alice")
    assert gpus(place, alice) == ["one/nvidia.com/gpu/0"]
    await gave(place, alice, "two")
    await place.round()
    assert gpus(place, alice) == ["two/nvidia.com/gpu/0"]
    assert ("gpuspawner", "placed", "two/nvidia.com/gpu/0") in place.audit(alice)
    assert free(place) == 3, "what the pod says it was promised is no use of it"
    await place.round()
    assert place.did(alice).count("placed") == 1


async def test_the_uuids_of_counted_gpus_are_shown_once_known(place):
    alice = await place.start("alice", count=2)
    await gave(place, alice, "one", 2)
    place.hub.answer("alice", "")
    await place.round()
    assert place.phase(alice) is Phase.RUNNING

    def told():
        return [gpu.uuid for gpu in place.view(alice).gpus]

    assert told() == [None, None]
    change(place, alice, uuids=("GPU-b", "GPU-a"))
    await place.round()
    change(place, alice, uuids=())
    await place.round()
    assert told() == ["GPU-b", "GPU-a"]
    assert place.audit(alice).count(("cluster", "allocated", "GPU-b, GPU-a")) == 1


async def test_a_pod_on_its_granted_node_changes_nothing(place):
    alice = await place.start("alice")
    await gave(place, alice, "one")
    await place.round()
    assert "placed" not in place.did(alice)
    assert gpus(place, alice) == ["one/nvidia.com/gpu/0"]


async def test_two_pods_that_swapped_nodes_are_both_followed(place):
    alice, bob = await place.start("alice", count=2), await place.start("bob")
    assert (gpus(place, alice)[0][:3], gpus(place, bob)[0][:3]) == ("one", "two")
    await gave(place, alice, "two", 2)
    await gave(place, bob, "one")
    await place.round()
    assert gpus(place, alice) == ["two/nvidia.com/gpu/0", "two/nvidia.com/gpu/1"]
    assert gpus(place, bob) == ["one/nvidia.com/gpu/0"]
    assert free(place) == 1


async def test_gpus_reserved_for_another_stay_reserved(place):
    alice, bob, carol = await place.start("alice"), await place.start("bob"), await place.start("carol")
    assert [gpus(place, x)[0] for x in (alice, bob, carol)] == [
        "one/nvidia.com/gpu/0", "one/nvidia.com/gpu/1", "two/nvidia.com/gpu/0",
    ]  # fmt: skip
    await gave(place, alice, "two")
    await place.round()
    assert gpus(place, alice) == ["two/nvidia.com/gpu/1"]
    assert free(place) == 1


async def test_gpus_used_by_others_are_not_counted_on_top_of_a_leases(place):
    alice = await place.start("alice", count=2)
    place.backend.gpus = cluster(foreign=["one/nvidia.com/gpu/1"])
    await place.round()
    assert free(place) == 2, "three are taken of node one's two: none of it is free"
    await place.hub_stops(await gave(place, alice, "two", 2), "failed")
    await place.round()
    await place.round()
    assert free(place) == 3


async def test_foreign_use_in_a_group_takes_a_gpu_without_a_lease(place):
    await place.start("alice")
    place.backend.gpus = cluster(foreign=["one/nvidia.com/gpu/0"])
    await place.round()
    assert free(place) == 2
    assert gpus(place, await place.start("bob", count=2)) == ["two/nvidia.com/gpu/0", "two/nvidia.com/gpu/1"]


async def test_each_gpu_of_a_group_is_shown_as_one_thing(place):
    await place.start("alice")
    place.backend.gpus = cluster(foreign=["one/nvidia.com/gpu/0"])
    await place.round()
    states = count_gpu_states(place.parts)
    assert states == {("a100", "unmeasured"): 1, ("a100", "foreign"): 1, ("a100", "free"): 2}


async def test_a_pod_that_got_fewer_gpus_holds_fewer(place):
    alice = await place.start("alice", count=2)
    await gave(place, alice, "one", 1)
    await place.round()
    assert gpus(place, alice) == ["one/nvidia.com/gpu/0"]
    assert free(place) == 3


async def test_an_earlier_attempts_pod_counts_until_it_is_gone(place):
    alice = await place.start("alice")
    await gave(place, alice, "two", ending=True)
    again = await place.start("alice")
    assert again.attempt == 2
    await place.round()
    assert gpus(place, again) == ["one/nvidia.com/gpu/0"]
    assert free(place) == 2, "what still runs, and what is reserved"


async def test_a_lease_is_rebuilt_with_the_gpus_that_were_given(place, make_world):
    alice = await place.start("alice")
    await gave(place, alice, "two")
    await place.round()
    after = make_world()
    after.backend.gpus, after.backend.running = cluster(), place.backend.running
    after.hub.put("alice")
    await after.round()
    assert gpus(after, alice) == ["two/nvidia.com/gpu/0"]


async def test_a_start_without_room_goes_back_to_its_place_once_its_pod_is_gone(place):
    alice = await place.start("alice")
    await gave(place, alice, waiting=REASON, waiting_seconds=19.0)
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING
    change(place, alice, waiting_seconds=21.0)
    place.backend.unkillable.add(alice.id)
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING, "its pod would go on waiting beside its place"
    place.backend.unkillable.clear()
    await place.round()
    back = place.now_of(alice)
    assert (back.phase, back.asked_at, back.slots, back.attempt) == (Phase.PARKED, alice.asked_at, (), 2)
    assert back.failed_starts == 0
    assert back.message == f"There was no room for it after all: {REASON}"
    assert ("gpuspawner", "requeued", back.message) in place.audit(alice)
    assert (not place.backend.running, await place.speaks(alice)) == (True, False)


async def test_a_starting_node_is_waited_for_longer(place, monkeypatch):
    monkeypatch.setattr(place.parts.scheduler, "node_seconds", lambda *_: 240.0)
    alice = await place.start("alice")
    await gave(place, alice, waiting=REASON, waiting_seconds=450.0)
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING
    view = place.view(alice)
    assert view.words.endswith("; a node starts for it, in about 4 min")
    change(place, alice, waiting_seconds=510.0)
    await place.round()
    back = place.now_of(alice)
    assert (back.phase, back.asked_at, back.failed_starts) == (Phase.PARKED, alice.asked_at, 0)
    assert back.message == f"No node came within 8 min: {REASON}"
    told = present_workspace(place.parts, back).queue.sentence
    assert "No node came within 8 min" in told
    assert "We try again in 30 s." in told


async def test_a_start_without_room_lets_others_pass_for_a_while(place):
    alice = await place.start("alice")
    await gave(place, alice, waiting=REASON, waiting_seconds=21.0)
    await place.round()
    again = await place.ask("alice")
    assert (again.id, again.phase, again.asked_at) == (alice.id, Phase.QUEUED, alice.asked_at)
    await place.round()
    assert place.now_of(again).phase is Phase.QUEUED
    bob = await place.start("bob")
    assert place.now_of(bob).phase is Phase.RESERVED
    for _ in range(4):
        place.clock.advance(8.0)
        await place.parts.attempts.hear(again.id, again.attempt)
        await place.round()
    assert place.now_of(again).phase is Phase.RESERVED


async def test_another_node_is_tried_where_the_first_had_no_room(place):
    alice = await place.start("alice")
    assert gpus(place, alice) == ["one/nvidia.com/gpu/0"]
    await gave(place, alice, waiting="0/2 nodes are available: 1 Insufficient cpu.", waiting_seconds=21.0)
    await place.round()
    for granted in ("two/nvidia.com/gpu/0", "one/nvidia.com/gpu/0"):
        await place.go_on(32, step=8)
        place.hub.put("alice")
        back = place.now_of(alice)
        assert gpus(place, back) == [granted]
        await gave(place, back, waiting=REASON, waiting_seconds=21.0)
        await place.round()


async def test_promise_6_a_start_requeued_by_its_spawner_is_no_failure(place):
    alice, why = await place.start("alice"), "The cluster's quota team leaves no room: 1 asked, 2 of 2 in use."
    for attempt in (1, 3, 5, 7):  # more often than a hub may drop a start
        assert place.now_of(alice).attempt == attempt
        await place.acknowledge(place.now_of(alice))
        back = await place.parts.attempts.requeue(alice.id, attempt, why)
        assert (back.phase, back.asked_at, back.slots, back.failed_starts) == (Phase.PARKED, alice.asked_at, (), 0)
        assert ("gpuspawner", "requeued", why) in place.audit(alice)
        assert (await place.ask("alice")).phase is Phase.QUEUED
        await place.round()
        assert place.now_of(alice).phase is Phase.QUEUED, "not at once again"
        for _ in range(4):
            place.clock.advance(8.0)
            await place.parts.attempts.hear(alice.id, attempt + 2)
            await place.round()
        assert place.now_of(alice).phase is Phase.RESERVED


async def test_a_start_that_the_cluster_ends_goes_back_to_its_place_at_once(place):
    alice = await place.start("alice")
    await gave(place, alice, "one", disruption="The cluster needed its GPU for work with a higher priority.")
    await place.round()
    back = place.now_of(alice)
    assert (back.phase, back.asked_at, back.failed_starts) == (Phase.PARKED, alice.asked_at, 0)
    assert back.message.endswith("work with a higher priority.")


async def test_a_lease_that_found_room_meanwhile_stays(place):
    alice = await place.start("alice")
    await gave(place, alice, waiting=REASON, waiting_seconds=19.0)
    await place.round()
    change(place, alice, waiting="", waiting_seconds=0.0, given=((NODES["one"], 1),))
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING
    assert place.backend.running
