"""`extend: {others_wait: refuse}`: an extension is refused while another user waits for the same GPUs."""

from dataclasses import replace

import pytest

from gpuspawner.core.errors import Conflict


@pytest.fixture
def refusing(world):
    """Two GPUs; alice holds both, and the policy gives them to waiting requests."""
    default = world.catalog.policies["default"]
    policies = {"default": replace(default, extend=replace(default.extend, others_wait=False))}
    world.change_catalog(replace(world.catalog, policies=policies))
    return world


async def test_an_extension_is_refused_while_others_wait_for_the_gpus(refusing):
    alice = await refusing.up("alice", count=2)
    bob = await refusing.start("bob")
    told = refusing.view(alice).extend
    assert (told.each_seconds, told.why) == (0.0, refusing.allocator.bounds.reason_not_to_extend(alice))
    with pytest.raises(
        Conflict, match="others wait for these GPUs, and the policy default gives them to waiting requests"
    ):
        await refusing.parts.actions.extend(refusing.now_of(alice), "alice")
    await refusing.hub_stops(bob, "cancelled")
    before = refusing.now_of(alice).deadline_at
    assert refusing.view(alice).extend.why is None
    assert (await refusing.parts.actions.extend(refusing.now_of(alice), "alice")).deadline_at > before


async def test_own_requests_and_requests_without_a_gpu_block_no_extension(refusing):
    alice = await refusing.up("alice", count=2)
    await refusing.start("alice", "second")
    assert await refusing.parts.actions.extend(refusing.now_of(alice), "alice")
    await refusing.start("bob", gpu="none")
    assert await refusing.parts.actions.extend(refusing.now_of(alice), "alice")
