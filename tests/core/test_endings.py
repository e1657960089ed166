"""The table of reasons and the ends: complete, one sentence each, and one way to carry them out."""

import inspect
from itertools import product

import pytest
from lease_builders import a_lease

from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import EXIT_KINDS, Exit, ExitReason, QueueReturn
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.reports import OUTCOMES
from gpuspawner.core.leases.transitions import finish


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
