"""The promises of each scheduler adapter: one suite for all of them."""

import json
from dataclasses import replace

import pytest
from contract_worlds import (
    over_autoscaled,
    over_fake,
    over_http,
    over_kubernetes,
    over_kueue,
    over_kueue_of_one_cluster,
    over_late,
    over_ours_of_one_cluster,
    over_pod_queues,
    over_simulated,
)
from lease_builders import KINDS, NOW, a_lease, a_request, slots

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of


@pytest.fixture(
    params=[
        *(over_fake, over_simulated, over_kubernetes, over_autoscaled),
        *(over_late, over_http, over_kueue, over_pod_queues),
        *(over_kueue_of_one_cluster, over_ours_of_one_cluster),
    ],
    ids=[
        "in memory, fake GPUs",
        "in memory, one machine's simulated GPUs",
        "kubernetes, an API server of our own",
        "kubernetes, with a pool scaled to zero",
        "one with a side of its own, which answers late",
        "http, the reference server",
        "Kueue, one of our own",
        "queues of the cluster in which pods wait",
        "several clusters, Kueue in the one that has GPUs",
        "several clusters, our queue in the one that has GPUs",
    ],
)
async def world(request, tmp_path, monkeypatch):
    async with request.param(tmp_path, monkeypatch) as world:
        yield world


@pytest.fixture
async def scheduler(world):
    await world.scheduler.observe(NOW)
    return world.scheduler


def waits(name, asked_at=NOW, gpu="a100", count=1, **changes):
    return a_lease(name, asked_at=asked_at, request=a_request(gpu=gpu, count=count), **changes)


def seen_by(scheduler, line=(), **conditions):
    return Snapshot(NOW, scheduler.kinds, tuple(line), scheduler.fleet, room=scheduler.room, **conditions)


def gives_gpus(scheduler, grant):
    """Return whether a grant has GPUs. Otherwise its pod waits in a queue of the cluster."""
    return scheduler.capabilities.pod_waits_seconds is None or not all(slot.is_coming for slot in grant.slots)


async def granted(scheduler, line, **conditions):
    """Return the leases with the scheduler's grants of GPUs."""
    found = {lease.id: lease for lease in line}
    for grant in (await scheduler.sync(seen_by(scheduler, line, **conditions))).grants():
        if not gives_gpus(scheduler, grant):
            continue
        assert grant.claim == claim_of(found[grant.claim.id])
        found[grant.claim.id] = transitions.grant(found[grant.claim.id], grant.slots, NOW, given=grant.kind)
    return list(found.values())


async def preview(scheduler, lease, line=()):
    return (await scheduler.offers(seen_by(scheduler, line), claim_of(lease))).place


def offers(scheduler, line, others=()):
    return {offer.kind: offer for offer in scheduler.stock(seen_by(scheduler, line, others=others))}


async def test_nothing_is_known_or_granted_before_the_first_look(world):
    scheduler = world.scheduler
    assert not scheduler.fleet.complete
    assert (await granted(scheduler, [waits("a")]))[0].phase is Phase.QUEUED
    assert {(o.free, o.total, o.largest) for o in scheduler.stock(seen_by(scheduler))} == {(None, None, None)}
    assert (await preview(scheduler, waits("a"))).unchanged_seconds is None


async def test_a_look_tells_when_it_was_and_one_that_fails_leaves_the_last_in_force(world):
    scheduler = world.scheduler
    seen = await scheduler.observe(NOW)
    assert (seen, seen.complete, len(seen.gpus)) == (scheduler.fleet, True, world.gpus)
    assert NOW - 5 < seen.observed_at <= NOW, "as its source answered last"
    await world.cut_off()
    with pytest.raises(Unavailable):
        await scheduler.observe(NOW + 5)
    assert scheduler.fleet.outage.since == seen.observed_at
    assert replace(scheduler.fleet, outage=None, outages={}) == seen


async def test_deciding_again_after_a_decision_decides_nothing_new(scheduler):
    line = [waits("a", NOW), waits("b", NOW + 1, count=2), waits("c", NOW + 2)]
    once = await granted(scheduler, line)
    assert [(x.id, x.phase, len(x.slots)) for x in once] == [
        ("a", Phase.RESERVED, 1),
        ("b", Phase.RESERVED, 2),
        ("c", Phase.QUEUED, 0),
    ]
    assert await granted(scheduler, once) == once
    assert len({slot.gpu for lease in once for slot in lease.slots}) == 3


async def test_gpus_used_by_others_are_neither_offered_nor_granted(scheduler):
    others = slots(next(gpu.id for gpu in scheduler.fleet.gpus if gpu.pool == "a100"))
    assert offers(scheduler, [], others)["a100"].free == 2
    assert (await granted(scheduler, [waits("a", count=3)], others=others))[0].phase is Phase.QUEUED


async def test_offers_are_what_could_be_had_of_each_kind_in_the_catalog_s_order(world, scheduler):
    line = await granted(
        scheduler, [waits("a", gpu="half"), waits("b", NOW + 1, count=3), waits("n", NOW + 2, gpu=None)]
    )
    now = offers(scheduler, line)
    assert list(now) == list(KINDS)
    assert tuple((o.free, o.total, o.largest, o.waiting) for o in now.values()) == world.offers
    assert tuple(o.simulated for o in now.values()) == world.simulated


async def test_an_offered_request_can_be_granted(scheduler):
    for kind, offer in offers(scheduler, []).items():
        if offer.largest:
            most = await granted(scheduler, [waits("a", gpu=kind, count=offer.largest)])
            assert (most[0].phase, len(most[0].slots)) == (Phase.RESERVED, offer.largest)
        more = await granted(scheduler, [waits("a", gpu=kind, count=offer.largest + 1)])
        assert more[0].phase is Phase.QUEUED


async def test_places_count_from_one_in_the_order_of_asking(world, scheduler):
    line = await granted(
        scheduler, [waits("x", NOW - 9, count=3), waits("b", NOW + 1), waits("a", NOW + 2), waits("c", NOW)]
    )
    places = (await scheduler.sync(seen_by(scheduler, line))).places()
    told = {"c": 1, "b": 2, "a": 3} if scheduler.capabilities.tells_positions else dict.fromkeys("cba")
    assert {name: place.number for name, place in places.items()} == told
    if world.foretells:
        assert places == {x.id: (await preview(scheduler, x, line)) for x in line if x.phase is Phase.QUEUED}


async def test_a_place_told_before_asking_is_the_place_that_it_then_has(world, scheduler):
    line = [waits("b", NOW + 1, count=3), waits("a", NOW + 2, count=3), waits("c", NOW, count=3)]
    for asked_at in (NOW - 1, NOW + 1.5, NOW + 3):
        await scheduler.sync(seen_by(scheduler, line))  # one with a side of its own knows who waits by that alone
        new = waits("new", asked_at, count=3)
        told = await preview(scheduler, new, line)
        has = (await scheduler.sync(seen_by(scheduler, [*line, new]))).places()["new"]
        # By when it will have waited too long is known of what waits alone.
        same = replace(told, precedence=None) == replace(has, precedence=None)
        assert same if world.foretells else told.number == has.number


async def test_a_place_is_zero_seconds_away_exactly_when_it_is_granted_now(world, scheduler):
    first, second = waits("a", count=2), waits("b", NOW + 1, count=2)
    line = [first, second]
    at_once = 0 if scheduler.capabilities.tells_positions else None  # unknown is never 0
    assert (await preview(scheduler, first, line)).unchanged_seconds == at_once
    if world.foretells:
        assert (await preview(scheduler, second, line)).unchanged_seconds == first.request.lifetime_seconds
    assert [x.phase for x in await granted(scheduler, line)] == [Phase.RESERVED, Phase.QUEUED]
    assert (await preview(scheduler, waits("c", NOW + 2, count=2), line)).unchanged_seconds != 0


async def test_a_patch_is_json_that_shows_the_lease_s_gpus_and_no_other(world, scheduler):
    lease = (await granted(scheduler, [waits("a", count=2)]))[0]
    patch = scheduler.patch(lease)
    assert json.loads(json.dumps(patch)) == patch
    assert set(patch) == world.patch_parts
    assert world.gpus_of(patch) == world.names(lease)
    without = scheduler.patch(replace(lease, slots=()))
    assert without["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert not world.gpus_of(without)


async def test_shares_of_a_kind_are_slots_of_that_share(world, scheduler):
    lease = (await granted(scheduler, [waits("a", gpu="half", count=2)]))[0]
    assert {slot.share for slot in lease.slots} == {world.half}
    assert len({slot.gpu for slot in lease.slots}) == 2


async def test_no_decision_changes_the_leases_it_was_given(scheduler):
    line = [waits("a"), waits("b", NOW + 1)]
    copies = [replace(lease) for lease in line]
    await scheduler.sync(seen_by(scheduler, line))
    assert line == copies


async def test_a_node_is_added_only_for_a_request_without_room_on_existing_nodes(scheduler):
    for lease in (waits("a"), waits("b", gpu="t4"), waits("c", gpu=None)):
        (given,) = await granted(scheduler, [lease])
        free = offers(scheduler, [])[lease.request.gpu].free if lease.request.gpu else 1
        comes = bool(given.slots) and not free
        would = await scheduler.offers(seen_by(scheduler, [lease]), claim_of(lease))
        assert (would.node_seconds is not None) == comes
        assert (scheduler.node_seconds(given) is not None) == comes
        assert ("node_seconds" in scheduler.patch(given)) == comes


async def syncs(scheduler, line):
    """Return the grants by lease ID without carrying them out."""
    grants = (await scheduler.sync(seen_by(scheduler, line))).grants()
    return {grant.claim.id: grant for grant in grants if gives_gpus(scheduler, grant)}


async def test_repeating_a_sync_changes_nothing_so_that_a_lost_answer_comes_again(scheduler):
    line = [waits("a", count=2), waits("b", NOW + 1), waits("c", NOW + 2)]
    first = await syncs(scheduler, line)
    assert set(first) == {"a", "b"}
    assert await syncs(scheduler, line) == first


async def test_a_claim_withdrawn_while_it_was_decided_gives_its_gpus_to_the_next(scheduler):
    line = [waits("a", count=3), waits("b", NOW + 1, count=3)]
    assert set(await syncs(scheduler, line)) == {"a"}
    assert set(await syncs(scheduler, line[1:])) == {"b"}


async def test_an_unused_grant_is_given_back_once_its_claim_asks_for_another_kind(scheduler):
    before, second = waits("a", count=3), waits("b", NOW + 1)
    assert set(await syncs(scheduler, [before, second])) == {"a"}
    after = transitions.join(before, a_request(count=2), {}, start_id="start-2", boot_id="b", now=NOW)
    granted_now = await syncs(scheduler, [after, second])
    assert {name: len(grant.slots) for name, grant in granted_now.items()} == {"a": 2, "b": 1}
    assert granted_now["a"].claim.revision == claim_of(after).revision


async def test_a_scheduler_that_forgot_all_grants_no_gpu_that_a_lease_holds(world, scheduler):
    line = await granted(scheduler, [waits("a", count=2), waits("b", NOW + 1, count=2)])
    world.forget()
    assert await granted(scheduler, line) == line
    held = {slot.gpu for lease in line for slot in lease.slots}
    third = (await granted(scheduler, [*line, waits("c", NOW - 1)]))[-1]
    assert third.phase is Phase.RESERVED
    assert held.isdisjoint(slot.gpu for slot in third.slots)


async def test_capabilities_are_declared_truly(world, scheduler):
    told = scheduler.capabilities
    sync = scheduler.sync(seen_by(scheduler, [waits("a")]))
    if told.answers_at_once:
        with pytest.raises(StopIteration):
            sync.send(None)
    else:
        await sync
    assert scheduler.capabilities.preemption_notice_seconds == world.notice_seconds
    consents = a_lease("s", request=a_request(gpu="t4", count=3, substitutes=("a100",)))
    assert ((await granted(scheduler, [consents]))[0].given == "a100") is told.substitutes
