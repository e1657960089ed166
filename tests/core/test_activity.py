"""Workspaces without a GPU: any activity is their use, and what cannot be read is never idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import ActivityPolicy, LifecyclePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, GpuReading, Sample, SoftReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak, Verdict, classify, judge

POLICY = LifecyclePolicy(mode=Mode.ENFORCE, activity=ActivityPolicy(1200.0, 300.0)).idle_of(gpus=False)
BUSY, UNKNOWN, IDLE = SampleKind.BUSY, SampleKind.UNKNOWN, SampleKind.IDLE
QUIET = tuple(SoftReading(name, active=False, words=f"no {name}") for name in PROBED)
REST = Sample((), (), 60.0, 3600.0, cpu_cores=0.01, soft=QUIET, hub_idle_seconds=1800.0)


def judged(seen: Sample, since_busy_seconds: float = 600.0) -> tuple[SampleKind, str]:
    return classify(Streak(since_busy_seconds=since_busy_seconds - 60.0), read_evidence(seen, POLICY), POLICY)


def with_one(name: str, *, active: bool | None, words: str = "") -> Sample:
    return replace(REST, soft=tuple(SoftReading(name, active, words) if one.name == name else one for one in QUIET))


def test_without_a_policy_for_it_nothing_is_judged() -> None:
    assert LifecyclePolicy().idle_of(gpus=False) is None
    assert LifecyclePolicy().idle_of(gpus=True) == LifecyclePolicy().idle


def test_at_rest() -> None:
    words = "no kernel, no terminal, no ssh, no editor, CPU at 0.01 cores, no activity at the hub for 30 min"
    assert judged(REST) == (IDLE, words)


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        *(pytest.param(with_one(name, active=True, words=name), name, id=name) for name in PROBED),
        pytest.param(replace(REST, cpu_cores=0.5), "CPU at 0.5 cores", id="CPU"),
        pytest.param(replace(REST, hub_idle_seconds=599.0), "the hub saw activity", id="hub, since it was last used"),
        pytest.param(replace(REST, hub_idle_seconds=-3.0), "the hub saw activity", id="hub, clocks that differ"),
        pytest.param(replace(REST, cpu_cores=0.5, soft=()), "CPU at 0.5 cores", id="whatever else is unknown"),
        pytest.param(replace(REST, cpu_cores=0.5, age_seconds=1.0), "CPU at 0.5 cores", id="young"),
    ],
)
def test_any_activity_is_its_use(seen: Sample, because: str) -> None:
    assert judged(seen) == (BUSY, because)


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        pytest.param(with_one("ssh", active=None, words="hidden"), "its SSH sessions can't be read (hidden)", id="ssh"),
        pytest.param(replace(REST, soft=QUIET[1:]), "the state of its kernels can't be read", id="kernels"),
        pytest.param(replace(REST, cpu_cores=None), "the workspace's CPU use can't be read", id="CPU"),
        pytest.param(
            replace(REST, hub_idle_seconds=None), "the hub's record of its activity can't be read", id="hub away"
        ),
        pytest.param(replace(REST, problem="frozen"), "the workspace can't be read (frozen)", id="failed"),
        pytest.param(replace(REST, age_seconds=59.0), "it started less than 1 min ago", id="young"),
        pytest.param(
            replace(REST, leased=("a",)), "GPU 0 can't be read (it is not listed)", id="it has a GPU after all"
        ),
        pytest.param(replace(REST, gpus=(GpuReading("a", 0.0),)), "a is seen, not leased", id="it sees a GPU"),
    ],
)
def test_unknown_is_never_idle(seen: Sample, because: str) -> None:
    assert judged(seen) == (UNKNOWN, because)


def test_the_streak_is_that_of_gpus() -> None:
    streak, verdicts = Streak(mode=Mode.ENFORCE), []
    for minute in range(27):
        seen = replace(REST, hub_idle_seconds=60.0 * (minute + 1))
        streak, verdict = judge(streak, read_evidence(seen, POLICY), POLICY, Mode.ENFORCE)
        verdicts.append(verdict)
    assert verdicts.index(Verdict.BEGIN_GRACE) == 19
    assert verdicts.index(Verdict.RECLAIM) == 24


def test_late_reports_of_the_hub_count_once() -> None:
    """The hub records traffic every five minutes. A record newer than the last known use resets the streak once."""
    streak = Streak(mode=Mode.ENFORCE)
    kinds = []
    for minute in range(10):
        late = 240.0 if minute == 5 else 240.0 + 60.0 * (minute - 5) if minute > 5 else 7200.0 + 60.0 * minute
        evidence = read_evidence(replace(REST, hub_idle_seconds=late), POLICY)
        streak, _ = judge(streak, evidence, POLICY, Mode.ENFORCE)
        kinds.append(streak.kind)
    assert [kind is BUSY for kind in kinds] == [minute == 5 for minute in range(10)]
    assert streak.idle_seconds == 240.0


SAMPLES = st.builds(
    Sample,
    leased=st.just(()),
    gpus=st.just(()),
    interval_seconds=st.just(60.0),
    age_seconds=st.sampled_from([0.0, 3600.0]),
    cpu_cores=st.sampled_from([None, 0.0, 0.09, 5.0, float("nan")]),
    soft=st.lists(
        st.builds(SoftReading, st.sampled_from(PROBED), st.sampled_from([None, False, True])),
        unique_by=lambda reading: reading.name,
    ).map(tuple),
    hub_idle_seconds=st.sampled_from([None, -5.0, 30.0, 7200.0]),
    problem=st.sampled_from(["", "timed out"]),
)


@given(SAMPLES, st.floats(60, 7200))
def test_idle_only_if_all_is_known_to_rest(seen: Sample, since: float) -> None:
    at_rest = {one.name for one in seen.soft if one.active is False} == set(PROBED)
    known = seen.cpu_cores is not None and seen.cpu_cores <= 0.1 and seen.hub_idle_seconds is not None
    assert (judged(seen, since)[0] is IDLE) <= (at_rest and known and not seen.problem)
