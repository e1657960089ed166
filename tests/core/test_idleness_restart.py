"""A streak and its grace after a restart: read as stored, and refused if damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError
from streak_player import BEGIN, ENFORCE, FAST, GRACE, OBSERVE, POLICY, RECLAIM, WARN, evidence, play

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.verdicts import Streak, judge, resume_streak

STORED = TypeAdapter(Streak)


def stored(streak: Streak) -> Streak:
    """Return a streak as the store reads it back."""
    return STORED.validate_json(STORED.dump_json(streak))


@pytest.mark.parametrize(
    ("policy", "left_seconds", "remains_seconds"),
    [
        pytest.param(POLICY, 600.0, 600.0, id="never more than was left, where enough was"),
        pytest.param(POLICY, 181.0, 181.0, id="just enough was left"),
        pytest.param(POLICY, 60.0, 180.0, id="two samples and a minute"),
        pytest.param(POLICY, 0.0, 180.0, id="passed, but not carried out"),
        pytest.param(FAST, 1.0, 5.0, id="at most the grace"),
    ],
)
def test_after_a_restart_enough_of_the_grace_remains(
    policy: IdlePolicy, left_seconds: float, remains_seconds: float
) -> None:
    streak = Streak(idle_seconds=1800, observed_seconds=1800, countdown_seconds=left_seconds, mode=ENFORCE)
    assert resume_streak(streak, policy) == replace(streak, countdown_seconds=remains_seconds)


@pytest.mark.parametrize(
    "streak",
    [
        pytest.param(Streak(idle_seconds=600, observed_seconds=600, mode=ENFORCE), id="not in grace"),
        pytest.param(Streak(countdown_seconds=0.0, mode=WARN), id="no workspace is stopped: no second warning"),
        pytest.param(Streak(countdown_seconds=0.0, mode=OBSERVE), id="no user was warned"),
    ],
)
def test_a_restart_leaves_other_streaks_alone(streak: Streak) -> None:
    assert resume_streak(streak, POLICY) == streak


@pytest.mark.parametrize(
    ("every", "policy"),
    [
        pytest.param(20, POLICY, id="every 20 minutes"),
        pytest.param(4, POLICY, id="every 4 minutes, more often than the grace is long"),
        pytest.param(20, FAST, id="every 20 minutes at a sample a second"),
    ],
)
@pytest.mark.parametrize("phase", range(4))
def test_a_service_restarted_again_and_again_lets_the_grace_pass_once(
    every: int, policy: IdlePolicy, phase: int
) -> None:
    streak, verdicts, passed_seconds = Streak(), [], 0.0
    for minute in range(1, 121):
        if (minute + phase) % every == 0:
            streak = resume_streak(stored(streak), policy)
        streak, verdict = judge(streak, evidence("idle", policy.sample_seconds), policy, ENFORCE)
        verdicts.append(verdict)
        passed_seconds += policy.sample_seconds if verdict in {GRACE, RECLAIM} else 0.0
        if verdict is RECLAIM:
            break
    assert (verdicts.count(BEGIN), verdicts[-1]) == (1, RECLAIM)
    assert policy.grace_seconds <= passed_seconds <= 2 * policy.grace_seconds


def test_a_stored_streak_is_read_back_as_it_was() -> None:
    streak, _ = play([*30 * ["idle"], "idle", "unknown"])
    assert streak.unknown_since
    assert stored(streak) == streak
    assert stored(Streak()) == Streak()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("null", id="nothing"),
        pytest.param("[]", id="a list"),
        pytest.param('{"idle_seconds": null}', id="no seconds"),
        pytest.param('{"mode": "off"}', id="no mode"),
        pytest.param('{"kind": "odd"}', id="no kind"),
        pytest.param('{"unknown_since": [["a"]]}', id="no time of a GPU"),
    ],
)
def test_a_bad_stored_streak_is_refused(document: str) -> None:
    with pytest.raises(ValidationError):
        STORED.validate_json(document)
