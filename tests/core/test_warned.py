"""The outcome of an idle warning: the workspace was stopped, or the reason why it was kept."""

from dataclasses import replace

import pytest

from gpuspawner.core.administration import summarize_names
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.lifetimes import CARRIED_OUT, settled
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import EndNotice

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
