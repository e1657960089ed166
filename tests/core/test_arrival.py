"""Whether anybody comes to a workspace that came while its user was away."""

from dataclasses import replace

import pytest
from evidence_builders import LOW, exclusive, sample, shared
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import a_lease

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, SoftReading
from gpuspawner.core.idle.verdicts import Arrival, Sign, Turn, resume_arrival, sign_of, wait_on
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.lifetimes import move_back
from gpuspawner.core.leases.transitions import recover

POLICY = IdlePolicy()
CLAIM = 1800.0
QUIET = tuple(SoftReading(name, active=False) for name in PROBED)
NOBODY, SOMEBODY, UNKNOWN = Sign(came=False), Sign(came=True, words="opened"), Sign(None)


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
    assert sign_of(read_evidence(told, POLICY)).came is came


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
def test_it_is_given_back_only_where_nobody_came_who_was_warned_and_only_under_enforce(steps, only):
    arrival, told, known, passed = Arrival(CLAIM), None, 0.0, 0.0
    for sign, credit, any_mode, restarts in steps:
        mode = only or any_mode
        if restarts:
            arrival = resume_arrival(arrival, POLICY)
        arrival, turn = wait_on(arrival, sign, credit, POLICY, mode)
        passed, known = passed + credit, known + (credit if sign is NOBODY else 0.0)
        assert (turn is Turn.CAME) == (sign is SOMEBODY)
        if turn is Turn.WARN:
            assert told is None
            assert mode is not Mode.OBSERVE
            assert known >= CLAIM / 2 * POLICY.coverage
            told = passed
        elif turn is Turn.NOBODY_CAME:
            assert (mode, sign) == (Mode.ENFORCE, NOBODY)
            assert told is not None
            assert passed - told >= CLAIM / 2
            assert known >= CLAIM * POLICY.coverage
        if turn in {Turn.CAME, Turn.OVER, Turn.NOBODY_CAME}:
            return


@given(steps=STEPS)
def test_nobody_waits_for_ever(steps):
    """However samples fail, it is over by the time that its unknown part could hide: nothing shields an idle GPU."""
    arrival, passed = Arrival(CLAIM), 0.0
    for sign, credit, _, _ in steps:
        arrival, turn = wait_on(arrival, sign, credit, POLICY, Mode.ENFORCE)
        passed += credit
        if turn not in {Turn.WAITS, Turn.WARN}:
            return
    assert passed < 1.5 * CLAIM / POLICY.coverage + 180


def hours_of(mode, sign=NOBODY):
    """The minutes after which something follows, and what."""
    arrival, seen = Arrival(CLAIM), []
    for minute in range(1, 200):
        arrival, turn = wait_on(arrival, sign, 60.0, POLICY, mode)
        if turn is not Turn.WAITS:
            seen.append((minute, turn))
        if turn in {Turn.OVER, Turn.NOBODY_CAME}:
            break
    return seen


@pytest.mark.parametrize(
    ("mode", "sign", "seen"),
    [
        (Mode.ENFORCE, NOBODY, [(15, Turn.WARN), (30, Turn.NOBODY_CAME)]),
        (Mode.WARN, NOBODY, [(15, Turn.WARN), (30, Turn.OVER)]),
        (Mode.OBSERVE, NOBODY, [(30, Turn.OVER)]),
        (Mode.ENFORCE, UNKNOWN, [(30, Turn.OVER)]),
    ],
)
def test_halfway_it_is_told_and_in_the_end_given_back_under_enforce(mode, sign, seen):
    assert hours_of(mode, sign) == seen


def test_a_change_to_enforce_after_the_time_is_told_before_it_is_carried_out():
    arrival, turn = wait_on(Arrival(CLAIM, CLAIM - 60, CLAIM - 60), NOBODY, 90.0, POLICY, Mode.ENFORCE)
    assert (turn, arrival.left_seconds) == (Turn.WARN, CLAIM / 2)


@given(st.floats(0, CLAIM), st.floats(0, CLAIM / 2))
def test_a_service_that_was_away_leaves_time_to_object(passed, since):
    arrival = Arrival(CLAIM, passed, passed, max(0.0, passed - since))
    back = resume_arrival(arrival, POLICY)
    assert back.left_seconds == pytest.approx(max(arrival.left_seconds, 180.0), abs=1e-6)
    assert resume_arrival(Arrival(CLAIM, passed), POLICY) == Arrival(CLAIM, passed)
    assert 0 <= back.absent_seconds <= back.passed_seconds


STARTING = replace(a_lease(phase=Phase.STARTING), slots=(Slot("gpu"),), granted_at=5.0, unwatched=True)


def test_only_what_came_while_nobody_looked_waits_for_somebody():
    assert transitions.run(STARTING, "s", 9.0).arrival == Arrival(CLAIM)
    assert transitions.run(replace(STARTING, unwatched=False), "s", 9.0).arrival is None
    assert transitions.run(replace(STARTING, slots=()), "s", 9.0).arrival is None
    assert transitions.run(replace(STARTING, adopted=True), "s", 9.0).arrival is None, "nobody knows who came meanwhile"
    dropped = transitions.drop_start(STARTING, 9.0)
    assert recover(dropped, "s", 1, STARTING.slots, 9.0).arrival is None


def test_keep_is_somebody_and_a_clock_that_went_back_moves_when_they_came():
    kept = transitions.keep(transitions.run(STARTING, "s", 9.0), until=99.0, now=20.0)
    assert (kept.arrival, kept.claimed_at, kept.kept_until) == (None, 20.0, 99.0)
    assert move_back(kept, 5.0).claimed_at == 15.0
    assert (
        transitions.keep(transitions.run(replace(STARTING, unwatched=False), "s", 9.0), 99.0, 20.0).claimed_at is None
    )
