"""What of a streak and its grace survives a restart: read back as it was stored, and refused where it is spoilt."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from idleness_play import BEGIN, ENFORCE, FAST, GRACE, OBSERVE, POLICY, RECLAIM, WARN, play, sample

from gpuspawner.core.idle.idleness import Streak, after_restart, judge
from gpuspawner.core.idle.policy import IdlePolicy


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
    assert after_restart(streak, policy) == replace(streak, countdown_seconds=remains_seconds)


@pytest.mark.parametrize(
    "streak",
    [
        pytest.param(Streak(idle_seconds=600, observed_seconds=600, mode=ENFORCE), id="not in grace"),
        pytest.param(Streak(countdown_seconds=0.0, mode=WARN), id="nobody is stopped: nothing to tell again"),
        pytest.param(Streak(countdown_seconds=0.0, mode=OBSERVE), id="nobody was told"),
    ],
)
def test_a_restart_leaves_other_streaks_alone(streak: Streak) -> None:
    assert after_restart(streak, POLICY) == streak


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
            streak = after_restart(Streak.from_json(json.loads(json.dumps(asdict(streak)))), policy)
        streak, verdict = judge(streak, sample("idle", policy.sample_seconds), policy, ENFORCE)
        verdicts.append(verdict)
        passed_seconds += policy.sample_seconds if verdict in {GRACE, RECLAIM} else 0.0
        if verdict is RECLAIM:
            break
    assert (verdicts.count(BEGIN), verdicts[-1]) == (1, RECLAIM)
    assert policy.grace_seconds <= passed_seconds <= 2 * policy.grace_seconds


def test_a_stored_streak_is_read_back_as_it_was() -> None:
    streak, _ = play([*30 * ["idle"], "idle", "unknown"])
    assert streak.unknown_since
    assert Streak.from_json(json.loads(json.dumps(asdict(streak)))) == streak
    assert Streak.from_json(asdict(Streak())) == Streak()


GOOD = json.loads(json.dumps(asdict(play([*31 * ["idle"], "unknown"])[0])))


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({}, id="empty"),
        pytest.param({k: v for k, v in GOOD.items() if k != "because"}, id="a field missing"),
        pytest.param({**GOOD, "more": 1}, id="a field too many"),
        *(
            pytest.param({**GOOD, name: value}, id=f"{name}={value!r:.20}")
            for name, values in {
                "idle_seconds": (None, True, "60", -1, float("nan"), float("inf"), 10**400),
                "observed_seconds": (None, []),
                "since_busy_seconds": (None, {}),
                "unknown_in_a_row": (None, 1.0, True, -1),
                "peak_percent": ("1", -1),
                "countdown_seconds": (False, -1),
                "perhaps_ago_seconds": (False, -1),
                "mode": (None, "off", []),
                "kind": ("odd", 1, []),
                "because": (None, 1),
                "unknown_since": (None, "ab", ["ab"], [1], [["a"]], [["a", 1, 2]], [[1, 1]], [["a", "1"]], {"a": 1}),
            }.items()
            for value in values
        ),
    ],
)
def test_a_bad_stored_streak_is_refused(stored: object) -> None:
    with pytest.raises(ValueError):
        Streak.from_json(stored)
