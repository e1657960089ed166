"""The history says why an estimated start moved, if something happened that explains it."""

from dataclasses import replace

import pytest
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.events import EstimateMoved
from gpuspawner.core.leases.lease import Phase, PlannedEnd
from gpuspawner.core.queue.estimates import QueueState, explain_move, queue_state
from gpuspawner.core.queue.snapshot import Snapshot, claim_of

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
