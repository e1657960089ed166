"""What a monitor and DCGM exporter tell of generated sessions, and what they are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuspawner.core.idle.policy import IdlePolicy
from gpuspawner.core.idle.timeline import Timeline
from gpuspawner.simulate.habits import HOUR, Door, Habits, Sharing, Work
from gpuspawner.simulate.probe import Looking, Probe
from gpuspawner.simulate.replay import simulate, totals
from gpuspawner.simulate.sessions import Session, sessions
from gpuspawner.simulate.sources import by_exporter, by_monitor

NEVER = Timeline()
PLAIN = Session(
    seed=7,
    work_kind=Work.ENDPOINT,
    door=Door.SSH,
    sharing=Sharing.EXCLUSIVE,
    end=4 * HOUR,
    work=(Timeline([(100.0, 100.2, 50.0), (200.0, 210.0, 80.0)]),),
    cpu=NEVER,
    held=NEVER,
)


@pytest.mark.parametrize(
    ("since", "until", "percent"), [(0, 60, 0), (60, 150, 30), (100.05, 100.15, 15), (150, 300, 80), (205, 206, 80)]
)
def test_a_monitor_misses_nothing_and_a_short_burst_stands_in_two_samples(
    since: float, until: float, percent: float
) -> None:
    seen = by_monitor(PLAIN, 0, since, until)
    assert seen is not None
    assert seen.percent == percent


def test_a_monitor_sees_nothing_where_nvml_tells_nothing() -> None:
    assert by_monitor(replace(PLAIN, sharing=Sharing.MIG), 0, 0, 300) is None
    assert by_monitor(replace(PLAIN, lost=Timeline([(250.0, 400.0, 1.0)])), 0, 0, 300) is None


def test_an_exporter_looks_every_half_minute() -> None:
    seen = by_exporter(PLAIN, 0, "a", 190, 250)
    assert seen is not None
    assert (seen.gpu, seen.percent) == ("a", 80)
    assert by_exporter(PLAIN, 0, "a", 60, 150) is None, "a fifth of a second between two looks"
    assert by_exporter(replace(PLAIN, sharing=Sharing.SHARED), 0, "a", 190, 250) is None
    mean = by_exporter(replace(PLAIN, sharing=Sharing.MIG), 0, "a", 190, 250)
    assert mean is not None
    assert mean.percent == 27, "ten seconds of thirty"


def test_only_the_monitor_spares_an_endpoint_that_somebody_tests() -> None:
    habits = Habits(
        never_share=0.0,
        works=((Work.ENDPOINT, 1.0),),
        sharing=((Sharing.EXCLUSIVE, 1.0),),
        task_seconds=(4 * HOUR, 6 * HOUR),
    )
    policy, drawn = IdlePolicy(), list(sessions(5, 100, habits))

    def wrong(probe: Probe) -> int:
        looked = ((Looking(one, policy, probe), one) for one in drawn)
        return totals((simulate(look, one.used, 1, one.end, policy)[0], one.end) for look, one in looked).wrong

    assert wrong(Probe()) > 0
    assert wrong(Probe(monitor=True)) == 0
