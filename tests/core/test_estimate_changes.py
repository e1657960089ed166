"""The history says why an estimated start moved, if something happened that explains it."""

from dataclasses import replace

import pytest

from gpuspawner.core.events import EstimateMoved
from gpuspawner.core.queue.estimate_changes import QueueState, explain_move

BEFORE = QueueState(5000.0, {"anna": 9000.0, "bert": 9000.0, "new": None}, frozenset({"carl"}), 4)


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
