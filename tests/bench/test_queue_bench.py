"""``bench/queue`` serves a small trace by each discipline, and tells how good its estimates were."""

import sys
from math import inf

import pytest
from costs import costs
from disciplines import DISCIPLINES
from estimating import Estimated, report, score, scored_outcomes
from openb import Task, Trace
from people import IDLE_STOP_SECONDS, generated
from served import serve
from sessions import repeated, workload

from gpuspawner.core.gpus.fragmentation import NodeState, ResourceRequest
from gpuspawner.core.queue.calibration import EstimateOutcome

T4 = frozenset({"T4"})
TRACE = Trace(
    (NodeState("T4", (1.0, 1.0), 32000, 65536),),
    tuple(
        Task(ResourceRequest(T4, 1.0 if n % 3 else 0.5, 1, 1, 1), created=1e7 + 100 * n, seconds=3000)
        for n in range(40)
    ),
)


@pytest.mark.parametrize("discipline", DISCIPLINES, ids=lambda one: one.name)
def test_no_held_gpu_is_granted_again(discipline):
    work = workload(TRACE, 1.5, 1, nodes=1)
    started = [x for x in serve(work, discipline) if x.started_at is not None]
    assert len(started) > 20
    for at in (x.started_at for x in started):
        assert sum(x.session.gpus for x in started if x.started_at <= at < x.started_at + x.ran_seconds) <= 2


def test_the_load_is_as_asked_and_both_methods_are_reported_at_both_moments():
    work = workload(TRACE, 1.5, 1, nodes=1)
    asked = sum(x.gpus * x.seconds for x in work.sessions)
    assert asked / (2 * work.sessions[-1].asked_at) == pytest.approx(1.5)
    lines = list(report([work, work], 100, 3))
    assert [line.split(":")[0] for line in lines[:4]] == [
        "first, median of 3", "first, drawn", "half of the wait, median of 3", "half of the wait, drawn",
    ]  # fmt: skip
    assert all("within 10 min" in line for line in lines[:4])


def test_samples_of_the_trace_share_no_session_and_each_comes_twice():
    first, second = (workload(TRACE, 1.5, 2, nodes=1, offset=offset) for offset in (0, 1))
    assert len(first.sessions) == len(second.sessions) == 20
    assert first.sessions != second.sessions
    twice = repeated(first)
    asked = [one.asked_at for one in twice.sessions]
    assert asked == sorted(asked)
    assert asked[20] > asked[19]
    assert len({one.id for one in twice.sessions}) == 40
    assert [one.seconds for one in twice.sessions[20:]] == [one.seconds for one in first.sessions]


def test_an_overdue_wait_is_a_miss_and_the_first_part_of_the_time_is_not_scored():
    def one(made_at, actual, point=600.0):
        outcome = EstimateOutcome(point, 1.0, 0, 900, 0, 900, is_shown=True, actual_seconds=actual)
        return Estimated(made_at, "x", "first", outcome)

    right, overdue, not_over, early = one(5000, 700.0), one(5000, inf), one(9500, inf), one(10, 700.0)
    assert score(scored_outcomes([right], 10000)).startswith("1 estimates, 100 % within 10 min")
    scored = scored_outcomes([right, overdue, not_over, early], 10000)
    assert score(scored).startswith("2 estimates, 50 % within 10 min")


def test_people_have_habits_and_what_they_leave_idle_is_stopped():
    work = generated(days=14, people=10)
    assert work == generated(days=14, people=10)
    assert work != generated(days=14, people=10, seed=1)
    left = [one for one in work.sessions if one.idle_seconds(one.seconds - 1) > 0]
    assert left
    longest = max(one.idle_seconds(one.seconds - 1) for one in left)
    assert longest == pytest.approx(IDLE_STOP_SECONDS - 1)
    of_users = {}
    for one in work.sessions:
        of_users.setdefault(one.request.user, []).append(one.seconds)
    means = sorted(sum(some) / len(some) for some in of_users.values())
    assert means[-1] > 2 * means[0], "people differ"


def test_the_costs_of_estimates_are_measured_beside_real_grants():
    usual = sys.getswitchinterval()
    try:
        lines = list(costs(sizes=((12, 1),), grants=10))
    finally:
        sys.setswitchinterval(usual)
    assert [line.split(":")[0] for line in lines] == [
        "12 waiting, 6 running", "a grant alone", "a grant beside estimates",
    ]  # fmt: skip
