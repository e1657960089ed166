"""Transitions of a lease, its wait reasons, and the revisions of its claims."""

from dataclasses import replace

import pytest
from lease_builders import NOW, a_lease, a_request, slots

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases import successors, transitions
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import HOLDING, JOINABLE, UP, WAITING, Phase
from gpuspawner.core.leases.lifetimes import deciding_since, last_moment, move_back
from gpuspawner.core.leases.transitions import BACK_OFF_SECONDS, START_LIMIT, clear_wait_reason, set_wait_reason
from gpuspawner.core.queue.snapshot import claim_of

LATER = NOW + 100.0
SLOTS = slots("a100-0")
OTHER_REQUEST = a_request(count=2)


def rejoin(lease, request=None, start_id="start-2"):
    return transitions.join(lease, request or lease.request, {"new": 1}, start_id=start_id, boot_id="boot-2", now=LATER)


STEPS = {
    "join by the same request": (
        rejoin,
        {
            Phase.QUEUED: Phase.QUEUED,
            Phase.PARKED: Phase.QUEUED,
            Phase.RESERVED: Phase.RESERVED,
            Phase.STARTING: Phase.RESERVED,
        },
    ),
    "join by a changed request": (lambda x: rejoin(x, OTHER_REQUEST), dict.fromkeys(JOINABLE, Phase.QUEUED)),
    "grant": (lambda x: transitions.grant(x, SLOTS, LATER), dict.fromkeys(WAITING, Phase.RESERVED)),
    "acknowledge": (
        lambda x: transitions.acknowledge(x, "hash", LATER),
        dict.fromkeys([Phase.RESERVED, Phase.STARTING], Phase.STARTING),
    ),
    "hear": (
        lambda x: transitions.note_heard(x, LATER),
        {phase: Phase.QUEUED if phase is Phase.PARKED else phase for phase in Phase},
    ),
    "park": (
        lambda x: transitions.park(x, LATER),
        dict.fromkeys([Phase.QUEUED, Phase.PARKED, Phase.RESERVED], Phase.PARKED),
    ),
    "drop": (lambda x: transitions.drop_start(x, LATER), dict.fromkeys([Phase.RESERVED, Phase.STARTING], Phase.PARKED)),
    "requeue": (lambda x: transitions.requeue(x, "taken", 30.0, LATER), {Phase.STARTING: Phase.PARKED}),
    "run": (lambda x: transitions.run(x, "then", LATER), {Phase.STARTING: Phase.RUNNING}),
    "disrupt": (
        lambda x: transitions.disrupt(x, "preempted", LATER + 30),
        {phase: phase for phase in UP | {Phase.STARTING}},
    ),
    "begin grace": (lambda x: transitions.begin_grace(x, LATER), {Phase.RUNNING: Phase.RECLAIMING}),
    "end grace": (lambda x: transitions.end_grace(x, LATER), {Phase.RECLAIMING: Phase.RUNNING}),
    "keep": (lambda x: transitions.keep(x, LATER + 7200, LATER), dict.fromkeys(UP, Phase.RUNNING)),
    "stop": (
        lambda x: transitions.stop(x, ExitReason.IDLE, "gpuspawner", "why", LATER),
        dict.fromkeys(set(Phase) - {Phase.ENDED}, Phase.STOPPING),
    ),
    "end": (lambda x: transitions.end(x, LATER), {Phase.STOPPING: Phase.ENDED}),
}
CASES = [
    pytest.param(step, phase, goes.get(phase), id=f"{name}, {phase.value}")
    for name, (step, goes) in STEPS.items()
    for phase in Phase
]


@pytest.mark.parametrize(("step", "phase", "to"), CASES)
def test_each_step_goes_from_its_phases_and_from_no_other(step, phase, to):
    lease = a_lease(phase=phase, held=SLOTS if phase in HOLDING else ())
    if to is None:
        with pytest.raises(Conflict, match=phase.value):
            step(lease)
        return
    after = step(lease)
    assert after.phase is to
    assert (after.id, after.key, after.user) == (lease.id, lease.key, lease.user)
    assert bool(after.slots) == (to in HOLDING and bool(lease.slots or step is STEPS["grant"][0])) or to is Phase.ENDED


@pytest.mark.parametrize("phase", sorted(JOINABLE))
def test_a_repeated_message_of_the_same_start_changes_nothing_but_when_it_was_heard(phase):
    lease = a_lease(phase=phase, held=SLOTS if phase in HOLDING else ())
    again = rejoin(lease, OTHER_REQUEST, start_id="start-1")
    waits = Phase.QUEUED if phase is Phase.PARKED else phase
    assert again == replace(lease, phase=waits, heard_at=LATER)


@pytest.mark.parametrize(
    ("changed", "keeps"),
    [
        pytest.param({}, True, id="the same"),
        pytest.param({"count": 1}, True, id="fewer"),
        pytest.param({"memory_bytes": 2, "lifetime_seconds": 60, "cpu_cores": 1.0}, True, id="other sizes"),
        pytest.param({"template": "other"}, True, id="another template"),
        pytest.param({"count": 3}, False, id="more"),
        pytest.param({"gpu": "t4"}, False, id="another kind"),
        pytest.param({"gpu": None, "count": 0}, False, id="no GPU"),
    ],
)
@pytest.mark.parametrize("phase", sorted(JOINABLE))
def test_a_place_is_lost_only_to_more_gpus_or_another_kind(phase, changed, keeps):
    lease = a_lease(phase=phase, request=a_request(count=2), held=SLOTS if phase in HOLDING else ())
    joined = rejoin(lease, replace(lease.request, **changed))
    assert joined.asked_at == (lease.asked_at if keeps else LATER)
    assert (joined.attempt, joined.start_id, joined.boot_id) == (lease.attempt + 1, "start-2", "boot-2")
    assert joined.options == {"new": 1}
    assert not joined.unattended
    assert joined.slots == (lease.slots if changed == {} else ())


def test_a_new_start_ends_the_back_off_and_keeps_the_count_of_failed_ones():
    backs_off = a_lease(phase=Phase.PARKED, not_before=LATER + 60, failed_starts=2, unattended=True)
    joined = rejoin(backs_off)
    assert (joined.not_before, joined.failed_starts) == (0.0, 2)


def test_a_dropped_start_lets_others_pass_for_longer_each_time_and_the_third_ends_it():
    lease = a_lease(phase=Phase.RESERVED, held=SLOTS)
    assert len(BACK_OFF_SECONDS) == START_LIMIT - 1, "a wait that nothing reaches would be promised in vain"
    for number, wait_seconds in enumerate(BACK_OFF_SECONDS, 1):
        parked = transitions.drop_start(lease, LATER)
        assert (parked.phase, parked.failed_starts, parked.slots) == (Phase.PARKED, number, ())
        assert parked.not_before == LATER + wait_seconds
        assert (parked.asked_at, parked.unattended) == (lease.asked_at, True)
        lease = transitions.grant(parked, SLOTS, LATER)
    ended = transitions.drop_start(lease, LATER)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.FAILED, "gpuspawner")
    assert "3 tries" in ended.message


def test_the_last_back_off_serves_all_later_ones():
    dropped = transitions.drop_start(a_lease(phase=Phase.RESERVED, failed_starts=1), LATER, (60.0,))
    assert dropped.not_before == LATER + 60.0


def test_a_dropped_start_is_over_and_a_lapsed_reservation_may_still_be_taken_up():
    assert transitions.drop_start(a_lease(phase=Phase.STARTING, attempt=4), LATER).attempt == 5
    assert transitions.drop_start(a_lease(phase=Phase.RESERVED, attempt=4), LATER).attempt == 4


def test_the_lifetime_counts_from_running_not_from_the_grant():
    running = transitions.run(a_lease(phase=Phase.STARTING, failed_starts=2), "then", LATER)
    assert (running.running_at, running.deadline_at, running.failed_starts) == (LATER, LATER + 3600, 0)


def test_the_lifetime_of_a_rebuilt_lease_counts_from_its_grant():
    rebuilt = a_lease(phase=Phase.STARTING, adopted=True, granted_at=NOW - 600)
    assert transitions.run(rebuilt, "then", LATER).deadline_at == NOW + 3000


def test_keep_ends_the_streak_and_counts():
    warned = a_lease(phase=Phase.RECLAIMING, streak=Streak(idle_seconds=1800.0, countdown_seconds=5.0), keeps_used=1)
    kept = transitions.keep(warned, LATER + 7200, LATER)
    assert (kept.keeps_used, kept.kept_until) == (2, LATER + 7200)
    assert (kept.streak.idle_seconds, kept.streak.countdown_seconds) == (0.0, None)


def test_the_first_reason_of_a_stop_stands():
    first = transitions.stop(a_lease(phase=Phase.RUNNING), ExitReason.IDLE, "gpuspawner", "idle", LATER)
    assert transitions.stop(first, ExitReason.FAILED, "hub", "died", LATER + 1) is first


def test_an_acknowledgement_may_be_repeated():
    first = transitions.acknowledge(a_lease(phase=Phase.RESERVED), "one", LATER)
    again = transitions.acknowledge(first, "two", LATER + 5)
    assert (again.phase_since, again.token_hash, again.heard_at) == (LATER, "two", LATER + 5)


def test_a_token_ends_with_its_lease_and_with_a_dropped_start():
    starting = a_lease(phase=Phase.STARTING, token_hash="hash")
    assert transitions.drop_start(starting, LATER).token_hash == ""
    stopping = transitions.stop(starting, ExitReason.STOPPED, "alice", "", LATER)
    assert transitions.end(stopping, LATER).token_hash == ""
    assert stopping.live
    assert not transitions.end(stopping, LATER).live


def test_a_lease_whose_times_go_back_is_as_old_and_as_far_from_its_end_as_before():
    lease = a_lease("one", Phase.RUNNING, asked_at=NOW, kept_until=NOW + 50, sampled_at=NOW + 30)
    assert last_moment(lease) == NOW + 30
    back = move_back(lease, 3600.0)
    assert (back.asked_at, back.running_at, back.sampled_at) == (NOW - 3600, NOW - 3600, NOW - 3570)
    assert (back.deadline_at, back.kept_until) == (NOW, NOW - 3550)
    assert (back.not_before, back.stop_sent_at, back.disrupted_until) == (0.0, None, None), "what never was stays so"
    assert move_back(back, -3600.0) == lease


def test_an_unsuccessful_grant_waits_at_its_old_place_and_counts_as_no_failure():
    starting = a_lease(phase=Phase.STARTING, held=SLOTS, attempt=2, failed_starts=1, token_hash="hash")
    parked = transitions.requeue(starting, "taken by another pod", 30.0, LATER)
    assert (parked.asked_at, parked.slots, parked.granted_at, parked.unattended) == (starting.asked_at, (), None, True)
    assert (parked.attempt, parked.failed_starts, parked.token_hash) == (3, 0, "")
    assert (parked.not_before, parked.message) == (LATER + 30, "taken by another pod")
    assert parked.tried_nodes == ()
    again = transitions.join(parked, parked.request, {}, start_id="next", boot_id="boot-1", now=LATER)
    assert again.not_before == LATER + 30, "or its start would ask again and again, whatever was dropped before"


def test_the_nodes_without_room_are_remembered_the_last_one_last_and_not_without_end():
    tried = a_lease("a", Phase.STARTING, tried_nodes=("one", "two"))
    assert transitions.requeue(tried, "no room", 30.0, LATER, "one").tried_nodes == ("two", "one")
    many = replace(tried, tried_nodes=tuple(map(str, range(transitions.MOST_TRIED))))
    assert transitions.requeue(many, "no room", 30.0, LATER, "new").tried_nodes == (*many.tried_nodes[1:], "new")


def test_an_evicted_lease_waits_again_as_a_new_lease_at_its_old_place():
    ended = a_lease("old", Phase.ENDED, boot_id="boot-1", attempt=3, failed_starts=1, token_hash="hash")
    new = successors.successor(ended, "new", LATER)
    assert (new.id, new.phase, new.key, new.request) == ("new", Phase.PARKED, ended.key, ended.request)
    assert (new.asked_at, new.phase_since, new.heard_at, new.boot_id) == (ended.asked_at, LATER, LATER, "boot-1")
    assert (new.unattended, new.slots, new.attempt, new.failed_starts, new.token_hash) == (True, (), 1, 0, "")


@pytest.mark.parametrize(
    ("reason", "by", "before_later"),
    [
        (ExitReason.PREEMPTED, "cluster", True),
        (ExitReason.MOVED, "alice", True),
        (ExitReason.MADE_ROOM, "root", True),
        (ExitReason.MADE_ROOM, "gpuspawner", False),
    ],
)
def test_an_evicted_lease_returns_before_later_requests_unless_it_exceeded_its_share(reason, by, before_later):
    new = successors.successor(a_lease("old", Phase.ENDED, reason=reason, ended_by=by), "new", LATER)
    assert (new.came_back, new.made_room_at) == (before_later, LATER if reason is ExitReason.MADE_ROOM else None)


def test_the_first_grant_remains_when_a_later_one_follows_an_expiry():
    first = transitions.grant(a_lease(), SLOTS, LATER)
    again = transitions.grant(transitions.park(first, LATER + 60), SLOTS, LATER + 90)
    assert (again.granted_at, again.first_granted_at) == (LATER + 90, LATER)


def test_a_start_that_the_service_made_is_unwatched_until_it_runs():
    unheard = transitions.grant(transitions.park(a_lease(), NOW), SLOTS, NOW)
    joined = rejoin(unheard)
    assert (joined.unattended, joined.unwatched) == (False, True)
    assert rejoin(joined, start_id="start-3").unwatched
    starting = transitions.acknowledge(joined, "hash", LATER)
    assert not transitions.run(starting, "then", LATER).unwatched
    assert not rejoin(transitions.park(a_lease(), NOW)).unwatched, "somebody pressed Start"


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.PARKED, Phase.RESERVED, Phase.ENDED])
def test_a_start_that_was_given_up_runs_after_all_as_it_was_asked(phase):
    reason = ExitReason.FAILED if phase is Phase.ENDED else None
    given_up = replace(a_lease(phase=phase), reason=reason, message="dropped", failed_starts=2, ended_by="gpuspawner")
    assert transitions.ended_by_dropped_starts(given_up) is (phase is Phase.ENDED)
    up = transitions.recover(given_up, "2026-11-24T00:00:00Z", 3, SLOTS, LATER)
    assert (up.phase, up.attempt, up.slots, up.reason, up.message) == (Phase.RUNNING, 3, SLOTS, None, "")
    assert up.deadline_at == LATER + up.request.lifetime_seconds
    assert up.request == given_up.request


def test_a_running_or_stopping_lease_is_not_recovered_again():
    with pytest.raises(Conflict):
        transitions.recover(a_lease(phase=Phase.RUNNING, held=SLOTS), "then", 1, SLOTS, LATER)


@pytest.mark.parametrize(
    ("changes", "since"),
    [
        pytest.param(
            {"reason": ExitReason.IDLE, "sampled_at": NOW - 5, "streak": Streak(observed_seconds=1800.0)},
            NOW - 1805,
            id="its idle time",
        ),
        pytest.param({"reason": ExitReason.EXPIRED, "ended_at": NOW}, NOW - 600, id="the last minutes before its end"),
        pytest.param({"reason": ExitReason.EXPIRED, "phase_since": NOW - 9}, NOW - 609, id="or before its stop began"),
    ],
)
def test_an_end_is_judged_by_the_readings_that_decided(changes, since):
    assert deciding_since(replace(a_lease(phase=Phase.STOPPING), **changes), 600.0) == since


@pytest.mark.parametrize(
    ("reason", "outcome", "sent_at", "ends_as"),
    [
        pytest.param(ExitReason.MOVED, "stopped", None, ExitReason.STOPPED, id="stopped before our own stop"),
        pytest.param(ExitReason.MOVED, "stopped", NOW, ExitReason.MOVED, id="our own stop"),
        pytest.param(ExitReason.CHANGED, "died", None, ExitReason.CHANGED, id="it died"),
        pytest.param(ExitReason.IDLE, "stopped", None, ExitReason.IDLE, id="it does not start again"),
    ],
)
def test_a_lease_to_restart_that_is_stopped_in_the_hub_does_not_restart(reason, outcome, sent_at, ends_as):
    stopping = replace(a_lease(phase=Phase.STOPPING), reason=reason, stop_sent_at=sent_at)
    assert transitions.stopped_in_hub(stopping, outcome).reason is ends_as
    assert not transitions.stops_to_start_again(a_lease())


# --- wait reasons


def test_the_time_of_each_rule_adds_up_and_a_clock_moved_back_removes_no_time():
    waits = a_lease()
    assert clear_wait_reason(waits, NOW) is waits
    first = set_wait_reason(waits, "a quota", "You have 4 of 4.", NOW + 10)
    second = set_wait_reason(first, "a budget", "It is used up.", NOW + 30)
    assert (second.wait_reason.rule, second.wait_reason.since, second.blocked_seconds) == ("a budget", NOW + 30, 20)
    assert clear_wait_reason(second, NOW + 35).blocked_seconds == 25
    assert clear_wait_reason(second, NOW).blocked_seconds == 20


def test_no_rule_holds_back_what_does_not_wait():
    with pytest.raises(Conflict, match="running"):
        set_wait_reason(a_lease(phase=Phase.RUNNING, held=("a100-0",)), "a quota", "", NOW)


# --- revisions of claims


CHANGES = {
    "another attempt": lambda x: transitions.join(x, x.request, {}, start_id="2", boot_id="b", now=NOW),
    "another request": lambda x: replace(x, request=a_request(count=2)),
    "a start that was dropped": lambda x: transitions.drop_start(transitions.grant(x, (), NOW), NOW),
    "a grant that lapsed": lambda x: transitions.lapse(transitions.grant(x, (), NOW), NOW),
    "a hub that went away": lambda x: transitions.park(transitions.grant(x, (), NOW), NOW),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_revision_changes_with_the_request_the_attempt_and_each_expiry(change):
    lease = a_lease("a")
    assert claim_of(change(lease)).revision != claim_of(lease).revision
    assert claim_of(transitions.note_heard(transitions.park(lease, NOW), NOW)).revision == claim_of(lease).revision, (
        "who listens"
    )


def test_an_expired_grant_keeps_its_place_and_other_requests_keep_waiting():
    reserved = transitions.grant(a_lease("a"), (), NOW + 1)
    for lease, phase in ((reserved, Phase.QUEUED), (replace(reserved, unattended=True), Phase.PARKED)):
        lapsed = transitions.lapse(lease, NOW + 2)
        assert (lapsed.phase, lapsed.asked_at, lapsed.attempt, lapsed.granted_at) == (phase, NOW, 1, None)
