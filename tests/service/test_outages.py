"""While a part is away, everybody who waits reads which one, and since when, on every page and in the API."""

import contextlib
import logging
from dataclasses import replace

import page_world
import pytest
import requests
from page_world import NOW

from gpuspawner.backends.base import OutageLog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.outages import API_SERVER, DATABASE, HUB, Outage
from gpuspawner.service.failures import Failures

SINCE = NOW - 300
WORDS = Outage(API_SERVER, SINCE).waiting_words(NOW)


@pytest.fixture
def waiting_world(make_web_world):
    """Return a world in which alice waits for the GPUs that bob's workspace, which ends, still holds."""
    world = make_web_world()
    world.observe()
    world.save(page_world.running("ends", user="bob", gpus=(0, 1, 2, 3), phase=Phase.STOPPING, phase_since=NOW))
    world.save(page_world.waiting("waits", user="alice"))
    return world


def ask(world, path, method="GET", body=None):
    headers = {"Authorization": f"token {world.token('alice')}"}
    answer = requests.request(method, f"{world.home}api/v1/{path}", headers=headers, json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def lose_the_cluster(world):
    world.clock.at = SINCE
    world.observe()
    world.clock.at = NOW
    world.backend.unreachable = "The Kubernetes API server does not answer: connection refused."
    world.backend.away_part = API_SERVER
    with pytest.raises(Unavailable):
        world.observe()


def test_during_an_outage_of_the_cluster_waiting_users_see_its_begin_and_no_estimate(waiting_world):
    world = waiting_world
    assert "Too few past workspaces" in ask(world, "workspaces/waits")["queue"]["sentence"]
    version = world.call(lambda: world.parts.queue.version)
    lose_the_cluster(world)
    assert world.call(lambda: world.parts.queue.version) > version, "open pages are told"
    shown = ask(world, "workspaces/waits")
    assert shown["words"].endswith(f". {Outage(API_SERVER, SINCE).words(NOW)}"[:-1])
    assert shown["queue"]["sentence"].startswith(WORDS)
    assert shown["explained"][0].startswith(WORDS)
    assert (shown["queue"]["unchanged_seconds"], shown["queue"]["likely_start_at"]) == (None, None)
    (line,) = ask(world, "queue")["queue"]
    assert line["sentence"].startswith(WORDS)
    assert line["unchanged_start_at"] is None
    form = ask(world, "check", "POST", {"template": "pytorch", "gpu": "a100", "count": 1, "server": "second"})
    assert form["sentence"].startswith(WORDS)
    assert not form["starts_now"]
    page = requests.get(
        f"{world.home}workspaces/waits", headers={"Authorization": f"token {world.token('alice')}"}, timeout=20
    )
    assert WORDS in page.text
    world.backend.unreachable = ""
    world.observe()
    assert "Too few past workspaces" in ask(world, "workspaces/waits")["queue"]["sentence"]


def test_a_free_gpu_is_not_offered_at_once_while_its_cluster_is_away(make_web_world):
    world = make_web_world()
    lose_the_cluster(world)
    form = ask(world, "check", "POST", {"template": "pytorch", "gpu": "a100", "count": 1})
    assert form["sentence"].startswith(WORDS)
    assert (form["starts_now"], form["ends_at"]) == (False, None)
    (offer,) = [one for one in ask(world, "offers")["offers"] if one["kind"] == "a100"]
    assert (offer["free"], offer["total"]) == (None, 4)


@pytest.mark.parametrize("part", [DATABASE, HUB])
def test_an_outage_of_database_or_hub_is_shown_to_waiting_users(waiting_world, part):
    log = waiting_world.parts.store.outages if part == DATABASE else OutageLog()
    log.begin(part, "timed out", SINCE)
    waiting_world.parts.allocator.observed.hub_outage = log.outage if part == HUB else None
    sentence = ask(waiting_world, "workspaces/waits")["queue"]["sentence"]
    assert sentence.startswith(Outage(part, SINCE).waiting_words(NOW))


def test_waiting_for_a_component_is_not_logged_and_other_reasons_once(caplog):
    caplog.set_level(logging.INFO)
    failures = Failures()
    for _ in range(100):
        failures.note_wait("round", "a", Unavailable("The hub does not answer.", HUB))
        failures.note_wait("round", "b", Unavailable("The cluster does not delete the pod: forbidden."))
    assert caplog.messages == ["round waits for the lease b: The cluster does not delete the pod: forbidden."]
    failures.clear("round", "b")
    failures.note_wait("round", "b", Unavailable("The cluster does not delete the pod: forbidden."))
    assert len(caplog.messages) == 2


async def look(world):
    """Look at the fleet, whether it answers or not, and reconcile once."""
    with contextlib.suppress(Unavailable):
        await world.parts.scheduler.observe(world.clock.now())
    await world.parts.engine.round()
    await world.settle()


@pytest.mark.parametrize("also", [(), ("workspaces",)], ids=["the list of GPUs", "the API server"])
async def test_a_request_during_an_outage_is_granted_only_once_the_gpus_are_seen_again(make_world, also):
    world = make_world(gpus=1)
    await look(world)
    world.clock.advance(10)
    await world.hide_gpus(*also)
    await look(world)
    world.backend.gpus = tuple(replace(gpu, foreign=True) for gpu in world.backend.gpus)  # an outside process takes it
    lease = await world.start("bob")
    await look(world)
    assert (world.phase(lease), world.did(lease)) == (Phase.QUEUED, ["asked"])
    world.show_gpus()
    await look(world)
    assert world.phase(lease) is Phase.QUEUED, "the GPU that was taken in the outage is not free"
    world.backend.gpus = tuple(replace(gpu, foreign=False) for gpu in world.backend.gpus)
    await look(world)
    assert world.phase(lease) is Phase.RESERVED


async def test_an_answer_that_is_older_than_the_outage_grants_nothing(make_world):
    world = make_world(gpus=1)
    free, world.backend.gpus = world.backend.gpus, tuple(replace(gpu, foreign=True) for gpu in world.backend.gpus)
    await look(world)
    lease = await world.start("bob")
    world.backend.gpus = free
    await world.parts.scheduler.observe(world.clock.now())
    answer = await world.parts.scheduler.sync(world.allocator.observed.snapshot())
    assert [grant.claim.id for grant in answer.grants()] == [lease.id]
    world.backend.unreachable, world.backend.away_part = "No answer came.", API_SERVER
    await look(world)
    await world.allocator.granting.take(answer)
    assert world.phase(lease) is Phase.QUEUED
    world.backend.unreachable = ""
    await look(world)
    assert world.phase(lease) is Phase.RESERVED


@pytest.mark.parametrize("attended", [False, True])
async def test_a_grant_lost_in_an_outage_returns_to_its_queue_position(make_world, attended):
    """promise 6: a later request does not pass it either."""
    world = make_world(gpus=1)
    await look(world)
    holder, lease, later = [await world.start(name) for name in ("alice", "bob", "carol")]
    await world.park(later)
    if not attended:
        await world.park(lease)
    await look(world)
    await world.parts.attempts.release(holder.id, holder.attempt, "cancelled", "")
    await world.settle()
    assert world.phase(lease) is Phase.RESERVED, "granted as the outage begins"
    world.backend.unreachable, world.backend.away_part = "No answer came.", API_SERVER
    for _ in range(12):
        world.clock.advance(10)
        await look(world)
    world.backend.unreachable = ""
    for _ in range(3):
        world.clock.advance(1)
        await look(world)
    after = world.now_of(lease)
    assert (after.phase, after.failed_starts, after.asked_at) == (Phase.RESERVED, 0, lease.asked_at)
    assert world.phase(later) is Phase.PARKED
    assert "parked" not in world.did(lease)
