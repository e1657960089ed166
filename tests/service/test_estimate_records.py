"""Estimates are stored with the actual start, survive restarts, and improve later ones."""

from dataclasses import replace
from math import inf

from service_world import World
from store_builders import delete_old

from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.calibration import LEAST_ERRORS, EstimateOutcome
from gpuspawner.service.engine.allocation.estimates import (
    KEPT_EVERY_SECONDS,
    REPORT_SECONDS,
    REPORTED_EVERY_SECONDS,
)
from gpuspawner.service.store import tables
from gpuspawner.service.store.history import HISTORY_SECONDS, WaitingTimes
from gpuspawner.service.waiting.api import present_accuracy
from gpuspawner.service.waiting.presenter import hit_rate_words, present_waiting

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
    await records.note_start(world.now_of(waits))
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
    delete_old(store, tables.idle_traces, now=world.clock.now() + HISTORY_SECONDS - 1)
    assert store.idle_traces.of([up.id])
    store.retention.delete_users([Owner(*up.key.owner)])
    assert store.idle_traces.of([up.id]) == {}
    world.crash()


async def test_the_report_of_30_days_counts_overdue_requests_as_misses_also_after_a_restart(tmp_path):
    world, _, waits = await a_waiting_world(tmp_path)
    store, now = world.parts.store, world.clock.now()
    for number in range(LEAST_ERRORS):
        store.estimates.add({f"past{number}": MADE}, now - 86400, [f"past{number}"])
        store.estimates.start(f"past{number}", now - 86400 + (600 if number < 17 else 6000))
    store.estimates.add({"old": MADE}, now - REPORT_SECONDS - 1, ["old"])
    store.estimates.start("old", now - REPORT_SECONDS)
    store.estimates.add({waits.id: replace(MADE, is_shown=False, to_seconds=1000)}, now - 900, [waits.id])
    world.boot()
    await world.round()
    report = present_accuracy(world.parts)
    (one,) = report.horizons
    assert (one.title, one.estimates, one.times, one.right_times) == ("10 min to 30 min", 20, 20, 17)
    assert (one.ranges, one.right_ranges) == (0, 0), "no range had an end"
    sentence = "8 of 10 times shown in the last 30 days were right within 10 minutes"
    assert hit_rate_words(world.parts) == present_waiting(world.parts, world.now_of(waits)).hit_rate == sentence
    world.clock.advance(REPORTED_EVERY_SECONDS)
    await world.round()
    (one,) = present_accuracy(world.parts).horizons
    assert (one.estimates, one.times, one.ranges, one.right_ranges) == (21, 20, 1, 0), "the waiting one is overdue"
    counts = {
        tuple(sample.labels.values()): sample.value
        for metric in world.allocator.estimate_records.collect()
        for sample in metric.samples
        if metric.name == "gpuspawner_queue_estimates"
    }
    assert counts["time", "1800", "right"] == 17
    assert counts["time", "1800", "wrong"] == 3
    assert counts["range", "1800", "wrong"] == 1
    world.crash()


async def test_with_few_shown_times_no_rate_is_told_and_an_open_range_is_not_wrong_yet(tmp_path):
    world, _, waits = await a_waiting_world(tmp_path)
    store, now = world.parts.store, world.clock.now()
    store.estimates.add({waits.id: replace(MADE, to_seconds=2000)}, now, [waits.id])
    world.clock.advance(1300)
    await world.round()
    (one,) = present_accuracy(world.parts).horizons
    assert (one.times, one.right_times, one.ranges) == (1, 0, 0)
    assert hit_rate_words(world.parts) == ""
    world.crash()
