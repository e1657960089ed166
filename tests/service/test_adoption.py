"""Servers without a lease are adopted, and leases rebuilt from what their processes carry, if the service signed it."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from service_world import SECRET

from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.rules import LatestEnd, Rate
from gpuspawner.service.engine.lease_documents import lease_variables


async def test_a_pending_server_is_not_adopted_and_a_lease_keeps_its_renamed_user(world):
    lease = await world.up("alice")
    world.hub.put("bob")
    world.hub.rename("alice", "alicia")
    await world.go_on(20, step=5)
    assert world.registry.of_key(world.key("bob")) is None
    assert world.now_of(lease).user == "alicia"
    assert world.now_of(lease).phase is Phase.RUNNING


@pytest.mark.postgresql
async def test_a_lease_ends_with_its_user_although_another_of_that_name_has_a_server(world):
    lease = await world.up("alice")
    world.backend.vanish(lease.id)
    world.hub.users["alice"] = "another alice born"
    world.hub.put("alice", ready=True)
    await world.go_on(60, step=5)
    assert world.now_of(lease).phase is Phase.ENDED


@pytest.mark.postgresql
async def test_a_workspace_that_ended_before_the_hubs_list_arrived_is_not_adopted(world):
    lease = await world.up("alice")
    server = world.hub.listed["alice", ""]

    async def late():
        await world.hub_stops(lease)
        await world.parts.engine.drive(lease.id)
        return (server,)

    world.hub.servers = late
    world.clock.advance(11)
    await world.round()
    assert list(world.registry) == []


async def test_a_server_whose_process_carries_an_ended_lease_is_adopted_not_ended(world):
    lease = await world.up("alice")
    variables = lease_variables(lease, SECRET)
    await world.hub_stops(lease)
    await world.go_on(5, step=1)
    world.backend.run(lease.id, 1, variables)  # a start that was given up on came up after all
    world.hub.put("alice", ready=True)
    await world.go_on(900, step=20)
    assert world.registry.of_key(world.key("alice")).adopted
    assert (lease.id, 1) in world.backend.running
    assert world.allocator.observed.others == lease.slots


@pytest.mark.parametrize(
    "document", ["", "{", "[]", '{"user": 1}', '{"user": "a", "slots": 3}', '{"slots": [["x"]]}', '{"slots": {"a": 1}}']
)
async def test_a_process_with_unreadable_lease_variables_is_left_alone(world, document):
    world.backend.run("odd", 1, {"GPUSPAWNER_HUB_ID": world.hub_id, "GPUSPAWNER_LEASE": document})
    await world.go_on(900, step=30)
    assert list(world.registry) == []
    assert ("odd", 1) in world.backend.running
    assert world.allocator.observed.others == ()


async def test_a_process_with_another_hubs_lease_is_not_adopted(world):
    lease = await world.up("alice")
    told = {"GPUSPAWNER_HUB_ID": "hub-2"}
    forged = Running(lease.id, lease.attempt, (), 1.0, told, given=(), disruption="forged", ending=True)
    world.backend.running["forged", 1] = forged
    await world.go_on(60, step=30)
    now = world.now_of(lease)
    assert (now.slots, now.phase, now.disruption) == (lease.slots, Phase.RUNNING, "")


async def test_another_hub_s_workspaces_are_neither_rebuilt_nor_ended(world):
    lease = await world.up("alice")
    world.backend.run("theirs", 1, {**lease_variables(lease, SECRET), "GPUSPAWNER_HUB_ID": "hub-2"})
    await world.go_on(900, step=30)
    assert ("theirs", 1) in world.backend.running
    assert world.registry.get("theirs") is None


async def test_a_lease_is_rebuilt_from_its_newest_attempt(make_world):
    lease = await rebuilt(make_world, 1, 2)
    assert lease.attempt == 2


async def test_a_rebuilt_lease_keeps_its_kind_rate_and_bound(make_world):
    rate, bound = Rate(Fraction(7, 3), Fraction("2.10")), LatestEnd(1_800_000_600.0, "backfill", "ends by then")
    changes = {"given": "a100", "rate": rate, "fixed_end": bound}
    lease = await rebuilt(make_world, options={"gpu": "half"}, **changes)
    assert (lease.kind, lease.request.gpu) == ("a100", "half")
    assert (lease.rate, lease.fixed_end, lease.latest_end) == (rate, bound, bound)
    assert lease.deadline_at is None or lease.deadline_at <= bound.at


async def rebuilt(make_world, *attempts, options=None, **changes):
    """Lose the store while a workspace runs, whose lease has these changes. Return the rebuilt lease."""
    old, new = make_world(), make_world()
    lease = await old.up("alice", **(options or {}))
    new.hub = old.hub
    new.boot()
    for attempt in attempts or (1,):
        new.backend.run(lease.id, attempt, lease_variables(replace(lease, **changes), SECRET))
    await new.round()
    return new.registry.get(lease.id)


@pytest.mark.parametrize(
    "share",
    ["-1", "0", "2", "1/0", "-1/2", "1e9999999", "Infinity", "1/99999", "", "½"],
    ids=lambda share: share or "empty",
)
async def test_promise_1_an_unknown_share_neither_frees_a_gpu_nor_ends_the_round(world, share):
    taken = await world.up("alice")
    document = json.dumps({"slots": [[taken.slots[0].gpu, share]]})
    world.backend.run("odd", 1, {"GPUSPAWNER_HUB_ID": "hub-2", "GPUSPAWNER_LEASE": document})
    await world.round()
    assert world.allocator.observed.others == ()


async def test_a_document_nested_without_end_is_left_alone(world):
    world.backend.run("odd", 1, {"GPUSPAWNER_LEASE": "[" * 60000})
    await world.round()
    assert world.allocator.observed.others == ()


async def test_promise_9_an_unsigned_process_acts_for_no_user(world):
    """A forged lease of another user, or of one's own with an older place, rebuilds nothing."""
    alice = await world.start("alice")
    vic = replace(alice.key, user_created="the day vic was born")
    forged = replace(alice, id="forged", key=vic, user="vic", granted_at=1.0, asked_at=1.0)
    world.backend.run("forged", 1, lease_variables(forged, b"guessed" * 5))
    await world.round()
    assert world.registry.of_key(vic) is None
    world.backend.run("forged", 1, lease_variables(forged, SECRET))
    await world.round()
    assert world.registry.of_key(vic) is not None, "signed, it would have been rebuilt"


async def test_promise_2_a_signed_document_of_any_length_is_rebuilt(world):
    lease = await world.up("alice")
    long = replace(lease, id="long", key=world.key("bob"), user="bob", options={"note": "x" * 70_000})
    world.backend.run("long", 1, lease_variables(long, SECRET))
    await world.round()
    assert world.registry.get("long").options == long.options
