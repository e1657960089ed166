"""The first forecast of a start is stored with the actual time, survives restarts, and improves later ranges."""

from service_world import World

from gpuspawner.core.queue.estimates import EstimateOutcome


async def test_the_first_estimate_is_noted_and_what_came_of_it_is_kept(tmp_path):
    world = World(tmp_path / "s.sqlite", gpus=1)
    await world.round()
    up = await world.up("anna")
    waits = await world.ask("bert", lifetime="1h")
    await world.round()
    told = world.now_of(waits).estimate
    assert told is not None
    assert told.latest_at - told.told_at == up.deadline_at - told.told_at
    world.clock.advance(100)
    await world.round()
    assert world.now_of(waits).estimate == told, "the first one stands"
    foretold = world.parts.allocator.foretold
    await foretold.came(world.now_of(waits))
    (outcome,) = world.parts.store.estimates.latest()
    assert outcome == foretold.past[-1]
    assert outcome.actual_seconds == world.clock.now() - told.told_at
    assert not outcome.was_right, "it came sooner than any range of one holder's deadline"
    assert "gpuspawner_queue_estimate_error_seconds" in {metric.name for metric in foretold.collect()}
    world.crash()


async def test_ranges_follow_from_what_is_stored(tmp_path):
    world = World(tmp_path / "s.sqlite", gpus=1)
    await world.round()
    for _ in range(30):
        world.parts.store.estimates.add(EstimateOutcome(60, 600, 60, 600, 1200), world.clock.now())
    world.boot()
    await world.round()
    await world.up("anna")
    waits = await world.ask("bert", lifetime="1h")
    place = world.parts.queue.place(waits)
    begin, end, right = world.parts.allocator.foretold.words(place)
    assert right == "right 0 times in 10 so far"
    assert begin <= place.unchanged_seconds < end, "so many were late that it tells more"
    world.crash()
