"""Waiting users get no latest start that others may undo. Pages say which requests may pass them, and the reason."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from gpuspawner.core.errors import split_sentences
from gpuspawner.core.leases.lease import WAITING, Phase
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rules, Team

EACH = Quota("each-user", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(1)),))


@pytest.fixture
def ruled(world):
    """A world of two GPUs with these rules."""

    def rule(**rules):
        world.catalog = replace(world.catalog, rules=Rules(**rules))
        world.boot()
        return world

    return rule


async def test_a_passed_request_was_told_of_the_passing_request_and_reads_the_reason(ruled):
    world = ruled(quotas=(EACH,))
    dave, alice = await world.up("dave", count=2), await world.start("alice", count=2)
    view = world.view(alice)
    queue = view.queue
    assert queue.place == 1
    assert "Too few past workspaces are known to estimate the start" in queue.sentence
    assert queue.precedence.startswith("A later request within its share can start first. A later request of a team")
    assert re.search(r"From .* on, no later request starts first\.", queue.precedence)
    assert set(split_sentences(queue.precedence)) <= set(view.explained)
    assert not [name for name in type(queue).model_fields if "latest" in name or "most" in name]
    bob = await world.start("bob", lifetime="24h")
    await world.hub_stops(dave)
    await world.go_on(10, step=5)
    assert (world.phase(bob) in WAITING, world.phase(alice) in WAITING) == (False, True)
    why = "A request within its guaranteed share goes first. Yours is beyond its share."
    assert ("gpuspawner", "passed", why) in world.audit(alice)
    assert "passed" not in world.did(bob)


async def test_a_grant_in_the_order_of_asking_passes_no_request(ruled):
    world = ruled(quotas=(EACH,))
    dave, alice, bob = await world.up("dave", count=2), await world.start("alice"), await world.start("bob")
    await world.hub_stops(dave)
    await world.go_on(10, step=5)
    assert {world.phase(alice), world.phase(bob)} == {Phase.RESERVED}
    assert "passed" not in [*world.did(alice), *world.did(bob)]


async def test_after_the_longest_wait_only_a_higher_priority_may_go_first(ruled):
    world = ruled(quotas=(EACH,))
    await world.up("dave", count=2)
    alice = await world.start("alice", count=2)
    world.clock.advance(13 * 3600)
    await world.parts.attempts.hear(alice.id, alice.attempt)
    told = world.view(alice).queue.precedence
    assert told == "It has waited so long that no later request starts first."
    urgent = Rules(quotas=(EACH,), teams={"vision": Team("vision", priority=1)})
    world.change_catalog(replace(world.catalog, rules=urgent))
    told = world.view(alice).queue.precedence
    assert told == "It has waited so long that only requests of a higher priority can start first."
