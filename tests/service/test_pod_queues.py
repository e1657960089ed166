"""A scheduler of the cluster owns the queue of pods. A pod waits there for a limited time, then loses its place."""

import pytest
from test_seating import REASON, change, cluster, gave

from gpuspawner.core.leases.lease import Phase
from gpuspawner.schedulers.base import Capabilities

WAITS = "it waits in Volcano's queue all. No node has enough free resources now."


@pytest.fixture
async def place(make_world, monkeypatch):
    """A world whose pods wait for ten minutes in a queue of Volcano."""
    world = make_world()
    world.backend.gpus = cluster()
    scheduler = world.parts.scheduler
    scheduler.capabilities = Capabilities(name="volcano", owns_queue=True, pod_waits_seconds=600.0, title="Volcano")
    monkeypatch.setattr(scheduler, "start_words", lambda lease: WAITS if lease.phase is Phase.STARTING else "")
    await world.round()
    return world


async def test_a_pod_that_waits_too_long_returns_to_the_queue(place):
    alice = await place.start("alice")
    await gave(place, alice, waiting=REASON, waiting_seconds=590.0, age_seconds=595.0)
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING
    assert place.view(alice).words == f"Starting on 1 A100 80 GB; {WAITS}"
    change(place, alice, age_seconds=601.0)
    await place.round()
    back = place.now_of(alice)
    assert (back.phase, back.asked_at, back.failed_starts, back.attempt) == (Phase.PARKED, alice.asked_at, 0, 2)
    assert back.message == f"It waited 10 min in Volcano's queue, and is put into it again: {REASON}"
    assert not place.backend.running


async def test_a_pod_without_a_reason_from_the_scheduler_is_requeued_too(place):
    alice = await place.start("alice")
    await gave(place, alice, age_seconds=601.0)
    await place.round()
    back = place.now_of(alice)
    assert back.phase is Phase.PARKED
    assert back.message == "It waited 10 min in Volcano's queue, and is put into it again"


async def test_a_pod_that_has_a_node_is_not_counted_as_waiting(place):
    alice = await place.start("alice")
    await gave(place, alice, "two", age_seconds=3600.0)
    await place.round()
    assert place.now_of(alice).phase is Phase.STARTING


async def test_a_request_preempted_before_its_start_is_queued_again_with_the_reason(place):
    alice = await place.start("alice")
    await gave(place, alice, "two", disruption="The cluster needed its GPU for work with a higher priority.")
    await place.round()
    back = place.now_of(alice)
    assert (back.phase, back.asked_at) == (Phase.PARKED, alice.asked_at)
    assert "work with a higher priority" in back.message


async def test_a_request_without_a_gpu_waits_as_before(place):
    alice = await place.start("alice", gpu=None)
    await gave(place, alice, waiting=REASON, waiting_seconds=30.0)
    await place.round()
    assert place.now_of(alice).phase is Phase.PARKED
