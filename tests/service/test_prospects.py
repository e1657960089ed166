"""Requests that can start within a day wait. Impossible requests are reported and keep their place for a day."""

import re

import page_world
import pytest

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.workspaces.presenter import present_workspace

DAY = 86400.0


@pytest.mark.parametrize("restarts", [False, True])
async def test_promise_6_a_kind_seen_within_a_day_can_be_waited_for(world, restarts):
    await world.round()
    gpus, world.backend.gpus = world.backend.gpus, ()
    await world.go_on(DAY / 2, step=DAY / 4)
    if restarts:
        world.boot()
    await world.go_on(2, step=1)
    lease = await world.start("alice", count=2)
    sentence = present_workspace(world.parts, lease).queue.sentence
    assert sentence.startswith("No A100 80 GB is there now")
    assert "You are 1st in line. We do not know yet how long it takes." in sentence
    with pytest.raises(RequestRefused, match=r"no A100 80 GB is there now\. Ask for another GPU, or tell an"):
        await world.start("bob", count=3)  # more than there ever was
    world.backend.gpus = gpus
    await world.go_on(6, step=1)
    assert world.phase(lease) is Phase.RESERVED


async def test_a_kind_that_was_not_there_for_a_day_is_refused(world):
    await world.round()
    world.backend.gpus = ()
    await world.go_on(DAY + 700, step=DAY / 4)
    with pytest.raises(RequestRefused, match="no A100 80 GB is there now"):
        await world.start("alice")


@pytest.fixture
def quota(world):
    """A namespace's quota that its administrator can lower: the most GPUs of one workspace."""
    most = [8]

    def check(request):
        if request.count > most[0]:
            bound = f"{most[0]} by the cluster's quota team"
            raise RequestRefused("count", str(request.count), bound, f"Ask for {most[0]}.", status=403)

    world.parts.scheduler.check = check
    return most


async def test_a_request_above_a_lowered_quota_is_explained_and_keeps_its_position(world, quota):
    await world.up("holder", count=2)
    lease = await world.start("alice", count=2)
    await world.round()
    assert world.now_of(lease).impossible_since is None
    quota[0] = 1
    await world.go_on(3, step=1)
    await world.go_on(60, step=20)
    told = [line for line in world.parts.store.audit_log.latest(lease.id) if line.event.action == "can't start now"]
    assert [line.why for line in told] == ["GPUs: You asked for 2. Allowed: 1 by the cluster's quota team. Ask for 1."]
    sentence = world.view(lease).queue.sentence
    assert sentence.startswith(
        "It can't start as things are: GPUs: You asked for 2. Allowed: 1 by the cluster's quota team."
    )
    assert "starts by itself" not in sentence
    assert message_of(world.parts, world.now_of(lease), told[0]).text.startswith(sentence)
    quota[0] = 8
    await world.go_on(3, step=1)
    again = world.now_of(lease)
    assert (again.impossible, again.impossible_since, again.asked_at) == ("", None, lease.asked_at)
    assert world.did(lease)[-1] == "can start again"


async def test_an_impossible_request_ends_after_a_day(world, quota):
    for gpu in world.backend.gpus:
        world.backend.change_gpu(gpu.id, foreign=True)
    await world.round()
    lease = await world.start("alice", count=2)
    quota[0] = 1
    await world.round()
    await world.go_on(DAY - 10, step=DAY / 4)
    assert world.phase(lease) is Phase.PARKED
    await world.go_on(20, step=5)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason) == (Phase.ENDED, ExitReason.FAILED)
    assert (
        "It waited 24 h and could not start: GPUs: You asked for 2. Allowed: 1 by the cluster's quota" in ended.message
    )


def test_the_page_of_an_impossible_request_offers_a_change(make_web_world):
    world = make_web_world()
    world.observe()
    lease = page_world.waiting(
        count=4, impossible="count: You asked for 4. Allowed: 1.", impossible_since=page_world.NOW - 60
    )
    world.save(lease)
    text = page_world.Browser(world, "bob").look(f"workspaces/{lease.id}").text
    link = re.search(
        r'<a class="gs-button gs-primary" href="([^"]*)"><svg[^>]*><use[^>]*></svg>Change request</a>', text
    )[1]
    assert "/hub/spawn/bob" in link
    assert "opt-count=4" in link
    assert "It can&#39;t start as things are: count: You asked for 4. Allowed: 1." in text


async def test_promise_6_a_failed_gpu_shrinks_no_request_within_a_day(world):
    await world.round()
    gpus = world.backend.gpus
    world.backend.change_gpu(gpus[0].id, healthy=False)
    await world.go_on(6, step=1)
    world.backend.gpus = ()
    await world.go_on(6, step=1)
    assert world.phase(await world.start("alice", count=len(gpus))) is Phase.QUEUED
