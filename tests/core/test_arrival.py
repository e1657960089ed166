"""Whether anybody comes to a workspace that came while its user was away."""

from dataclasses import replace

import pytest
from evidence_builders import LOW, exclusive, sample, shared
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import a_lease

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.arrival import (
    Arrival,
    ArrivalSign,
    ArrivalStep,
    advance_arrival,
    arrival_sign,
    resume_arrival,
)
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, SoftReading
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.lifetimes import move_back
from gpuspawner.core.leases.transitions import recover

POLICY = IdlePolicy()
CLAIM = 1800.0
QUIET = tuple(SoftReading(name, active=False) for name in PROBED)
NOBODY, SOMEBODY, UNKNOWN = ArrivalSign(came=False), ArrivalSign(came=True, words="opened"), ArrivalSign(None)


def quiet_but(name, active, words="seen"):
    return tuple(SoftReading(name, active, words) if one.name == name else one for one in QUIET)


@pytest.mark.parametrize(
    ("told", "came"),
    [
        pytest.param(sample(LOW, soft=QUIET, opened=False), False, id="nobody"),
        pytest.param(sample(LOW, soft=QUIET, opened=True), True, id="a page was loaded"),
        pytest.param(sample(exclusive(50.0), soft=QUIET, opened=False), True, id="GPU work"),
        *(pytest.param(sample(LOW, soft=quiet_but(x, active=True), opened=False), True, id=x) for x in PROBED),
        *(pytest.param(sample(LOW, soft=quiet_but(x, None), opened=False), None, id=f"{x} unknown") for x in PROBED),
        pytest.param(sample(LOW, soft=QUIET, opened=None), None, id="an older extension, or none"),
        pytest.param(sample(exclusive(None), soft=QUIET, opened=False), None, id="a GPU that can't be read"),
        pytest.param(sample(shared(1, None), soft=QUIET, opened=False), None, id="a shared GPU's first sample"),
        pytest.param(sample(exclusive(1.0, holders_cpu_cores=0.5), soft=QUIET, opened=False), None, id="perhaps work"),
        pytest.param(sample(LOW, soft=QUIET, opened=True, problem="no answer"), None, id="a failed probe"),
        pytest.param(sample(LOW, soft=QUIET, opened=False, age_seconds=1.0), False, id="young"),
    ],
)
def test_each_kind_of_evidence_claims_and_what_is_unknown_says_nothing(told, came):
    assert arrival_sign(read_evidence(told, POLICY)).came is came


STEPS = st.lists(
    st.tuples(
        st.sampled_from([NOBODY, NOBODY, NOBODY, UNKNOWN, SOMEBODY]),
        st.sampled_from([0.0, 60.0, 60.0, 90.0]),
        st.sampled_from(Mode),
        st.booleans(),
    ),
    max_size=120,
)


@given(steps=STEPS, only=st.sampled_from([None, *Mode]))
def test_a_claim_is_given_back_only_after_a_warned_absence_under_enforce(steps, only):
    arrival, told, known, passed = Arrival(CLAIM), None, 0.0, 0.0
    for sign, credit, any_mode, restarts in steps:
        mode = only or any_mode
        if restarts:
            arrival = resume_arrival(arrival, POLICY)
        arrival, turn = advance_arrival(arrival, sign, credit, POLICY, mode)
        passed, known = passed + credit, known + (credit if sign is NOBODY else 0.0)
        assert (turn is ArrivalStep.CAME) == (sign is SOMEBODY)
        if turn is ArrivalStep.WARN:
            assert told is None
            assert mode is not Mode.OBSERVE
            assert known >= CLAIM / 2 * POLICY.coverage
            told = passed
        elif turn is ArrivalStep.NOBODY_CAME:
            assert (mode, sign) == (Mode.ENFORCE, NOBODY)
            assert told is not None
            assert passed - told >= CLAIM / 2
            assert known >= CLAIM * POLICY.coverage
        if turn in {ArrivalStep.CAME, ArrivalStep.OVER, ArrivalStep.NOBODY_CAME}:
            return


@given(steps=STEPS)
def test_no_claim_waits_for_ever(steps):
    """However samples fail, it is over by the time that its unknown part could hide: nothing shields an idle GPU."""
    arrival, passed = Arrival(CLAIM), 0.0
    for sign, credit, _, _ in steps:
        arrival, turn = advance_arrival(arrival, sign, credit, POLICY, Mode.ENFORCE)
        passed += credit
        if turn not in {ArrivalStep.WAITS, ArrivalStep.WARN}:
            return
    assert passed < 1.5 * CLAIM / POLICY.coverage + 180


def hours_of(mode, sign=NOBODY):
    """The minutes after which something follows, and what."""
    arrival, seen = Arrival(CLAIM), []
    for minute in range(1, 200):
        arrival, turn = advance_arrival(arrival, sign, 60.0, POLICY, mode)
        if turn is not ArrivalStep.WAITS:
            seen.append((minute, turn))
        if turn in {ArrivalStep.OVER, ArrivalStep.NOBODY_CAME}:
            break
    return seen


@pytest.mark.parametrize(
    ("mode", "sign", "seen"),
    [
        (Mode.ENFORCE, NOBODY, [(15, ArrivalStep.WARN), (30, ArrivalStep.NOBODY_CAME)]),
        (Mode.WARN, NOBODY, [(15, ArrivalStep.WARN), (30, ArrivalStep.OVER)]),
        (Mode.OBSERVE, NOBODY, [(30, ArrivalStep.OVER)]),
        (Mode.ENFORCE, UNKNOWN, [(30, ArrivalStep.OVER)]),
    ],
)
def test_halfway_it_is_told_and_in_the_end_given_back_under_enforce(mode, sign, seen):
    assert hours_of(mode, sign) == seen


def test_a_change_to_enforce_after_the_time_is_told_before_it_is_carried_out():
    arrival, turn = advance_arrival(Arrival(CLAIM, CLAIM - 60, CLAIM - 60), NOBODY, 90.0, POLICY, Mode.ENFORCE)
    assert (turn, arrival.left_seconds) == (ArrivalStep.WARN, CLAIM / 2)


@given(st.floats(0, CLAIM), st.floats(0, CLAIM / 2))
def test_a_service_that_was_away_leaves_time_to_object(passed, since):
    arrival = Arrival(CLAIM, passed, passed, max(0.0, passed - since))
    back = resume_arrival(arrival, POLICY)
    assert back.left_seconds == pytest.approx(max(arrival.left_seconds, 180.0), abs=1e-6)
    assert resume_arrival(Arrival(CLAIM, passed), POLICY) == Arrival(CLAIM, passed)
    assert 0 <= back.absent_seconds <= back.passed_seconds


STARTING = replace(a_lease(phase=Phase.STARTING), slots=(Slot("gpu"),), granted_at=5.0, unwatched=True)


def test_only_unattended_arrivals_wait_for_a_visit():
    assert transitions.run(STARTING, "s", 9.0).arrival == Arrival(CLAIM)
    assert transitions.run(replace(STARTING, unwatched=False), "s", 9.0).arrival is None
    assert transitions.run(replace(STARTING, slots=()), "s", 9.0).arrival is None
    assert transitions.run(replace(STARTING, adopted=True), "s", 9.0).arrival is None, (
        "an arrival in between is not known"
    )
    dropped = transitions.drop_start(STARTING, 9.0)
    assert recover(dropped, "s", 1, STARTING.slots, 9.0).arrival is None


def test_keep_counts_as_a_visit_and_a_clock_moved_back_moves_the_visit_time():
    kept = transitions.keep(transitions.run(STARTING, "s", 9.0), until=99.0, now=20.0)
    assert (kept.arrival, kept.claimed_at, kept.kept_until) == (None, 20.0, 99.0)
    assert move_back(kept, 5.0).claimed_at == 15.0
    assert (
        transitions.keep(transitions.run(replace(STARTING, unwatched=False), "s", 9.0), 99.0, 20.0).claimed_at is None
    )
