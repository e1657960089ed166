"""Deadlines, warnings and exits of workspaces."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import a_lease

from gpuspawner.core.administration import summarize_names
from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.idle.policies import ExtendPolicy, KeepPolicy
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.lifetimes import CARRIED_OUT, Due, deadline, due_warnings, extend, is_expired, keep, settled
from gpuspawner.core.leases.reports import OUTCOMES
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.transitions import finish
from gpuspawner.core.rules import EndNotice, LatestEnd

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
        "Extend: You asked for 4 h more. 24 h of 24 h are used. "
        "Save your work. This workspace ends in 1 h. Its files are kept. Start it again afterwards."
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
        f"Keep: You asked for one more. {used} of 3 are used. "
        "Compute on the GPU, or save your work and stop. Files are kept."
    )


def test_an_extension_ends_at_the_bound_and_is_refused_where_that_leaves_less_than_ten_minutes() -> None:
    bound = LatestEnd(END + HOUR, "hold", "ends before the class")
    assert extend(END, 0, POLICY, END - 1, bound) == (END + HOUR, HOUR)
    near = LatestEnd(END + 300, "hold", "ends before the class")
    with pytest.raises(
        Conflict, match=r"You asked for 4 h more, but this workspace ends before the class.* it ends in 30 min"
    ):
        extend(END, 0, POLICY, END - 1800, near)


# --- warnings that are open


ASKED = Request("alice", "pytorch", "default", "a100", 1, 2.0, 2**30, 3600)
RUNS = Lease("1", Key("hub-1", "born", ""), "alice", ASKED, {}, 0.0, phase=Phase.RUNNING)
WARNED = {
    "idle": replace(RUNS, phase=Phase.RECLAIMING),
    "nobody came": replace(RUNS, arrival=Arrival(1800.0, 900.0, 900.0, 900.0)),
    "claim": replace(RUNS, notice=EndNotice("claim-1", 60.0, "train-77", "admin")),
    "administrator": replace(RUNS, notice=EndNotice("", 60.0, "Maintenance", "admin")),
    "end": replace(RUNS, warned_seconds=(600.0,)),
}


@pytest.mark.parametrize("reason", CARRIED_OUT)
def test_a_warning_is_over_with_what_it_threatened_or_otherwise(reason):
    before = WARNED[reason]
    assert settled(before, before) == []
    for of, outcome in ((next(iter(CARRIED_OUT[reason])), "ended"), (ExitReason.FAILED, "ended otherwise")):
        stops = replace(before, phase=Phase.STOPPING, reason=of)
        assert settled(before, stops) == [(reason, outcome)]
        assert settled(stops, replace(stops, phase=Phase.ENDED)) == [], "it counts once"
    assert settled(before, RUNS) == [(reason, "went on")]
    assert settled(before, replace(RUNS, keeps_used=1)) == [(reason, "kept")]
    assert settled(before, replace(RUNS, extended_seconds=60.0)) == [(reason, "kept")]
    assert settled(RUNS, before) == []


def test_several_are_named_and_the_others_counted():
    assert summarize_names(["alice", "bob"]) == "alice, bob"
    assert summarize_names(["alice", "bob", "carol", "dave", "erin"]) == "alice, bob, carol and 2 more"
    assert len(summarize_names(["x" * 255] * 200)) <= 255


# --- exits


def every_end():
    """Every end that the module tells of."""
    made = [one for one in vars(exits).values() if isinstance(one, Exit)]
    told = {"user": "ann", "disruption": "", "stopper": ""}
    made += [exits.released(outcome, up=up, **told) for outcome, up in product(sorted(OUTCOMES), (True, False))]
    made += [
        exits.vanished(disruption=disruption, newer_server=newer, adopted=adopted)
        for disruption, newer, adopted in product(("", "Why."), (False, True), (False, True))
    ]
    given = {
        "who": "ann",
        "gpus": "no GPU",
        "where": "its page",
        "unhealthy": ["GPU 0"],
        "why": "Why.",
        "stopper": "root",
    }
    given |= {"measured": "Nothing was done.", "grace_seconds": 60.0, "lifetime_seconds": 60.0, "tries": 3}
    given |= {"claim_seconds": 60.0, "waited_seconds": 60.0, "words": "It is used up.", "by": "root", "group": "vision"}
    for name, make in inspect.getmembers(exits, inspect.isfunction):
        asked = inspect.signature(make).parameters
        if make.__module__ == exits.__name__ and name not in {"released", "vanished", "named"}:
            made.append(make(**{parameter: given[parameter] for parameter in asked}))
    return made


@pytest.mark.parametrize("how", every_end(), ids=lambda how: f"{how.reason.value}-{how.by}")
def test_every_exit_is_a_sentence_with_an_actor(how):
    assert EXIT_KINDS[how.reason]
    assert how.by
    assert how.message == how.message.strip()
    assert how.message.endswith(".")


def test_every_reason_is_in_the_table_and_only_what_others_decided_may_come_back_unasked():
    assert set(EXIT_KINDS) == set(ExitReason)
    assert {reason for reason, one in EXIT_KINDS.items() if one.returns is QueueReturn.BY_POLICY} == {
        ExitReason.PREEMPTED,
        ExitReason.MADE_ROOM,
    }


def test_a_death_announced_by_the_cluster_was_a_preemption():
    how = exits.released("died", user="ann", up=True, disruption="Training needs it.", stopper="")
    assert how == Exit(ExitReason.PREEMPTED, "cluster", "Training needs it.")


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_an_impossible_run_has_ended_and_every_other_is_stopping(phase, gone):
    how = Exit(ExitReason.IDLE, "gpuspawner", "Why.")
    lease = a_lease(phase=phase)
    finished = finish(lease, how, 9.0, gone=gone)
    over = phase in {Phase.QUEUED, Phase.PARKED} or (gone and phase is Phase.RESERVED)
    assert finished.phase is (Phase.ENDED if over else Phase.STOPPING)
    if phase is not Phase.STOPPING:
        assert (finished.reason, finished.ended_by, finished.message) == (how.reason, how.by, how.message)
    if not over:
        assert finished.hub_gone is gone


def test_a_later_name_replaces_only_what_was_told_without_one():
    untold = exits.stopped_from_hub("")
    assert untold.message == "It was stopped from the hub. It is not known who stopped it.", "nobody is guessed"
    assert exits.named(untold, "ann", "root") == exits.stopped_from_hub("root")
    cancelled = exits.released("cancelled", user="ann", up=False, disruption="", stopper="")
    assert exits.named(cancelled, "ann", "ann") is None
    assert exits.named(cancelled, "ann", "root").message == "The start was cancelled by root."
    assert exits.named(exits.DIED, "ann", "root") is None
