"""The promises of design section 4 that the service keeps, each by its number and name.

4 and 5 are in test_promises_idleness.py.
"""

from dataclasses import replace

import pytest
from service_world import GRACE, IDLE_FOR, SECRET, a_catalog

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.lease_documents import lease_variables
from gpuspawner.service.workspaces.presenter import present_workspace


def gpus_of(lease):
    return [slot.gpu for slot in lease.slots]


# 1. A GPU is granted to at most one exclusive lease, and a shared one never beyond its slices.


async def test_promise_1_a_gpu_goes_from_one_lease_to_the_next_only_after_its_end(make_world):
    world = make_world(gpus=1)
    first = await world.up("alice")
    second = await world.start("bob")
    assert second.phase is Phase.QUEUED
    await world.stop(first)
    world.backend.unkillable.add(first.id)
    await world.go_on(60, step=10)
    await world.parts.attempts.hear(second.id, 1)
    assert world.now_of(first).phase is Phase.STOPPING
    assert world.now_of(second).phase is not Phase.RESERVED
    world.backend.unkillable.clear()
    await world.go_on(4, step=1)
    assert world.now_of(first).phase is Phase.ENDED
    assert gpus_of(world.now_of(second)) == gpus_of(first)


async def test_promise_1_a_shared_gpu_is_granted_up_to_its_slices(make_world):
    world = make_world(gpus=1)
    await world.round()
    phases = [(await world.start(user, gpu="half")).phase for user in ("alice", "bob", "carol")]
    whole = await world.start("dave")
    assert phases == [Phase.RESERVED, Phase.RESERVED, Phase.QUEUED]
    assert whole.phase is Phase.QUEUED


async def test_promise_1_nothing_is_granted_before_gpus_and_processes_were_seen(world):
    lease = await world.start("alice")
    await world.allocator.grant_waiting()
    assert world.registry.get(lease.id).phase is Phase.QUEUED
    await world.parts.engine.round()
    assert world.registry.get(lease.id).phase is Phase.QUEUED, "the GPUs were not seen yet"
    world.backend.complete = False
    await world.round()
    assert world.registry.get(lease.id).phase is Phase.QUEUED, "not all GPUs were seen"
    world.backend.complete = True
    await world.round()
    assert world.registry.get(lease.id).phase is Phase.RESERVED


async def test_promise_1_a_process_that_outlived_the_store_keeps_its_gpu(make_world):
    world = make_world(gpus=1)
    variables = lease_variables(await world.up("alice"), SECRET)
    other = make_world(gpus=1)
    other.backend.run("of another hub", 1, {**variables, "GPUSPAWNER_HUB_ID": "hub-2"})
    lease = await other.start("bob")
    await other.go_on(30, step=1)
    assert present_workspace(other.parts, other.registry.get(lease.id)).queue.place == 1
    assert other.allocator.observed.others == world.registry.of_key(world.key("alice")).slots
    other.backend.vanish("of another hub")
    await other.round()
    assert other.registry.get(lease.id).phase is Phase.RESERVED


async def test_promise_1_what_a_start_left_behind_uses_its_gpu_until_it_ended(make_world):
    """The hub dies in a start; its user asks for something else, and gets another GPU: the first is not free."""
    world = make_world(gpus=2)
    await world.round()
    lease = await world.create(await world.start("alice"))
    await world.round()
    world.backend.unkillable.add(lease.id)
    changed = await world.start("alice", gpu="half")
    await world.round()
    changed = world.registry.get(changed.id)
    bob = await world.start("bob")
    assert gpus_of(changed) != gpus_of(lease)
    assert [slot.gpu for slot in world.allocator.observed.others] == gpus_of(lease)
    assert bob.phase is Phase.QUEUED
    world.backend.unkillable.clear()
    assert await world.acknowledge(changed) is not None
    await world.round()
    assert gpus_of(world.registry.get(bob.id)) == gpus_of(lease)


async def test_promise_1_a_gpu_given_back_unseen_is_granted_only_after_the_next_look(make_world):
    """A process created after the last look is unknown when its start gives its GPU back."""
    world = make_world(gpus=1)
    await world.round()
    lease = await world.create(await world.start("alice"))
    bob = await world.start("bob")
    await world.start("alice", gpu="half")  # gives the GPU back; the process on it was never seen
    await world.allocator.grant_waiting()
    assert world.registry.get(bob.id).phase is Phase.QUEUED
    world.backend.unkillable.add(lease.id)
    await world.round()
    assert world.registry.get(bob.id).phase is Phase.QUEUED


async def test_promise_1_a_gpu_of_a_start_without_room_is_granted_only_after_the_next_look(make_world):
    world = make_world(gpus=1)
    await world.round()
    lease = await world.create(await world.start("alice"))
    bob = await world.start("bob")
    await world.parts.attempts.requeue(lease.id, lease.attempt, "no room")  # its process was never seen
    await world.allocator.grant_waiting()
    assert world.registry.get(bob.id).phase is Phase.QUEUED
    world.backend.vanish(lease.id)
    await world.round()
    assert world.registry.get(bob.id).phase is Phase.RESERVED


# 2. Nothing is lost.


async def test_promise_2_leases_and_readings_survive_a_restart(make_world):
    world = make_world(gpus=1)
    running = await world.up("alice")
    first, second = await world.start("bob", gpu="half"), await world.start("carol")
    await world.go_on(240)
    running = await world.parts.actions.extend(world.registry.get(running.id), "alice")
    readings = world.parts.store.readings.of_lease(running.id)
    before = {lease.id: lease for lease in world.registry}
    world.boot()
    assert {x.id: replace(x, heard_at=before[x.id].heard_at) for x in world.registry} == before
    assert world.registry.get(running.id).streak.idle_seconds == 180.0
    assert world.parts.store.readings.of_lease(running.id) == readings
    places = [present_workspace(world.parts, world.registry.get(x.id)).queue.place for x in (first, second)]
    assert places == [1, 2]


@pytest.mark.parametrize(
    ("options", "change", "why"),
    [
        pytest.param(
            {"gpu": "half"}, {"gpus": {"a100": "1-8"}}, "GPU: You asked for 'half'. Allowed: a100", id="a kind"
        ),
        pytest.param(
            {"memory": "64GiB"}, {"bounds": {"memory": "1GiB-8GiB"}}, "Memory: You asked for '64GiB'", id="a bound"
        ),
    ],
)
async def test_promise_2_a_request_that_the_new_catalog_forbids_ends_with_the_reason(world, options, change, why):
    ada = await world.up("ada", count=2)
    bob, cyd = await world.start("bob", **options), await world.start("cyd", gpu="a100")
    pytorch = {
        "title": "PyTorch",
        "gpus": {"a100": "1-8", "half": "1-2"},
        "default": {"gpu": "a100", "count": 1, "memory": "8GiB"},
        **change,
    }
    world.catalog = a_catalog(templates={"pytorch": pytorch})
    world.boot()
    assert world.phase(ada) is Phase.RUNNING
    assert world.phase(cyd) is Phase.PARKED
    end = world.view(bob).end
    assert (end.reason, end.by) == ("failed", "gpuspawner")
    assert why in end.why
    assert end.why.endswith("Press Start to request it again.")


@pytest.mark.parametrize(
    "default", [pytest.param({"gpu": "half"}, id="kind"), pytest.param({"gpu": "a100", "count": 2}, id="count")]
)
async def test_promise_6_a_changed_default_changes_no_waiting_request(world, default):
    ada = await world.up("ada", count=2)
    bob = await world.start("bob")
    await world.park(bob)
    pytorch = {"title": "PyTorch", "gpus": {"a100": "1-8", "half": "1-2"}, "default": {"memory": "8GiB", **default}}
    world.catalog = a_catalog(templates={"pytorch": pytorch})
    world.boot()
    await world.round()
    start, asked = world.hub.start, []
    world.hub.start = lambda user, name, options: asked.append(options) or start(user, name, options)
    await world.hub_stops(ada)
    await world.go_on(4, step=1)
    (options,) = asked
    joined = await world.ask("bob", **options)
    assert (joined.id, joined.phase, joined.asked_at) == (bob.id, Phase.RESERVED, bob.asked_at)
    assert (joined.request.gpu, joined.request.count) == ("a100", 1)


async def test_promise_2_a_request_by_a_removed_default_ends_with_the_reason(world):
    await world.up("ada", count=2)
    bob = await world.start("bob")
    world.change_catalog(a_catalog(templates={"pytorch": {"title": "PyTorch", "gpus": {"half": "1-2"}}}))
    assert "GPU: You asked for 'a100'. Allowed: half" in world.view(bob).end.why


async def test_promise_2_a_failed_start_that_the_new_catalog_forbids_ends(world):
    lease = await world.start("alice", gpu="half")
    await world.round()
    lease = await world.acknowledge(world.now_of(lease))
    world.crash()
    world.hub.forget("alice")
    world.change_catalog(a_catalog(templates={"pytorch": {"title": "PyTorch", "gpus": {"a100": "1-2"}}}))
    assert world.now_of(lease).phase is Phase.STARTING
    await world.go_on(600)
    assert "GPU: You asked for 'half'. Allowed: a100" in world.view(lease).end.why


async def test_promise_2_a_restart_in_the_grace_leaves_time_to_object_and_still_reclaims(world):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60 + GRACE - 60)
    assert world.registry.get(lease.id).phase is Phase.RECLAIMING
    world.boot()
    await world.round()
    assert world.registry.get(lease.id).streak.grace_left_seconds == GRACE  # two samples and a minute
    await world.go_on(GRACE - 60)
    assert world.registry.get(lease.id).phase is Phase.RECLAIMING
    await world.go_on(120)
    assert world.now_of(lease).reason is ExitReason.IDLE


async def test_promise_2_leases_are_rebuilt_from_what_runs_when_the_store_is_lost(make_world):
    old = make_world()
    lease = await old.up("alice", gpu="half", lifetime="2h")
    old.clock.advance(600)
    new = make_world()
    new.clock, new.backend, new.hub = old.clock, old.backend, old.hub
    new.boot()
    await new.round()
    await new.round()
    rebuilt = new.registry.get(lease.id)
    assert (rebuilt.phase, rebuilt.attempt, rebuilt.key, rebuilt.slots) == (
        Phase.RUNNING,
        lease.attempt,
        lease.key,
        lease.slots,
    )
    assert (rebuilt.request, rebuilt.asked_at) == (lease.request, lease.asked_at)
    assert rebuilt.deadline_at == lease.granted_at + 7200
    assert rebuilt.streak.idle_seconds == 0


async def test_promise_2_a_server_without_a_lease_is_adopted_and_ends_with_its_server(world):
    world.hub.put("alice", ready=True)
    await world.round()
    lease = world.registry.of_key(world.key("alice"))
    assert (lease.phase, lease.adopted, lease.deadline_at, lease.slots) == (Phase.RUNNING, True, None, ())
    await world.go_on(86400, step=3600)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    world.hub.forget("alice")
    await world.go_on(20, step=2)
    assert world.now_of(lease).reason is ExitReason.STOPPED
    assert world.hub.calls == []


async def test_promise_2_a_lease_without_a_server_is_released(world):
    lease = await world.up("alice")
    world.lose(lease)
    await world.go_on(20, step=2)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.FAILED, "hub")
    assert "Your files are untouched" in ended.message


# 3. Only the engine stops workspaces, by what is true at that moment. See also test_stopping.py.


async def test_promise_3_a_stop_records_actor_reason_and_readings(world):
    lease = await world.up("alice")
    await world.go_on(900)
    ended = world.now_of(lease)
    assert (ended.reason, ended.ended_by) == (ExitReason.IDLE, "gpuspawner")
    assert "highest use was 0 %" in ended.message
    assert world.did(lease) == ["asked", "granted", "running", "warned", "stop"]
    assert world.hub.calls == [("stop", "alice", lease.server_started)]
    world.clock.advance(40 * 86400)
    world.parts.store.readings.thin(world.clock.now())
    assert len(world.parts.store.readings.of_lease(lease.id)) >= 8


# 6. A GPU shortage is a queue, not a failure.


async def test_promise_6_a_shortage_is_a_queue_position(make_world):
    world = make_world(gpus=1)
    await world.up("alice", lifetime="2h")
    await world.start("bob")
    carol = await world.start("carol")
    queue = present_workspace(world.parts, carol).queue
    assert (queue.place, queue.of) == (2, 2)
    assert queue.unchanged_seconds == pytest.approx(7200 + 8 * 3600)
    assert queue.sentence.startswith("The only simulated A100 80 GB is in use. You are 2nd in line. Too few past ")


async def test_promise_6_a_parked_request_keeps_its_position_and_is_started(make_world):
    world = make_world(gpus=1)
    alice = await world.up("alice")
    world.shows(alice, 50)
    bob, carol = await world.start("bob"), await world.start("carol")
    await world.park(bob)
    await world.go_on(600, step=20)
    assert world.now_of(carol).phase is Phase.PARKED  # not heard for half a minute
    await world.hub_stops(alice)
    await world.go_on(2, step=1)
    assert world.hub.calls == [("start", "bob", world.hub.listed["bob", ""].started)]
    again = await world.ask("bob")
    assert (again.id, again.phase, again.attempt, again.asked_at) == (bob.id, Phase.RESERVED, 2, bob.asked_at)


async def test_promise_6_no_request_overtakes_within_a_pool(make_world):
    world = make_world(gpus=2)
    alice = await world.up("alice")
    large, small = await world.start("bob", count=2), await world.start("carol")
    await world.round()
    assert [world.registry.get(x.id).phase for x in (large, small)] == [Phase.QUEUED] * 2
    await world.hub_stops(alice)
    await world.go_on(2, step=1)
    assert [world.registry.get(x.id).phase for x in (large, small)] == [Phase.RESERVED, Phase.QUEUED]


async def test_promise_6_a_request_without_gpu_starts_at_once(make_world):
    world = make_world(gpus=1)
    await world.up("alice")
    await world.start("bob")
    assert (await world.start("carol", gpu="none")).phase is Phase.RESERVED


# 8. A hard quota refuses with both quantities; 10. a bad request is refused with care.


async def test_promise_8_a_hard_quota_refuses_with_both_quantities(make_world):
    world = make_world(gpus=4, quota=2)
    await world.up("alice")
    with pytest.raises(RequestRefused, match=r"GPUs: You asked for 2\. Allowed: 2 per user. You use or wait for 1"):
        await world.start("alice", "second", count=2)
    assert [lease.key.server for lease in world.registry] == [""]


async def test_promise_10_more_than_the_fleet_has_is_refused_not_queued(world):
    await world.round()
    with pytest.raises(
        RequestRefused, match=r"GPUs: You asked for 3\. Allowed: at most 2 simulated A100 80 GB in one workspace"
    ):
        await world.start("alice", count=3)
    with pytest.raises(RequestRefused, match="CPU cores: You asked for '99'"):
        await world.start("alice", cpu="99")
    assert list(world.registry) == []
