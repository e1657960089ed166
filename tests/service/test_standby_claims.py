"""A service that another one replaced, or whose store does not answer: it takes no claim from a batch scheduler."""

import pytest
from late_scheduler import LateScheduler
from service_world import World

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase


class TwoWorlds(World):
    """Services over one batch scheduler that outlives them."""

    def make_scheduler(self, backend):
        if not hasattr(self, "late"):
            self.late = LateScheduler(backend, self.catalog.gpus)
        return self.late


@pytest.fixture
async def world(tmp_path):
    world = TwoWorlds(tmp_path / "s.sqlite")
    await world.round()
    yield world
    await world.parts.allocator.syncs.close()
    world.crash()


async def asks(parts):
    """Have the scheduler asked, as a change that it tells would."""
    parts.allocator.syncs.ask()
    await parts.allocator.syncs._task


async def test_promise_2_a_service_that_was_frozen_withdraws_nothing_that_its_successor_claims(world):
    frozen, world.parts = world.parts, None  # it is not ended: it only does nothing for a while
    try:
        world.boot()
        await world.round()
        lease = await world.ask("alice")
        await world.settle()
        assert (world.phase(lease), list(world.late.granted)) == (Phase.RESERVED, [lease.id])
        await asks(frozen)
        assert list(world.late.granted) == [lease.id]
        asked = len(world.late.answers)
        await asks(world.parts)
        assert len(world.late.answers) == asked + 1, "who owns the store goes on asking"
    finally:
        frozen.store.close()


async def test_while_the_store_does_not_answer_nothing_is_asked_and_then_all_goes_on(world, monkeypatch):
    lease = await world.ask("alice")
    await world.settle()
    asked = len(world.late.answers)

    def away():
        raise Unavailable("The store does not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(world.parts.store, "check_epoch", away)
        await asks(world.parts)
    assert len(world.late.answers) == asked
    await asks(world.parts)
    assert (len(world.late.answers), world.phase(lease)) == (asked + 1, Phase.RESERVED)
