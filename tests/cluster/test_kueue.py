"""Kueue itself decides about leases: two queues in a cohort, whose quota is in two flavors."""

from dataclasses import replace

import pytest
from fake_kueue import is_true
from kueue_world import API, NOTICE_SECONDS, a_world, asks, hold, installed
from lease_builders import NOW

from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.successors import successor
from gpuspawner.schedulers.kueue.workloads import name_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kueue(one_machine):
    with installed(one_machine) as kueue:
        yield kueue


@pytest.fixture
async def world(kueue, one_machine):
    with one_machine.namespace() as namespace:
        async with a_world(one_machine, namespace) as world:
            yield world


async def test_it_lends_what_is_free_and_takes_it_back_after_the_notice(world):
    borrows, own = await world.granted(asks("borrows", 1, count=2), asks("own", 0, count=2))
    await world.until(lambda _: world.borrowed() == "2", "two of four are borrowed")
    lender = asks("lender", 2, count=2, team="them")
    world.put(lender)
    preempted = await world.until(lambda answer: answer.preempted, "one of them is to make room")
    victim = next(x for x in (borrows, own) if x.id == preempted[0].lease_id)
    assert len(preempted) == 1
    assert (preempted[0].at, preempted[0].why) == (
        NOW + NOTICE_SECONDS,
        "Kueue: its GPUs were borrowed, and their owners need them back.",
    )
    assert is_true(world.of(victim), "QuotaReserved"), "its quota is its own while it runs"
    says = await world.until(
        lambda answer: (
            "Other workloads are stopping to free resources for it." in (place := answer.places()["lender"]).says
            and place.says
        ),
        "who lent them reads why they wait",  # until its condition is written Kueue "has not looked at it yet"
    )
    assert says.startswith("Kueue says: ")
    made = world.of(victim)["metadata"]["uid"]
    ended = replace(victim, phase=Phase.ENDED, reason=ExitReason.MADE_ROOM, ended_by="Kueue")
    back = successor(ended, "back", NOW + NOTICE_SECONDS)
    world.put(back)
    (lender,) = await world.granted(lender)
    place = await world.until(lambda answer: answer.places().get("back"), "it waits again")
    assert world.of(back)["metadata"]["uid"] == made, "one Workload for one place"
    await world.until(lambda answer: answer.places()["back"].number == 1, f"it has a place: {place}")
    world.drop(lender)
    await world.until(lambda answer: {"back"} == {x.claim.id for x in answer.grants()}, "it has its GPUs again")


async def test_only_kinds_that_its_user_takes_are_given(world):
    await world.granted(asks("own", 0, count=4))
    strict, takes = asks("strict", 1), asks("takes", 2, substitutes=("t4",))
    world.put(strict, takes)
    grants = await world.until(lambda answer: answer.grants(), "one takes another kind")
    assert [(x.claim.id, x.kind) for x in grants] == [("takes", "t4")]
    place = (await world.sync()).places()["strict"]
    assert "It waits for quota in use by others." in place.says, place


async def test_a_restart_of_kueue_doubles_and_loses_nothing(world, kueue):
    (runs,) = await world.granted(asks("runs", 0, count=4))
    waits = asks("waits", 1)
    world.put(waits)
    await world.until(lambda answer: answer.places()["waits"].number == 1, "it has a place")
    before = {one["metadata"]["uid"] for one in world.workloads()}
    kueue.crash()
    new = asks("new", 2)
    world.put(new)
    answer = await world.until(lambda answer: world.scheduler.unseen and answer, "that it is away is told")
    assert (answer.grants(), answer.preempted) == ([], ())
    kueue.again()
    await world.until(lambda answer: (answer.places()["new"].number or 0) == 2, "who came meanwhile has a place")
    assert before < {one["metadata"]["uid"] for one in world.workloads()}
    assert is_true(world.of(runs), "Admitted")
    world.drop(runs)
    await world.until(lambda answer: {"waits", "new"} == {x.claim.id for x in answer.grants()}, "both are granted")


async def test_one_deleted_by_hand_is_made_again_and_what_runs_is_not_granted_twice(world):
    (runs,) = await world.granted(asks("runs", 0, count=2))
    group, version = API.split("/")
    before = world.of(runs)["metadata"]["uid"]
    world.objects.delete_namespaced_custom_object(group, version, world.namespace, "workloads", name_of(runs))
    await world.until(lambda _: world.of(runs).get("metadata", {}).get("uid") not in {None, before}, "it is made again")
    await world.until(lambda answer: not answer.grants() and is_true(world.of(runs), "Admitted"), "and has its quota")


async def test_a_queue_on_hold_says_so_and_an_emptied_one_gives_notice(world):
    (runs,) = await world.granted(asks("runs", 0, count=2))
    try:
        hold(world, "HoldAndDrain")
        (told,) = await world.until(lambda answer: answer.preempted, "it is drained with notice")
        assert (told.lease_id, told.at) == ("runs", NOW + NOTICE_SECONDS)
        world.drop(runs)
        world.put(asks("waits", 1))
        says = await world.until(lambda answer: "on hold" in answer.places()["waits"].says, "it says so")
        assert says
    finally:
        hold(world, "None")
    await world.until(lambda answer: answer.grants(), "it is open again")


async def test_without_its_api_of_places_the_reason_is_told_without_a_place(world, kueue):
    (runs,) = await world.granted(asks("runs", 0, count=4))
    waits = asks("waits", 1)
    world.put(waits)
    await world.until(lambda answer: answer.places()["waits"].number == 1, "it has a place")
    kueue.hide_places()
    try:
        answer = await world.until(lambda answer: world.scheduler.unseen and answer, "that they are away is told")
        place = answer.places()["waits"]
        assert (place.number, "It waits for quota in use by others." in place.says) == (None, True), place
        world.drop(runs)
        await world.until(
            lambda answer: {"waits"} == {x.claim.id for x in answer.grants()}, "it is granted all the same"
        )
    finally:
        kueue.show_places()


async def test_a_flavor_in_which_its_pod_found_no_place_twice_is_left_out(world):
    lease, made = asks("fails", substitutes=("t4",)), None
    for _ in range(2):
        world.put(lease)
        (grant,) = await world.until(lambda answer: answer.grants(), "it is granted")
        assert grant.kind == ""
        made = made or world.of(lease)["metadata"]["uid"]
        starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
        world.put(starting)
        await world.taken(starting)
        lease = transitions.requeue(starting, "No room.", 60, NOW, "another node")
        world.put(lease)
        await world.freed(lease)
        assert world.of(lease)["spec"]["active"] is False
        lease = replace(lease, not_before=NOW)
    world.put(lease)
    (grant,) = await world.until(lambda answer: answer.grants(), "it is granted once more")
    assert grant.kind == "t4"
    assert world.of(lease)["metadata"]["uid"] == made, "one Workload for one place"


async def test_a_workload_evicted_during_its_start_continues_and_is_warned_once_it_runs(world):
    lease = asks("starts", count=2)
    world.put(lease)
    (grant,) = await world.until(lambda answer: answer.grants(), "it is granted")
    starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
    world.put(starting)
    await world.taken(starting)
    try:
        hold(world, "HoldAndDrain")
        await world.until(lambda _: is_true(world.of(lease), "Evicted"), "Kueue wants it back")
        answer = await world.sync()
        assert (answer.grants(), answer.preempted) == ([], ())
        assert is_true(world.of(lease), "QuotaReserved")
        world.put(replace(starting, phase=Phase.RUNNING, running_at=NOW))
        (told,) = await world.until(lambda answer: answer.preempted, "it is warned")
        assert told.at == NOW + NOTICE_SECONDS
        world.put(transitions.requeue(starting, "No room.", 0, NOW, ""))
        await world.freed(lease)
    finally:
        hold(world, "None")
    await world.until(lambda answer: answer.grants(), "and it comes again")


async def test_ten_minutes_without_the_service_double_and_lose_nothing(world):
    runs, also = await world.granted(asks("runs", 0, count=2), asks("also", 1, count=2))
    waits, theirs = asks("waits", 2), asks("theirs", 3, count=2, team="them")
    world.put(waits, theirs)
    await world.until(lambda _: world.of(theirs), "all are in the queue")
    before = {one["metadata"]["uid"] for one in world.workloads()}
    await world.scheduler.close()
    world.begin_again()
    (told,) = await world.until(lambda answer: answer.preempted, "one makes room", NOW + 600)
    assert (told.lease_id in {runs.id, also.id}, told.at) == (True, NOW + 600 + NOTICE_SECONDS)
    answer = await world.sync(NOW + 600)
    assert (answer.grants(), set(answer.places())) == ([], {"waits", "theirs"})
    assert {one["metadata"]["uid"] for one in world.workloads()} == before
