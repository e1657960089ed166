"""A user's word against an end: whose end, once, answered once; and what is kept of what was parse_dispute_text."""

from dataclasses import replace

import pytest
from lease_builders import NOW, a_lease

from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import LONGEST_DISPUTE_CHARACTERS, Dispute, Phase, parse_dispute_text

ENDED_AT, SINCE, LATER = NOW + 50.0, NOW + 20.0, NOW + 100.0


def ended(reason=ExitReason.IDLE, **changes):
    return a_lease(phase=Phase.ENDED, reason=reason, ended_at=ENDED_AT, seen_by_user=True, **changes)


def test_a_dispute_speaks_of_the_readings_up_to_the_end():
    disputed = transitions.dispute(ended(), "It was busy.", SINCE, LATER)
    assert disputed.dispute == Dispute(LATER, "It was busy.", SINCE, ENDED_AT)
    unknown = transitions.dispute(replace(ended(), ended_at=None), "", SINCE, LATER).dispute
    assert unknown is not None
    assert unknown.until == LATER, "when it ended is not known: the readings up to now"


@pytest.mark.parametrize("reason", ExitReason)
def test_only_an_end_that_others_decided_is_disputed(reason):
    lease = ended(reason)
    assert lease.disputable == (EXIT_KINDS[reason].by_others)
    if lease.disputable:
        transitions.dispute(lease, "", SINCE, LATER)
    else:
        with pytest.raises(Conflict, match=f"ended as {reason.value}"):
            transitions.dispute(lease, "", SINCE, LATER)


def test_a_live_workspace_is_not_disputed_nor_an_end_twice():
    with pytest.raises(Conflict, match="has not ended"):
        transitions.dispute(a_lease(phase=Phase.RUNNING), "", SINCE, LATER)
    with pytest.raises(Conflict, match="said so already"):
        transitions.dispute(transitions.dispute(ended(), "", SINCE, LATER), "", SINCE, LATER + 1)


def test_it_is_answered_once_and_its_user_has_something_new_to_read():
    with pytest.raises(Conflict, match="nothing to answer"):
        transitions.answer(ended(), "Sorry.", "admin", LATER)
    disputed = transitions.dispute(ended(), "It was busy.", SINCE, LATER)
    assert disputed.seen_by_user
    answered = transitions.answer(disputed, "Sorry.", "admin", LATER + 5)
    assert answered.dispute == Dispute(LATER, "It was busy.", SINCE, ENDED_AT, "Sorry.", "admin", LATER + 5)
    assert not answered.seen_by_user
    with pytest.raises(Conflict, match="admin has answered"):
        transitions.answer(answered, "Again.", "other", LATER + 6)


def test_user_text_is_stored_as_one_paragraph_for_every_store():
    assert parse_dispute_text("  one\n\ntwo\tthree \0\ud800 ☃ ") == "one two three ☃"
    assert parse_dispute_text("") == ""
    assert parse_dispute_text("x" * LONGEST_DISPUTE_CHARACTERS) == "x" * LONGEST_DISPUTE_CHARACTERS


@pytest.mark.parametrize(
    ("text", "needed", "asked"),
    [
        pytest.param(None, False, "NoneType", id="nothing"),
        pytest.param(["a"], False, "list", id="a list"),
        pytest.param(
            "x" * (LONGEST_DISPUTE_CHARACTERS + 1), False, f"{LONGEST_DISPUTE_CHARACTERS + 1} characters", id="too long"
        ),
        pytest.param(" \n", True, "0 characters", id="empty, where something is needed"),
    ],
)
def test_a_refusal_names_the_input_and_the_limit(text, needed, asked):
    with pytest.raises(RequestRefused, match=asked) as refused:
        parse_dispute_text(text, needed=needed)
    assert str(LONGEST_DISPUTE_CHARACTERS) in str(refused.value)
