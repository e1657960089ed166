"""Deadlines, their warnings, Extend and Keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.policies import ExtendPolicy, KeepPolicy
from gpuspawner.core.leases.lifetimes import Due, deadline, due_warnings, extend, is_expired, keep
from gpuspawner.core.rules import LatestEnd

HOUR = 3600.0
POLICY = ExtendPolicy()
FAST = ExtendPolicy(each_seconds=30, total_seconds=60, warn_seconds=(20.0, 5.0))
END = 100 * HOUR


def test_a_deadline_is_counted_from_when_the_workspace_runs() -> None:
    assert deadline(1000.0, 8 * HOUR) == 1000.0 + 8 * HOUR


@pytest.mark.parametrize(
    ("extended", "expected"),
    [
        pytest.param(0, (END + 4 * HOUR, 4 * HOUR), id="the first"),
        pytest.param(20 * HOUR, (END + 4 * HOUR, 24 * HOUR), id="the last whole one"),
        pytest.param(22 * HOUR, (END + 2 * HOUR, 24 * HOUR), id="what is left of the total"),
    ],
)
def test_extend_moves_by_the_step_within_the_total(extended: float, expected: tuple[float, float]) -> None:
    assert extend(END, extended, POLICY, END - 1) == expected


def test_extend_beyond_the_total_is_refused_with_both_quantities_and_the_next_step() -> None:
    with pytest.raises(Conflict) as refused:
        extend(END, 24 * HOUR, POLICY, END - HOUR)
    assert str(refused.value) == (
        "Extend: 4 h more asked; 24 h of 24 h are used. "
        "Save your work: this workspace ends in 1 h. Its files are kept; start it again afterwards."
    )


@pytest.mark.parametrize("late", [0.0, 120.0])
def test_an_ended_lease_is_not_extended(late: float) -> None:
    with pytest.raises(Conflict, match=r"time ended \d+ \w+ ago. Start it again; its files are kept"):
        extend(END, 0, POLICY, END + late)


@pytest.mark.parametrize(
    ("told", "lifetime", "now", "due"),
    [
        pytest.param((), 8 * HOUR, END - 3601, None, id="not yet"),
        pytest.param((), 8 * HOUR, END - 3600, Due(END, (3600.0,)), id="an hour before"),
        pytest.param((3600.0,), 8 * HOUR, END - 3599, None, id="once each"),
        pytest.param((3600.0,), 8 * HOUR, END - 600, Due(END, (600.0,)), id="ten minutes before"),
        pytest.param((3600.0, 600.0), 8 * HOUR, END - 1, None, id="all told"),
        pytest.param((3600.0,), 8 * HOUR, END - 60, Due(END + 540, (600.0,)), id="the last one late"),
        pytest.param((3600.0,), 8 * HOUR, END - 540, Due(END, (600.0,)), id="a minute late moves nothing"),
        pytest.param((3600.0,), 8 * HOUR, END + 60, Due(END + 660, (600.0,)), id="the last one after the end"),
        pytest.param((), 8 * HOUR, END - 600, Due(END, (3600.0, 600.0)), id="the first late, but in time: one message"),
        pytest.param((), 8 * HOUR, END - 60, Due(END + 540, (3600.0, 600.0)), id="the first one too late"),
        pytest.param((), 8 * HOUR, END + HOUR, Due(END + HOUR + 600, (3600.0, 600.0)), id="the service was away"),
        pytest.param((), HOUR, END - 3600, None, id="no warning of an hour for an hour"),
        pytest.param((), HOUR, END - 600, Due(END, (600.0,)), id="but of ten minutes"),
        pytest.param((), 300.0, END - 300, Due(END, (600.0,)), id="five minutes are told at once, and stay five"),
        pytest.param((), 300.0, END, Due(END + 300, (600.0,)), id="five minutes, the service was away"),
    ],
)
def test_due_warnings(told: tuple[float, ...], lifetime: float, now: float, due: Due | None) -> None:
    assert due_warnings(END, told, POLICY, lifetime, now) == due


def test_where_the_policy_warns_later_the_notice_is_as_short() -> None:
    assert due_warnings(END, (), FAST, 60.0, END + 1) == Due(END + 6, (20.0, 5.0))


def test_without_thresholds_people_are_still_told_ten_minutes_before() -> None:
    policy = ExtendPolicy(warn_seconds=())
    assert due_warnings(END, (), policy, 8 * HOUR, END - 601) is None
    assert due_warnings(END, (), policy, 8 * HOUR, END - 600) == Due(END, (600.0,))


@pytest.mark.parametrize(
    ("told", "now", "over"),
    [
        pytest.param((600.0,), END - 1, False, id="before"),
        pytest.param((600.0,), END, True, id="at the deadline"),
        pytest.param((), END + 1, False, id="nobody was told"),
    ],
)
def test_expiry(told: tuple[float, ...], now: float, over: bool) -> None:
    assert is_expired(END, told, now) is over


@given(
    ticks=st.lists(st.floats(0.1, 2 * HOUR), min_size=1, max_size=60),
    lifetime=st.floats(60.0, 24 * HOUR),
    thresholds=st.lists(st.floats(1.0, 2 * HOUR), max_size=3, unique=True),
)
def test_promise_5_nothing_expires_untold_and_a_deadline_moves_once_at_most(
    ticks: list[float], lifetime: float, thresholds: list[float]
) -> None:
    policy = ExtendPolicy(warn_seconds=tuple(sorted(thresholds, reverse=True)))
    notice = min([600.0, lifetime, *thresholds])
    end, told, told_at, moves, now = deadline(0.0, lifetime), set[float](), None, 0, 0.0
    for tick in [*ticks, 48 * HOUR, 48 * HOUR]:
        now += tick
        assert told_at is not None or not is_expired(end, told, now)
        if due := due_warnings(end, told, policy, lifetime, now):
            assert not told & set(due.thresholds)
            assert list(due.thresholds) == sorted(due.thresholds, reverse=True)
            moves += due.deadline != end
            told_at = now if told_at is None else told_at
            end, told = due.deadline, told | set(due.thresholds)
        if is_expired(end, told, now):
            assert now - told_at >= notice - 1e-6
            break
    assert is_expired(end, told, now)
    assert moves <= 1
    assert end >= lifetime


def test_keep_lasts_as_long_as_the_policy_says() -> None:
    assert keep(2, KeepPolicy(), now=1000.0) == 1000.0 + 2 * HOUR


@pytest.mark.parametrize("used", [3, 4])
def test_one_keep_too_many_is_refused_with_both_quantities_and_the_next_step(used: int) -> None:
    with pytest.raises(Conflict) as refused:
        keep(used, KeepPolicy(), now=1000.0)
    assert str(refused.value) == (
        f"Keep: one more asked; {used} of 3 are used. Compute on the GPU, or save your work and stop; files are kept."
    )


def test_an_extension_ends_at_the_bound_and_is_refused_where_that_leaves_less_than_ten_minutes() -> None:
    bound = LatestEnd(END + HOUR, "hold", "ends before the class")
    assert extend(END, 0, POLICY, END - 1, bound) == (END + HOUR, HOUR)
    near = LatestEnd(END + 300, "hold", "ends before the class")
    with pytest.raises(Conflict, match=r"4 h more asked, but this workspace ends before the class.* it ends in 30 min"):
        extend(END, 0, POLICY, END - 1800, near)
