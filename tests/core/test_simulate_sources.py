"""Readings of a monitor and DCGM exporter for generated sessions, and their value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import Measure, SourceReading
from gpuspawner.simulate.habits import HOUR, Frontend, Habits, Sharing, Work
from gpuspawner.simulate.probe import (
    EXPORTER_LATE_SECONDS,
    MONITOR_LATE_SECONDS,
    Exporter,
    GeneratedSampler,
    Monitor,
    Probe,
    by_exporter,
    by_monitor,
)
from gpuspawner.simulate.replay import simulate, totals
from gpuspawner.simulate.sessions import Session, sessions
from gpuspawner.simulate.timeline import Timeline

NEVER = Timeline()
PLAIN = Session(
    seed=7,
    work_kind=Work.ENDPOINT,
    frontend=Frontend.SSH,
    sharing=Sharing.EXCLUSIVE,
    end=4 * HOUR,
    work=(Timeline([(100.0, 100.2, 50.0), (200.0, 210.0, 80.0)]),),
    cpu=NEVER,
    held=NEVER,
)


def monitored(
    session: Session, since: float, until: float, reads: Monitor = Monitor.UTILIZATION
) -> list[SourceReading]:
    """Return the readings of the monitor for an interval, which it writes five seconds later."""
    return by_monitor(session, 0, "a", since + MONITOR_LATE_SECONDS, until + MONITOR_LATE_SECONDS, reads)


def exported(session: Session, since: float, until: float, tells: Exporter = Exporter.ENGINE) -> list[SourceReading]:
    """Return the readings of DCGM exporter for an interval, which come later through Prometheus."""
    return by_exporter(session, 0, "a", since + EXPORTER_LATE_SECONDS, until + EXPORTER_LATE_SECONDS, tells)


@pytest.mark.parametrize(
    ("since", "until", "percent"), [(0, 60, 0), (60, 150, 30), (100.05, 100.15, 15), (150, 300, 80), (205, 206, 80)]
)
def test_a_monitor_misses_no_burst_and_a_short_burst_is_in_two_samples(
    since: float, until: float, percent: float
) -> None:
    (seen,) = monitored(PLAIN, since, until)
    assert (seen.gpu, seen.percent, seen.coverage, seen.is_own) == ("a", percent, 1.0, True)
    assert (seen.begin_seconds, seen.end_seconds) == pytest.approx((until - since + 5.0, 5.0))


def test_a_monitor_sees_nothing_where_nvml_tells_nothing() -> None:
    assert monitored(replace(PLAIN, sharing=Sharing.MIG), 0, 300) == []
    assert monitored(replace(PLAIN, lost=Timeline([(250.0, 400.0, 1.0)])), 0, 300) == []
    (seen,) = monitored(replace(PLAIN, lost=Timeline([(30.0, 60.0, 1.0)])), 0, 300)
    assert seen.coverage == 0.9, "of a time that it missed it says nothing"


@pytest.mark.parametrize("reads", Monitor)
def test_on_a_shared_gpu_it_sees_the_device(reads: Monitor) -> None:
    one = replace(PLAIN, sharing=Sharing.SHARED, neighbours=Timeline([(0.0, 60.0, 90.0)]))
    (seen,) = monitored(one, 0, 60, reads)
    assert (seen.percent, seen.is_own) == (90, False)


def test_by_gpm_it_sees_fractions_of_a_percent_also_of_a_mig_device() -> None:
    tiny = replace(PLAIN, sharing=Sharing.MIG, work=(Timeline([(100.0, 200.0, 0.2)]),))
    (seen,) = monitored(tiny, 60, 150, Monitor.GPM)
    assert (seen.measure, seen.percent, seen.coverage, seen.is_own) == (Measure.ENGINE, pytest.approx(0.2), 1.0, True)
    (seen,) = monitored(tiny, 0, 60, Monitor.GPM)
    assert seen.percent == 0
    (seen,) = monitored(replace(PLAIN, media=Timeline([(0.0, 300.0, 40.0)])), 0, 60, Monitor.GPM)
    assert (seen.percent, seen.engine) == (pytest.approx(40), ""), "the busiest engine"


def test_the_exporter_averages_engine_activity_and_misses_nothing() -> None:
    (seen,) = exported(PLAIN, 60, 150)
    assert seen.percent == pytest.approx(0.2 * 50 / 30)
    assert (seen.measure, seen.coverage, seen.is_own) == (Measure.ENGINE, 1.0, True)
    (seen,) = exported(replace(PLAIN, sharing=Sharing.MIG), 190, 250)
    assert seen.percent == pytest.approx(80 / 3), "ten seconds of thirty, of its own instance"
    (seen,) = exported(replace(PLAIN, sharing=Sharing.SHARED, neighbours=Timeline([(0.0, 60.0, 90.0)])), 0, 60)
    assert (seen.percent, seen.is_own) == (90, False)


def test_as_shipped_it_looks_for_an_instant_every_half_minute() -> None:
    (seen,) = exported(PLAIN, 190, 250, Exporter.UTILIZATION)
    assert (seen.gpu, seen.percent, seen.coverage) == ("a", 80, pytest.approx(1 / 30))
    (seen,) = exported(PLAIN, 60, 150, Exporter.UTILIZATION)
    assert seen.percent == 0, "a fifth of a second between two looks"
    assert exported(replace(PLAIN, sharing=Sharing.MIG), 190, 250, Exporter.UTILIZATION) == []


def test_its_newest_value_is_told_again_until_another_comes() -> None:
    (seen,) = exported(PLAIN, 215, 220)
    assert (seen.percent, seen.begin_seconds, seen.end_seconds) == (pytest.approx(80 / 3), 85.0, 55.0)
    assert exported(PLAIN, 5, 20) == [], "none came yet"


def test_encoder_and_decoder_have_readings_of_their_own() -> None:
    one = replace(PLAIN, media=Timeline([(0.0, 300.0, 40.0)]))
    assert [(seen.engine, seen.percent) for seen in monitored(one, 0, 60)] == [("", 0), ("decoder", 40)]
    assert [(seen.engine, seen.percent) for seen in exported(one, 0, 60)] == [("", 0), ("decoder", 40)]
    assert [seen.engine for seen in exported(replace(one, sharing=Sharing.MIG), 0, 60)] == [""], "MIG devices have none"
    assert one.used.at(50.0), "it is use"


def test_continuous_sources_spare_an_endpoint_that_is_being_tested() -> None:
    habits = Habits(
        never_share=0.0,
        works=((Work.ENDPOINT, 1.0),),
        sharing=((Sharing.EXCLUSIVE, 1.0),),
        task_seconds=(4 * HOUR, 6 * HOUR),
    )
    policy, drawn = IdlePolicy(), list(sessions(5, 100, habits))

    def wrong(probe: Probe) -> int:
        looked = ((GeneratedSampler(one, policy, probe), one) for one in drawn)
        return totals((simulate(look, one.used, 1, one.end, policy)[0], one.end) for look, one in looked).wrong

    assert wrong(Probe()) > 0
    assert [wrong(Probe(monitor=reads)) for reads in Monitor] == [0, 0]
    assert wrong(Probe(exporter=Exporter.ENGINE)) == 0
