"""The explanation of a streak: its state, its numbers, and the GPUs that could not be read for long."""

from __future__ import annotations

import pytest
from streak_player import ENFORCE, OBSERVE, POLICY, WARN, play

from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.verdicts import Explanation, IdleState, explain


def test_explain_gives_the_numbers_of_the_sentence() -> None:
    streak, _ = play(["busy", "idle", "idle", "idle", "unknown"])
    assert explain(streak, POLICY) == Explanation(
        state=IdleState.UNKNOWN,
        idle_seconds=180.0,
        for_seconds=1800.0,
        because="GPU 0 can't be read (no utilization)",
        known_share=0.75,
        peak_percent=1.0,
        grace_left_seconds=None,
        unreadable=(),
        soft_left_seconds=3360.0,
    )


@pytest.mark.parametrize(
    ("kinds", "mode", "state"),
    [
        pytest.param([], ENFORCE, IdleState.UNMEASURED, id="nothing yet"),
        pytest.param(["busy"], ENFORCE, IdleState.BUSY, id="busy"),
        pytest.param(["soft"], ENFORCE, IdleState.SOFT, id="held by softer evidence"),
        pytest.param(["idle"], ENFORCE, IdleState.IDLE, id="idle"),
        pytest.param(32 * ["idle"], WARN, IdleState.GRACE, id="grace"),
        pytest.param([*32 * ["idle"], "unknown"], ENFORCE, IdleState.GRACE_PAUSED, id="grace, paused"),
        pytest.param([*32 * ["idle"], "soft"], ENFORCE, IdleState.SOFT, id="used again, perhaps"),
        pytest.param([*32 * ["idle"], "busy"], ENFORCE, IdleState.BUSY, id="used again"),
        pytest.param(32 * ["idle"], OBSERVE, IdleState.IDLE, id="an imagined grace is not shown"),
    ],
)
def test_explain_names_the_state(kinds: list[str], mode: Mode, state: IdleState) -> None:
    assert explain(play(kinds, mode=mode)[0], POLICY).state is state


def test_a_gpu_unknown_for_two_hours_is_told() -> None:
    streak, _ = play(119 * ["unknown"])
    assert (explain(streak, POLICY).unreadable, explain(streak, POLICY).known_share) == ((), 1.0)
    streak, _ = play(["unknown"], streak=streak)
    assert explain(streak, POLICY).unreadable == (("a", 7200.0),)
