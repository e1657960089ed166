"""Estimates are stored with the actual start, survive restarts, and improve later ones."""

from dataclasses import replace
from math import inf

from service_world import World

from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.calibration import EstimateOutcome
from gpuspawner.service.engine.allocation.estimate_records import KEPT_EVERY_SECONDS
from gpuspawner.service.store.history import HISTORY_SECONDS, WaitingTimes

MADE = EstimateOutcome(600, 0.7, 300, inf, 200, inf, is_shown=True, actual_seconds=inf)


async def a_waiting_world(path):
    world = World(path / "s.sqlite", gpus=1)
    await world.round()
    up = await world.up("anna")
    return world, up, await world.ask("bert", lifetime="1h")


async def test_an_estimate_is_kept_until_the_start_also_over_a_restart(tmp_path):
    world, _, waits = await a_waiting_world(tmp_path)
    records, store = world.allocator.estimate_records, world.parts.store
    await records.note({waits.id: MADE, "nobody": MADE}, world.clock.now())
    await records.note({waits.id: MADE}, world.clock.now() + KEPT_EVERY_SECONDS - 1)
    assert len(store.estimates.pending()[waits.id]) == 1, "one in ten minutes"
    world.clock.advance(KEPT_EVERY_SECONDS)
    await records.note({waits.id: replace(MADE, point_seconds=60)}, world.clock.now())
    assert records.past == []
    world.boot()
    await world.round()
    records = world.allocator.estimate_records
    world.clock.advance(100)
    await records.came(world.now_of(waits))
    assert [(one.point_seconds, one.actual_seconds) for one in records.past] == [(600, 700), (60, 100)]
    assert world.parts.store.estimates.latest() == records.past
    assert world.parts.store.estimates.pending() == {}
    assert "gpuspawner_queue_estimate_error_seconds" in {metric.name for metric in records.collect()}
    told = world.parts.store.estimates.waiting_times(0, inf)
    assert told == WaitingTimes(1, 1, 700, 700, 700), "only the first one counts"
    world.crash()


async def test_a_request_that_is_withdrawn_has_no_outcome_and_an_overdue_one_is_a_miss(tmp_path):
    world, _, waits = await a_waiting_world(tmp_path)
    records, store, now = world.allocator.estimate_records, world.parts.store, world.clock.now()
    await records.note({waits.id: MADE}, now)
    assert store.estimates.outcomes(0, now + 1200) == []
    (overdue,) = store.estimates.outcomes(0, now + 1201)
    assert not overdue.is_near
    await world.parts.attempts.forget(waits.key)
    await records.note({}, now)
    assert store.estimates.pending() == {}
    world.crash()


async def test_idle_times_survive_a_restart_and_go_with_their_user_or_after_90_days(tmp_path):
    world, up, _ = await a_waiting_world(tmp_path)
    world.clock.advance(650)
    await world.round()
    store = world.parts.store
    kept = store.idle_traces.of([up.id])[up.id]
    assert len(kept) == 1 + int((world.clock.now() - world.now_of(up).running_at) // 600)
    world.boot()
    await world.round()
    assert world.allocator.estimator._idle[up.id] == list(kept)
    store = world.parts.store
    store.idle_traces.delete_old(world.clock.now() + HISTORY_SECONDS - 1)
    assert store.idle_traces.of([up.id])
    store.idle_traces.delete_users([Owner(*up.key.owner)])
    assert store.idle_traces.of([up.id]) == {}
    world.crash()
