"""Estimated starts, and why an estimate moved."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.events import EstimateMoved
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases.lease import Key, Phase, PlannedEnd
from gpuspawner.core.queue.estimates import (
    WINDOW_SECONDS,
    QueueState,
    estimate_of,
    estimate_starts,
    explain_move,
    first_in_line,
    later_requests,
    queue_positions,
    queue_state,
)
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.run_times import LEAST_RUNS, MOST_RUNS, PastRun, RunTimes, extend_trace, past_run
from gpuspawner.core.queue.snapshot import Snapshot, claim_of

RUNS = a_lease("x", Phase.RUNNING, held=slots("a100-0"), asked_at=NOW - 600)
"""It has run for ten minutes of its hour."""


def runs(seconds, count=LEAST_RUNS, user="somebody", lifetime=3600.0):
    return [PastRun(user, seconds, lifetime)] * count


def ends(lease, run_times, draws=200):
    return [run_times.end_at(lease, NOW, draw) - NOW for draw in range(draws)]


def test_with_few_runs_a_workspace_is_expected_to_run_until_its_deadline():
    assert set(ends(RUNS, RunTimes(runs(900, LEAST_RUNS - 1)))) == {3000}
    assert set(ends(RUNS, RunTimes(runs(900)))) == {300}


def test_a_workspace_is_expected_to_end_as_one_that_ran_longer_than_it_has_by_now():
    past = RunTimes([*runs(300), *runs(1200), *runs(2400)])
    assert set(ends(RUNS, past)) == {600, 1800}, "five minutes are over"
    starting = replace(RUNS, phase=Phase.STARTING, running_at=None, deadline_at=None)
    assert set(ends(starting, past)) == {300, 1200, 2400}, "it runs from now on"
    assert set(ends(RUNS, RunTimes(runs(500)))) == {3000}, "no workspace ran for that long"
    assert set(ends(replace(RUNS, deadline_at=NOW + 900), past)) == {600, 900}, "no later than by its deadline"
    assert set(ends(replace(RUNS, deadline_at=None), past)) == {600, 1800}, "also without a deadline"


def test_an_idle_workspace_ends_with_its_idle_clock():
    idle = replace(RUNS, phase=Phase.RECLAIMING, streak=Streak(countdown_seconds=90.0, mode=Mode.ENFORCE))
    assert set(ends(idle, RunTimes(runs(2400)))) == {90}


def test_a_workspace_ends_at_about_the_time_that_its_user_said():
    past = RunTimes(runs(2400))
    said = set(ends(replace(RUNS, planned_end=PlannedEnd(NOW + 1500)), past))
    assert 900 <= min(said) < 1100
    assert 1900 < max(said) <= 2100
    assert max(ends(replace(RUNS, planned_end=PlannedEnd(NOW + 3000)), past)) == 3000, "no later than by its deadline"
    for unsaid in (PlannedEnd(None), PlannedEnd(NOW - 1)):
        assert set(ends(replace(RUNS, planned_end=unsaid), past)) == {1800}, "not soon, or the time has passed"


def test_a_stopping_workspace_ends_now():
    assert set(ends(replace(RUNS, phase=Phase.STOPPING), RunTimes(runs(2400)))) == {1}


def test_half_of_the_draws_come_from_a_user_with_fifteen_runs():
    past = RunTimes([*runs(2400, 600), *runs(1200, 15, user="alice born")])
    drawn = ends(RUNS, past, 2000)
    assert drawn.count(600) / len(drawn) == pytest.approx(0.5, abs=0.04)
    other = replace(RUNS, key=Key("hub", "bob born", "x"))
    assert ends(other, past).count(600) < 20


def test_runs_of_a_similar_lifetime_count_more_than_others():
    past = RunTimes([*runs(1200, 300), *runs(2400, 300, lifetime=8 * 3600.0)])
    assert ends(RUNS, past).count(600) > 180


def test_the_oldest_runs_are_forgotten():
    past = RunTimes([*runs(1200, 50, user="alice born"), *runs(2400, MOST_RUNS)])
    assert set(ends(RUNS, past)) == {1800}


def test_estimates_made_at_once_use_the_same_run_times():
    def told(*leases, past):
        place = queue_positions(Snapshot(NOW, KINDS, (*leases, waits), fleet(gpu(0))), run_times=past)["w"]
        return place.likely_seconds, place.unchanged_seconds

    waits = a_lease("w", asked_at=NOW)
    assert told(RUNS, past=RunTimes()) == (3000, 3000)
    assert told(RUNS, past=RunTimes(runs(1800))) == (1200, 3000)
    behind = a_lease("v", asked_at=NOW - 1, request=a_request(lifetime_seconds=1000))
    assert told(RUNS, behind, past=RunTimes(runs(900))) == (1200, 4000), "the one before it runs as long"


def test_sessions_that_never_ran_give_no_estimates():
    ended = replace(RUNS, phase=Phase.ENDED)
    assert past_run(ended, NOW) == PastRun("alice born", 600, 3600, NOW - 600)
    assert past_run(replace(ended, running_at=None), NOW) is None
    past = RunTimes(runs(900, LEAST_RUNS - 1))
    past.add(None)
    assert not past.is_known
    past.add(past_run(ended, NOW))
    assert past.is_known


def estimate(*leases, run_times, later=lambda _: ()):
    seen = Snapshot(NOW, KINDS, (RUNS, *leases), fleet(gpu(0)))
    return estimate_starts(seen, Index(seen), seen.claims, run_times, later)


def test_an_estimate_goes_by_the_ends_that_are_drawn_and_counts_its_chance():
    waits = a_lease("w", asked_at=NOW)
    early, late = [*runs(900, 30)], [*runs(3000, 10)]
    found = estimate(waits, run_times=RunTimes([*early, *late]))["w"]
    assert found.point_seconds == 300
    assert 0.5 < found.chance < 1
    assert (found.from_seconds, found.to_seconds) == (300, 2400)


def test_the_requests_that_are_estimated_are_the_first_in_line_not_the_oldest():
    old = [a_lease(f"old{number}", asked_at=NOW - 60 + number, user="alice") for number in range(3)]
    urgent = a_lease("urgent", asked_at=NOW, user="bob", request=a_request("bob", priority=1))
    seen = Snapshot(NOW, KINDS, (RUNS, *old, urgent), fleet(gpu(0)))
    assert [one.id for one in first_in_line(seen, Index(seen), seen.claims, 2)] == ["urgent", "old0"]


def test_later_requests_that_go_first_make_a_start_later():
    waits = a_lease("w", asked_at=NOW)
    urgent = claim_of(
        a_lease("later", asked_at=NOW + 60, user="bob", not_before=NOW + 60, request=a_request("bob", priority=1))
    )
    past = RunTimes(runs(1500))
    assert estimate(waits, run_times=past)["w"].point_seconds == 900
    found = estimate(waits, run_times=past, later=lambda _: [urgent])
    assert found["w"].point_seconds == 900 + 1500
    assert found.keys() == {"w"}, "the other was not requested"
    early = replace(RUNS, running_at=NOW - 1490, deadline_at=NOW + 2110)
    seen = Snapshot(NOW, KINDS, (early, waits), fleet(gpu(0)))
    found = estimate_starts(seen, Index(seen), seen.claims, past, lambda _: [urgent])
    assert found["w"].point_seconds == 10, "a request that has not come keeps no GPU"


def test_later_requests_are_those_of_the_same_hours_of_an_earlier_day():
    day = 86400.0
    begin = 1_600_000_000 // day // 7 * 7 * day + 4 * day + 36000  # a Monday
    now = begin + 3 * day

    def asked(name, at):
        return claim_of(a_lease(name, asked_at=at))

    past = [asked("first", begin + 60), asked("noon", begin + day + 7200), asked("evening", begin + day + 4 * 3600),
            asked("third", begin + 2 * day + 1800)]  # fmt: skip
    found = [[(one.id, one.asked_at - now, one.not_before - now) for one in later_requests(past, now, draw)]
             for draw in range(3)]  # fmt: skip
    third, noon = [("later third", 1800, 1800)], [("later noon", 7200, 7200)]
    assert found == [third, noon, third], "nothing is known of the third day before"
    assert [one.id for one in later_requests(past, now + 59, 2)] == ["later third"]
    assert [one.id for one in later_requests(past, now + 60, 2)] == [], "the first one came at this moment"
    moved_up = [past[0], past[3]._replace(queue_move=2)]
    assert [one.queue_move for one in later_requests(moved_up, now, 0)] == [0], "its administrator moved another one"
    assert later_requests([], now, 0) == []
    assert later_requests(past, begin + 5 * day, 0) == [], "no weekend is known"


def test_a_workspace_ends_as_those_did_that_were_as_idle_at_that_age():
    busy = [PastRun("somebody", 7200, 36000.0, NOW - 600, (0.0,) * 13)] * 40
    left = [PastRun("somebody", 2500, 36000.0, NOW - 600, (0.0, 500.0, 1100.0, 1700.0, 2300.0))] * 40
    past = RunTimes([*busy, *left])
    lease = replace(RUNS, deadline_at=NOW + 36000, request=a_request(lifetime_seconds=36000))
    assert ends(lease, past).count(6600) > 100
    drawn = ends(replace(lease, streak=Streak(idle_seconds=550.0)), past)
    assert drawn.count(2400 - 550) > 140, "it stays idle for as long"


def test_an_idle_workspace_is_used_again_as_often_as_past_ones_were():
    """A past break does not count as the end, although the workspace ended idle later."""
    back = [PastRun("somebody", 9600, 36000.0, NOW - 600, (0.0, 500.0, *(0.0,) * 11, 500.0, 1100.0, 1700.0))] * 40
    left = [PastRun("somebody", 2500, 36000.0, NOW - 600, (0.0, 500.0, 1100.0, 1700.0, 2300.0))] * 40
    lease = replace(
        RUNS, deadline_at=NOW + 36000, request=a_request(lifetime_seconds=36000), streak=Streak(idle_seconds=550.0)
    )
    assert set(ends(lease, RunTimes(back))) == {9000}
    drawn = ends(lease, RunTimes([*back, *left]))
    assert 60 < drawn.count(2400 - 550) < 140, "half of the past workspaces stayed idle"
    assert drawn.count(9000) > 60


def test_idle_times_are_noted_for_each_ten_minutes_of_the_age():
    idle = []
    extend_trace(idle, 0, 0)
    extend_trace(idle, 1500, 700)
    assert idle == [0, 0, 400]
    extend_trace(idle, 1700, 900)
    assert idle == [0, 0, 400]


def test_no_start_within_three_hours_is_no_point():
    endless = replace(RUNS, deadline_at=None)
    seen = Snapshot(NOW, KINDS, (endless, a_lease("w", asked_at=NOW)), fleet(gpu(0)))
    found = estimate_starts(seen, Index(seen), seen.claims, RunTimes(), lambda _: ())["w"]
    assert (found.point_seconds, found.chance, found.to_seconds) == (None, 0, inf)


@given(st.lists(st.one_of(st.floats(0, 10800), st.just(inf)), min_size=10, max_size=60))
def test_the_point_is_the_middle_of_the_twenty_minutes_with_most_starts(starts):
    found = estimate_of(starts)
    if found.point_seconds is None:
        assert set(starts) == {inf}
        return
    near = [abs(start - found.point_seconds) <= WINDOW_SECONDS / 2 + 1e-6 for start in starts]
    assert found.chance == pytest.approx(sum(near) / len(starts), abs=1e-9)
    for begin in starts:
        assert sum(begin <= start <= begin + WINDOW_SECONDS for start in starts if start < inf) <= sum(near)
    below, above = (start < found.from_seconds for start in starts), (start > found.to_seconds for start in starts)
    assert sum(below) <= 0.1 * len(starts)
    assert sum(above) <= 0.1 * len(starts)


# --- why an estimate moved


BEFORE = QueueState(5000.0, {"anna": 9000.0, "bert": 9000.0, "new": None}, frozenset({"carl"}), 4, moves={"carl": 1})


@pytest.mark.parametrize(
    ("moved_seconds", "changes", "reasons"),
    [
        (1200, {"deadlines": {"anna": 9900.0, "bert": None, "new": 7000.0}}, "2 workspaces were extended"),
        (600, {"deadlines": {"anna": 9900.0, "bert": 9059.0}}, "1 workspace was extended"),
        (599, {"deadlines": {"anna": 9900.0, "bert": 9900.0}}, None),
        (1200, {"deadlines": {"anna": 9000.0}}, None),
        (-1200, {"deadlines": {"anna": 9900.0, "bert": 9000.0, "new": None}}, None),
        (-1200, {"deadlines": {"anna": 9900.0, "new": None}}, "1 workspace ended"),
        (1200, {"earlier": frozenset({"carl", "dora"})}, "1 earlier request is back"),
        (-1200, {"earlier": frozenset()}, "1 earlier request was withdrawn"),
        (-1200, {"earlier": frozenset(), "deadlines": {**BEFORE.deadlines, "carl": None}}, None),
        (1200, {"usable_gpus": 2}, "2 GPUs are out of service"),
        (-1200, {"usable_gpus": 5, "deadlines": {"new": None}}, "2 workspaces ended; 1 more GPU is in service"),
        (1200, {"planned": frozenset({("anna", 8000.0)})}, "1 user said when they will be done"),
        (-1200, {"planned": frozenset({("anna", 1.0), ("bert", 2.0)})}, "2 users said when they will be done"),
        (1200, {"moves": {"carl": 2}}, "1 request was moved by an administrator"),
        (-1200, {"moves": {"carl": 0, "new": 3}}, "1 request was moved by an administrator"),
        (1200, {"moves": {"carl": 1, "new": 3}}, None),
        (1200, {}, None),
    ],
)
def test_a_move_is_told_with_what_explains_its_direction(moved_seconds, changes, reasons):
    after = replace(BEFORE, start_at=BEFORE.start_at + moved_seconds, **changes)
    assert explain_move(BEFORE, after) == (None if reasons is None else (moved_seconds, reasons))


def test_the_sentence_says_why_and_by_how_much():
    later = EstimateMoved(1213.0, "2 workspaces were extended")
    assert later.describe(0) == "2 workspaces were extended: about 20 min later"
    assert EstimateMoved(-600.0, "1 workspace ended").describe(0) == "1 workspace ended: about 10 min sooner"


def test_only_the_gpus_that_a_request_may_get_count():
    waits = a_lease("waits")
    leases = [
        waits,
        a_lease("up", Phase.RUNNING, held=slots("a100-0")),
        a_lease("half", Phase.RUNNING, held=slots("a100-1"), request=a_request(gpu="half")),
        a_lease("other", Phase.RUNNING, held=slots("t4-0"), request=a_request(gpu="t4")),
        a_lease("cpu", Phase.RUNNING, request=a_request(gpu=None)),
        a_lease("before", asked_at=NOW - 1),
        a_lease("after", asked_at=NOW + 1),
    ]
    gpus = fleet(gpu(0), gpu(1), gpu(2, closed="drained"), gpu(3, healthy=False), gpu(4, reachable=False), gpu(0, "t4"))
    seen = Snapshot(NOW, KINDS, leases, gpus)
    deadlines = {"up": NOW + 3600, "half": NOW + 3600}
    moves = {"waits": 0, "before": 0, "after": 0}
    expected = QueueState(5000.0, deadlines, frozenset({"before"}), 2, moves=moves)
    assert queue_state(claim_of(waits), 5000.0, seen) == expected
    answered = [replace(one, planned_end=PlannedEnd(NOW + 60 if one.id == "up" else None)) for one in leases]
    assert queue_state(claim_of(waits), 5000.0, Snapshot(NOW, KINDS, answered, gpus)).planned == {("up", NOW + 60)}
    either = a_lease("either", request=a_request(substitutes=("t4",)))
    state = queue_state(claim_of(either), 5000.0, seen)
    assert (state.deadlines.keys(), state.usable_gpus) == ({"up", "half", "other"}, 3)
