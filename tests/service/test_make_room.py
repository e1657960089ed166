"""Room by soft shares: off by default; who has waited long enough gets what others have beyond theirs, after notice."""

from dataclasses import replace
from fractions import Fraction

import pytest

from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import WAITING, Phase
from gpuspawner.core.queue.preemption import PreemptionState
from gpuspawner.core.rules import Limit, LimitedResource, MakeRoom, Quota, QuotaScope, Rules
from gpuspawner.service.workspaces.presenter import present_workspace

AFTER, NOTICE, PROTECTED = 600.0, 300.0, 1800.0
EACH = Quota("each-user", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(1)),))


@pytest.fixture
def shared(make_world):
    """A world of two GPUs whose users have a share of one each."""

    def make(make_room=MakeRoom(AFTER)):  # noqa: B008 - a frozen value
        world = make_world()
        world.catalog = replace(world.catalog, rules=Rules(quotas=(EACH,), make_room=make_room))
        world.boot()
        return world

    return make


async def both(world):
    """Alice has both GPUs, at work for long enough; bob begins to wait."""
    first, second = await world.up("alice"), await world.up("alice", "second")
    world.clock.advance(PROTECTED)
    for lease in (first, second):
        world.shows(lease, 80)
    await world.round()
    return first, second, await world.start("bob")


async def wait_on(world, lease, seconds):
    """Wait for ``seconds``, or until a waiting request gets its GPU; the hub listens for the waiting requests."""
    until = world.clock.now() + seconds
    while world.clock.now() < until and world.phase(lease) is not Phase.RESERVED:
        world.clock.advance(min(20, until - world.clock.now()))
        if world.phase(lease) in WAITING:
            await world.parts.attempts.hear(lease.id, lease.attempt)
        await world.sample()
        await world.round()


async def test_a_user_over_the_share_gives_way_after_notice_and_waits_again(shared):
    world = shared()
    first, second, bob = await both(world)
    await wait_on(world, bob, AFTER - 30)
    assert world.now_of(second).notice is None
    await wait_on(world, bob, 60)
    warned = world.now_of(second)
    assert (warned.notice.by, world.now_of(first).notice) == ("gpuspawner", None), "one is enough"
    assert present_workspace(world.parts, warned).warning.text.startswith(
        "A request within its share has waited for 1 A100 80 GB for long, and you use more than your share. Your "
    )
    (claim,) = world.parts.preemptions.live
    assert (claim.lease, claim.user) == (bob.id, "bob")
    await wait_on(world, bob, NOTICE + 60)
    ended = world.now_of(second)
    assert (ended.reason, ended.ended_by) == (ExitReason.MADE_ROOM, "gpuspawner")
    assert world.phase(bob) is Phase.RESERVED
    await world.sample()
    assert (await world.parts.preemptions.get(claim.id)).state is PreemptionState.CLAIMED
    back = next(x for x in world.registry if x.key == second.key)
    assert (back.asked_at, back.phase) == (second.asked_at, Phase.PARKED)


async def test_preemption_by_share_is_off_by_default(shared):
    world = shared(None)
    _, second, bob = await both(world)
    await wait_on(world, bob, AFTER + 600)
    assert world.now_of(second).notice is None
    assert world.parts.preemptions.live == ()


async def test_a_withdrawal_meanwhile_spares_the_warned_workspaces(shared):
    world = shared()
    _, second, bob = await both(world)
    await wait_on(world, bob, AFTER + 60)
    assert world.now_of(second).notice is not None
    await world.parts.attempts.forget(bob.key)
    await world.sample()
    assert world.now_of(second).notice is None
    assert (await world.parts.preemptions.last(1))[0].state is PreemptionState.GIVEN_UP


async def test_a_preempted_user_preempts_nobody_in_return(shared):
    world = shared()
    _, second, bob = await both(world)
    await wait_on(world, bob, AFTER + NOTICE + 120)
    assert world.now_of(second).reason is ExitReason.MADE_ROOM
    await world.create(world.now_of(bob))
    world.hub.answer("bob")
    world.shows(world.now_of(bob), 80)
    await world.go_on(4 * PROTECTED)
    assert world.now_of(bob).notice is None, "bob is within his share"
    assert world.parts.preemptions.live == ()


async def test_while_the_list_of_gpus_is_away_no_workspace_is_chosen(shared):
    world = shared()
    _, second, bob = await both(world)
    world.clock.advance(AFTER + 60)
    await world.hide_gpus()
    await world.parts.attempts.hear(bob.id, bob.attempt)
    await world.sample()
    assert (world.now_of(second).notice, world.parts.preemptions.live) == (None, ())
    world.show_gpus()
    await wait_on(world, bob, 60)
    assert world.now_of(second).notice is not None
