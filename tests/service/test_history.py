"""The recorded history as the simulation reads it, without the service, and limited to measured values."""

from dataclasses import replace

import pytest
from harness.verdicts import judge_sample
from lease_builders import a_lease, slots

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import GpuReading, Measure, Sample, Source, SourceReading
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.sampling.sampler import reading_rows
from gpuspawner.service.store import ReadingRow
from gpuspawner.service.store.database.recordings import (
    RecordedSamples,
    busy_timeline,
    missing_evidence,
    read_recordings,
    replay_steps,
)
from gpuspawner.simulate.replay import simulate

POLICY = IdlePolicy()
START = 1_800_000_000.0
DAY = 86400.0


def told(done, of):
    pass


def rows_of(percents, *, gpu="a", lease="one", start=START, **more):
    """One reading a minute: a number, or None for unknown."""
    rows = []
    for number, percent in enumerate(percents):
        kind = "unknown" if percent is None else "busy" if percent >= 5 else "idle"
        seen = {"holders": 1, "holders_cpu_cores": 0.0, "cpu_cores": 0.0, **more}
        rows.append(ReadingRow(lease, start + 60.0 * (number + 1), 60.0, gpu, percent, 1, 2, kind, "because", **seen))
    return rows


def read(store, rows, *, now=START + 3600.0, lease=None, since=0.0):
    running = lease or a_lease("one", Phase.RUNNING, held=slots(*dict.fromkeys(row.gpu for row in rows)))
    store.save([replace(running, running_at=START)], readings=rows)
    (one,) = read_recordings(store.at.url, since, told, store.at.password_file)
    return one, list(replay_steps(one, POLICY.sample_seconds, now))


def stored(sample):
    """Return the rows that the sampler stores of a sample."""
    lease = a_lease("one", Phase.RUNNING, held=slots("a"))
    return reading_rows(lease, sample, read_evidence(sample, POLICY), POLICY, START + 60.0)


@pytest.mark.postgresql
def test_samples_are_what_was_measured(store):
    rows = [*rows_of([90.0, None, 0.0]), *rows_of([1.0, 2.0, 3.0], gpu="b")]
    one, steps = read(store, rows)
    assert (one.gpus, one.start, one.end) == (("a", "b"), START, START + 180.0)
    assert [step.at for step in steps] == [60.0, 120.0, 180.0]
    assert [[gpu.utilization_percent for gpu in step.sample.gpus] for step in steps] == [
        [90.0, 1.0],
        [None, 2.0],
        [0.0, 3.0],
    ]
    assert [judge_sample(step.sample, POLICY).kind for step in steps] == [
        SampleKind.BUSY,
        SampleKind.UNKNOWN,
        SampleKind.IDLE,
    ]
    assert [step.sample.interval_seconds for step in steps] == [60.0] * 3
    assert busy_timeline(one, 60.0, START + 3600.0).spans == ((0.0, 60.0, 1.0),)


@pytest.mark.parametrize("buffer_percent", [None, 90.0])
@pytest.mark.parametrize("persistence", [None, False, True])
def test_recorded_wakeups_of_a_gpu_are_judged_again_alike(store, persistence, buffer_percent):
    seen = GpuReading("a", 70.0, 0, 2**30, 0, 0.0, buffer_percent=buffer_percent, persistence=persistence)
    sample = Sample(("a",), (seen,), 60.0, 600.0, 0.0)
    rows = stored(sample)
    assert rows[0].utilization_percent == (buffer_percent or 70.0), "all that was read is shown"
    _, (step,) = read(store, rows)
    assert judge_sample(step.sample, POLICY).gpus == judge_sample(sample, POLICY).gpus


@pytest.mark.parametrize("percent", [0.0, 60.0])
@pytest.mark.parametrize("source", list(Source)[:2])
def test_recorded_readings_of_sources_are_judged_again_alike(store, source, percent):
    seen = GpuReading("a", 0.0, 2**20, 2**30, 1, 0.5, seen_seconds=3.0, possible_holders=1, possible_cpu_cores=0.1)
    told_by = SourceReading("a", source, Measure.UTILIZATION, percent, 65.0, 5.0, 0.9)
    sample = Sample(("a",), (seen,), 60.0, 600.0, 0.0, sources=(told_by,))
    _, (step,) = read(store, stored(sample))
    assert (step.sample.gpus, step.sample.sources) == (sample.gpus, sample.sources)
    assert judge_sample(step.sample, POLICY) == judge_sample(sample, POLICY)


def test_a_simulated_policy_stops_what_the_live_rule_would_stop(store):
    one, steps = read(store, rows_of([50.0, *60 * [0.0], 50.0, *60 * [0.0]]), now=START + 9000)
    seen, replays = simulate(
        RecordedSamples(steps), busy_timeline(one, 60.0, START + 9000), 1, one.end - one.start, POLICY
    )
    assert [(stop.at, stop.wrong) for stop in seen.stops] == [(41 * 60.0, False), (102 * 60.0, False)]
    assert [replay.warned_at for replay in replays] == [(31 * 60.0,), (92 * 60.0,)]
    assert seen.stops[0].wanted_at == 61 * 60.0


def test_a_simulated_policy_reports_wrong_stops(store):
    hasty = replace(POLICY, below_percent=60.0)
    one, steps = read(store, rows_of(60 * [50.0]), now=START + 4000)
    seen, _ = simulate(RecordedSamples(steps), busy_timeline(one, 60.0, START + 9000), 1, one.end - one.start, hasty)
    assert [stop.wrong for stop in seen.stops] == [True]


def test_a_gap_is_no_idle_time(store):
    rows = [*rows_of(20 * [0.0]), *rows_of(25 * [0.0], start=START + 5 * 3600.0)]
    one, steps = read(store, rows, now=START + 6 * 3600.0)
    assert (
        simulate(RecordedSamples(steps), busy_timeline(one, 60.0, START + 9000), 1, one.end - one.start, POLICY)[
            0
        ].stops
        == ()
    )


def test_of_old_readings_ten_minutes_are_as_busy_as_their_highest(store):
    start = START - START % 600
    rows = rows_of([0.0, 80.0, *8 * [0.0], *10 * [0.0]], start=start)
    store.save([], readings=rows)
    store.readings.thin(start + 3 * DAY)
    left = store.readings.of_lease("one")
    assert len(left) == 3
    lease = a_lease("one", Phase.RUNNING, held=slots("a"))
    store.save([replace(lease, running_at=start)])
    (one,) = read_recordings(store.at.url, 0.0, told, store.at.password_file)
    steps = list(replay_steps(one, 60.0, start + 3 * DAY))
    assert [step.sample.gpus[0].utilization_percent for step in steps] == [*10 * [80.0], *10 * [0.0]]
    assert [round(step.sample.interval_seconds) for step in steps] == 20 * [60]
    assert busy_timeline(one, 60.0, start + 3 * DAY).integral(0.0, DAY) == 600.0, (
        "not the one minute that is left of it"
    )


def test_without_cpu_what_counts_it_is_unknown(store):
    _, steps = read(store, rows_of(3 * [0.0], cpu_cores=None))
    assert {judge_sample(step.sample, POLICY).kind for step in steps} == {SampleKind.UNKNOWN}


def test_a_shared_gpu_is_judged_by_its_holders_again(store):
    _, steps = read(store, rows_of([99.0, 99.0], shared=True, holders_cpu_cores=0.001))
    assert {judge_sample(step.sample, POLICY).kind for step in steps} == {SampleKind.UNKNOWN}, "perhaps others'"
    _, steps = read(store, rows_of([0.0, 0.0], shared=True, holders_cpu_cores=0.001))
    assert {judge_sample(step.sample, POLICY).kind for step in steps} == {SampleKind.IDLE}


@pytest.mark.postgresql
def test_reading_it_neither_writes_nor_supersedes_the_service(store):
    read(store, rows_of([1.0]))
    store.check_epoch()
    assert store.epoch == 1


def test_only_workspaces_with_readings_since_then_are_read(store):
    store.save([a_lease("two", Phase.RUNNING)], readings=rows_of([1.0], lease="two", start=START - 5 * DAY))
    read(store, rows_of([1.0]), since=START)
    assert [one.lease.id for one in read_recordings(store.at.url, 0.0, told, store.at.password_file)] == ["two", "one"]


def test_a_history_that_is_not_there_or_of_another_version_is_said_to_be_so(store, tmp_path):
    with pytest.raises(Unavailable, match="unable to open database file"):
        list(read_recordings(f"sqlite:///{tmp_path / 'none.sqlite'}", 0.0, told))
    assert not (tmp_path / "none.sqlite").exists()
    read(store, rows_of([1.0]))
    store.at.run("ALTER TABLE readings DROP COLUMN cpu_cores")
    with pytest.raises(Unavailable, match="Start the service once"):
        list(read_recordings(store.at.url, 0.0, told, store.at.password_file))


def test_softer_evidence_is_judged_again_as_it_was_recorded(store):
    kernels = replace(POLICY, soft_names=("kernel",))
    busy = {"kernel": {"active": True, "words": "kernel a.ipynb busy"}}
    rows = [replace(row, soft=soft) for row, soft in zip(rows_of(3 * [0.0]), (busy, {}, None), strict=True)]
    one, steps = read(store, rows)
    seen = [judge_sample(step.sample, kernels) for step in steps]
    assert [one.kind for one in seen] == [SampleKind.SOFT, SampleKind.IDLE, SampleKind.UNKNOWN]
    assert seen[0].because == "kernel a.ipynb busy, GPU 0 at 0 %"
    assert missing_evidence(one) == frozenset()
    assert missing_evidence(replace(one, rows=one.rows[2:])) == {"kernel", "terminal", "ssh", "editor"}
