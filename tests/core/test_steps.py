"""The pure step of a lease: what follows for each phase, and that one effect at most follows from it."""

from dataclasses import replace
from fractions import Fraction

import pytest
from evidence_builders import POLICY, exclusive, sample
from lease_builders import NOW, a_lease, slots

from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import ExtendPolicy, LifecyclePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, SoftReading
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases import exits, steps
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.observations import Effect, HubServer, Observation, Outcome, Running, TakenSample
from gpuspawner.core.leases.running_steps import NODE_AWAY, QUIET_SECONDS, fingerprint
from gpuspawner.core.leases.step_results import Extension, LeaseRules, Recovery, Timing, finish
from gpuspawner.core.rules import EndNotice, LatestEnd, Rate

TIMING = Timing(
    listen_seconds=30.0,
    reserved_seconds=30.0,
    heartbeat_seconds=60.0,
    no_room_seconds=20.0,
    no_room_wait_seconds=30.0,
    settle_seconds=3.0,
    stop_retry_seconds=10.0,
    back_off_seconds=(60.0, 120.0),
)
USER, LATER = "alice born", NOW + 1000
ENFORCED = LifecyclePolicy(mode=Mode.ENFORCE, idle=POLICY, extend=ExtendPolicy(warn_seconds=(600.0,)))


def rules(lease, **changes):
    values = {
        "timing": TIMING,
        "lifecycle": ENFORCED,
        "idle": POLICY,
        "exempt_until": None,
        "pod_waits_seconds": 0.0,
        "node_seconds": 0.0,
        "queue_title": "",
        "node": lambda: "node-1",
        "returns_to_queue": lambda: False,
        "budget_used_up": lambda: "The budget is used up.",
        "running": lambda: lease,
        "recovered": lambda: Recovery(lease, lease.attempt),
        "extension": lambda: None,
    }
    return LeaseRules(**{**values, **changes})


def server(started="then", created=USER, *, ready=True, pending=None):
    return HubServer("alice", created, "one", started, ready, pending, "/user/alice")


def process(attempt=1, **changes):
    return Running("one", attempt, **changes)


def step(lease, now=LATER, changes=None, **seen):
    seen = {"hub_answers": True, "heard_at": now, "looked_at": now, **seen}
    return steps.step(lease, Observation(**seen), rules(lease, **(changes or {})), now)


def told(found):
    return [note.event.name for note in found.notes]


def asked(value):
    return Outcome(Effect.ASK_SERVER, value)


# Waiting


def test_a_waiter_is_parked_after_its_silence_and_not_before():
    lease = a_lease()
    silent = step(lease, heard_at=LATER - 31)
    assert (silent.lease.phase, silent.effect) == (Phase.PARKED, None)
    assert step(lease, heard_at=LATER - 29).lease is lease
    assert step(lease, heard_at=LATER - 29).wake_at == LATER + 1


def test_processes_of_an_earlier_attempt_are_ended_and_a_server_that_may_answer_is_asked_for_first():
    lease = a_lease(attempt=2)
    assert step(lease, processes=(process(1),)).effect is Effect.END_OLDER
    assert step(lease, processes=(process(2),)).effect is None
    dropped = replace(lease, failed_starts=1)
    assert step(dropped, processes=(process(1),)).effect is Effect.ASK_SERVER
    assert step(dropped, processes=(process(1),), outcome=asked(None)).effect is Effect.END_OLDER
    found = step(dropped, processes=(process(1),), outcome=asked(server()))
    assert (found.lease.phase, told(found)) == (Phase.RUNNING, ["adopted"])


# Reserved


def test_a_parked_start_that_is_granted_is_started_once():
    lease = a_lease(phase=Phase.RESERVED, unattended=True, phase_since=LATER, granted_at=LATER)
    assert step(lease).effect is Effect.START_SERVER
    assert step(lease, start_sent=True).effect is None
    refused = step(lease, outcome=Outcome(Effect.START_SERVER, exits.refused_by_hub("too many")))
    assert (refused.lease.phase, refused.lease.reason) == (Phase.ENDED, ExitReason.FAILED)
    assert step(lease, outcome=Outcome(Effect.START_SERVER, None), start_sent=True).lease is lease


def test_a_grant_whose_hub_just_went_away_is_parked_and_no_start_failed():
    lease = a_lease(phase=Phase.RESERVED, unattended=True, phase_since=LATER, granted_at=LATER)
    found = step(lease, hub_answers=False, hub_in_doubt=True)
    assert (found.lease.phase, found.lease.failed_starts, told(found)) == (Phase.PARKED, 0, [])
    assert step(lease, hub_answers=False).lease is lease, "a hub that was never asked is in no doubt"


def test_a_silent_reservation_is_dropped_unless_its_server_answers_or_an_outage_held_it_up():
    lease = a_lease(phase=Phase.RESERVED, granted_at=NOW)
    silent = {"heard_at": NOW}
    dropped = step(lease, **silent)
    assert (dropped.lease.phase, dropped.lease.failed_starts, told(dropped)) == (Phase.PARKED, 1, ["parked"])
    assert step(lease, server=server(), **silent).effect is Effect.ASK_SERVER
    assert step(lease, server=server(), outcome=asked(server()), **silent).lease.phase is Phase.RUNNING
    assert step(lease, server=server(), outcome=asked(None), **silent).lease.phase is Phase.PARKED
    held_up = step(lease, sees_since=NOW + 1, **silent)
    assert (held_up.lease.phase, held_up.lease.failed_starts) == (Phase.PARKED, 0)


# Starting


def test_a_start_runs_once_its_own_server_answers():
    lease = a_lease(phase=Phase.STARTING)
    assert step(lease).effect is None, "nothing is seen of it yet"
    assert step(lease, processes=(process(),)).effect is Effect.ASK_SERVER
    up = step(lease, processes=(process(),), outcome=asked(server()))
    assert (up.lease.phase, told(up)) == (Phase.RUNNING, ["running"])
    for other in (None, server(ready=False), server(created="another born"), server(pending="stop")):
        assert step(lease, processes=(process(),), outcome=asked(other)).lease is lease
    assert step(lease, processes=(process(2),), outcome=asked(server())).lease is lease, "another attempt's process"


def test_a_silent_start_without_processes_is_dropped_but_not_while_the_hub_ends_it():
    lease = a_lease(phase=Phase.STARTING)
    silent = {"heard_at": LATER - 61}
    assert step(lease, **silent).effect is Effect.ASK_SERVER
    assert step(lease, outcome=asked(None), **silent).lease.phase is Phase.PARKED
    assert step(lease, outcome=asked(server(ready=False, pending="stop")), **silent).lease is lease


def test_a_start_without_room_is_ended_first_and_then_waits_again():
    lease = a_lease(phase=Phase.STARTING, held=slots("a100-0"))
    stuck = process(waiting_seconds=21.0, waiting="no node fits")
    assert step(lease, processes=(stuck,)).effect is Effect.END_ATTEMPT
    still = step(lease, processes=(stuck,), outcome=Outcome(Effect.END_ATTEMPT, value=False))
    assert still.lease is lease
    back = step(lease, processes=(stuck,), outcome=Outcome(Effect.END_ATTEMPT, value=True))
    assert (back.lease.phase, back.lease.slots, back.lease.tried_nodes) == (Phase.PARKED, (), ("node-1",))
    assert back.lease.message == "There was no room for it after all: no node fits"
    patient = {"pod_waits_seconds": 600.0, "queue_title": "Kueue"}
    assert step(lease, changes=patient, processes=(stuck,)).effect is Effect.ASK_SERVER


# Running


def test_nothing_follows_for_a_quiet_workspace_before_its_next_rule():
    lease = a_lease(phase=Phase.RUNNING, held=slots("a100-0"))
    quiet = step(lease, processes=(process(),))
    assert (quiet.lease, quiet.effect, quiet.notes) == (lease, None, ())
    assert quiet.wake_at == LATER + QUIET_SECONDS
    near = replace(lease, deadline_at=LATER + 604.0)
    assert step(near, processes=(process(),)).wake_at == LATER + 4
    warned = replace(lease, deadline_at=LATER + 5.0, warned_seconds=(600.0,))
    assert step(warned, processes=(process(),)).wake_at == LATER + 5
    noticed = replace(lease, notice=EndNotice("", LATER + 3, "why", "root"))
    assert step(noticed, processes=(process(),)).wake_at == LATER + 3
    assert step(lease, missing_since=LATER).wake_at == LATER


def test_a_workspace_missing_in_the_backend_ends_after_the_hub_confirms_it():
    lease = a_lease(phase=Phase.RUNNING)
    gone = {"missing_since": LATER - 4}
    assert step(lease, missing_since=LATER - 2).effect is None
    assert step(lease, **gone).effect is Effect.ASK_SERVER
    assert step(lease, outcome=asked(server()), **gone).lease is lease, "it is there after all"
    ended = step(lease, outcome=asked(None), **gone)
    assert (ended.lease.phase, ended.lease.hub_gone, ended.lease.reason) == (Phase.STOPPING, True, ExitReason.FAILED)
    newer = step(lease, outcome=asked(server(started="later")), **gone)
    assert newer.lease.reason is ExitReason.ORPHANED


def test_an_orphan_ends_only_if_the_hub_still_lacks_its_server():
    lease = a_lease(phase=Phase.RUNNING)
    assert step(lease, is_orphan=True).effect is Effect.ASK_SERVER
    assert step(lease, is_orphan=True, outcome=asked(server(started="later"))).lease is lease
    ended = step(lease, is_orphan=True, outcome=asked(None))
    assert (ended.lease.phase, ended.lease.reason) == (Phase.STOPPING, ExitReason.ORPHANED)
    assert ended.evidence_since is not None
    start = a_lease(phase=Phase.STARTING)
    dropped = step(start, is_orphan=True, processes=(process(),), outcome=asked(None))
    assert dropped.lease.phase is Phase.PARKED


def test_the_deadline_is_told_before_it_ends_a_workspace():
    lease = a_lease(phase=Phase.RUNNING, deadline_at=LATER + 100)
    warned = step(lease)
    assert (told(warned), warned.lease.warned_seconds) == (["warned of end"], (600.0,))
    over = replace(warned.lease, deadline_at=LATER)
    assert step(over).lease.reason is ExitReason.EXPIRED
    by_budget = replace(over, latest_end=LatestEnd(LATER, "budget", "gpus", "each-user"))
    assert step(by_budget).lease.reason is ExitReason.BUDGET


def test_a_notice_ends_a_workspace_at_its_time_if_the_hub_can_stop_it():
    lease = a_lease(phase=Phase.RUNNING, notice=EndNotice("", LATER, "Drained.", "root", "the console"))
    assert step(lease).lease.reason is ExitReason.STOPPED
    assert step(lease, hub_answers=False).lease is lease
    moves = replace(lease, notice=replace(lease.notice, moves=True))
    assert step(moves).lease.reason is ExitReason.MOVED
    assert step(lease, now=LATER - 1).lease is lease


def test_a_claim_s_notice_is_carried_out_or_taken_back_only_when_its_claim_was_just_evaluated():
    lease = a_lease(phase=Phase.RUNNING, notice=EndNotice("claim", LATER, "A team needs it.", "root"))
    assert step(lease).lease is lease
    assert step(lease, claim_is_over=False).lease.reason is ExitReason.MADE_ROOM
    spared = step(lease, claim_is_over=True)
    assert (spared.lease.notice, told(spared)) == (None, ["claim gone"])


def test_an_earlier_administrator_extension_is_applied_once_to_the_deadline():
    lease = a_lease(phase=Phase.RUNNING, granted_until=LATER + 9000, warned_seconds=(600.0,))
    longer = Extension(lease.deadline_at, LATER + 9000, None)
    changes = {"extension": lambda: longer}
    assert step(lease, changes=changes).effect is Effect.ASK_EXTENSION
    assert step(lease).effect is None, "budgets leave nothing"
    found = step(lease, changes=changes, outcome=Outcome(Effect.ASK_EXTENSION, longer))
    assert (found.lease.deadline_at, told(found)) == (LATER + 9000, ["extended"])
    moved = replace(lease, deadline_at=lease.deadline_at + 60)
    assert step(moved, changes=changes, outcome=Outcome(Effect.ASK_EXTENSION, longer)).lease is moved


def test_news_of_the_cluster_is_told_once_and_costs_no_charge():
    lease = a_lease(phase=Phase.RUNNING, held=slots("a", "b"), rate=Rate(Fraction(2), Fraction(0)))
    seen = {"processes": (process(disruption="Its node is drained."),), "failed_gpus": frozenset({"b"})}
    found = step(lease, **seen)
    assert told(found) == ["disrupted", "health"]
    assert [(one.share, one.until) for one in found.lease.lost] == [(Fraction(1, 2), None)]
    assert told(step(found.lease, **seen)) == []
    away = step(lease, processes=(process(),), away_gpus=1).lease
    assert [one.why for one in away.lost] == [NODE_AWAY]
    assert step(away, processes=(process(),), away_gpus=None).lease is away, "nothing shows that it is back"
    assert step(away, processes=(process(),), away_gpus=0).lease.lost[0].until == LATER


def taken(percent, *, mode=Mode.ENFORCE, started="then", at=LATER):
    evidence = read_evidence(sample(exclusive(percent)), POLICY)
    return TakenSample(evidence, POLICY, mode, at, started)


def in_grace(**changes):
    streak = Streak(3600.0, 3600.0, countdown_seconds=30.0, mode=Mode.ENFORCE, since_busy_seconds=7200.0)
    judged = fingerprint(POLICY, Mode.ENFORCE)
    values = {"streak": streak, "judged": judged, "held": slots("a"), "deadline_at": LATER + 9000, **changes}
    return a_lease(phase=Phase.RECLAIMING, **values)


def test_an_idle_workspace_whose_grace_has_passed_ends_with_the_sample_that_decides_it():
    lease = in_grace()
    found = step(lease, sample=taken(0))
    assert (found.lease.phase, found.lease.reason, told(found)) == (Phase.STOPPING, ExitReason.IDLE, ["stop"])
    assert found.lease.sampled_at == LATER
    assert found.evidence_since == LATER - 3 * 3600


@pytest.mark.parametrize(
    ("why", "changes", "seen"),
    [
        ("another server runs by now", {}, {"sample": taken(0, started="another")}),
        ("nobody could press Keep", {}, {"sample": taken(0), "hub_answers": False}),
        ("it is in use", {}, {"sample": taken(50)}),
        ("its user keeps it", {"kept_until": LATER + 1}, {"sample": taken(0)}),
        ("it was judged a moment ago", {"sampled_at": LATER - 1}, {"sample": taken(0)}),
        ("another policy judged it so far", {"judged": "another"}, {"sample": taken(0)}),
        ("it is judged in another mode", {}, {"sample": taken(0, mode=Mode.WARN)}),
    ],
)
def test_an_idle_workspace_is_spared_if(why, changes, seen):
    found = step(in_grace(**changes), **seen)
    assert found.lease.phase in {Phase.RECLAIMING, Phase.RUNNING}, why
    assert "stop" not in told(found)


def test_an_unvisited_workspace_is_given_back_only_while_the_hub_answers():
    arrival = Arrival(600.0, passed_seconds=600.0, absent_seconds=600.0, warned_after_seconds=300.0)
    lease = replace(in_grace(arrival=arrival), phase=Phase.RUNNING)
    nobody = tuple(SoftReading(name, active=False) for name in PROBED)
    seen = taken(0)._replace(evidence=replace(taken(0).evidence, opened=False, probed=nobody))
    assert step(lease, sample=seen).lease.reason is ExitReason.NOBODY_CAME
    assert step(lease, sample=seen, hub_answers=False).lease.phase is Phase.RUNNING
    came = step(lease, sample=taken(80))
    assert (came.lease.arrival, came.lease.claimed_at, told(came)) == (None, LATER, ["came"])


# Stopping


def test_a_stop_asks_the_hub_runs_its_command_and_names_the_server_that_it_stops():
    lease = a_lease(phase=Phase.STOPPING, running_at=NOW, server_started="then")
    assert step(lease).effect is Effect.ASK_SERVER
    assert step(lease, outcome=asked(server())).effect is Effect.RUN_ON_STOP
    ran = Outcome(Effect.RUN_ON_STOP, None)
    assert step(lease, on_stop_done=True, outcome=ran).effect is Effect.ASK_SERVER, "the server may be another by now"
    sent = step(lease, on_stop_done=True, outcome=asked(server()))
    assert (sent.effect, sent.lease.stop_sent_at) == (Effect.STOP_SERVER, LATER)
    assert step(sent.lease, outcome=asked(server()), now=LATER + 9).effect is None
    again = step(sent.lease, outcome=asked(server()), now=LATER + 10)
    assert again.effect is Effect.STOP_SERVER
    never_ran = a_lease(phase=Phase.STOPPING)
    bound = step(never_ran, outcome=asked(server("its start")))
    assert (bound.effect, bound.lease.server_started) == (Effect.STOP_SERVER, "its start")
    assert step(bound.lease, outcome=asked(server("the next start")), now=LATER + 60).lease.hub_gone


def test_the_stop_of_a_listed_server_that_never_started_does_not_hit_the_next_start():
    lease = a_lease(phase=Phase.STOPPING, running_at=NOW, server_started="", adopted=True, stop_sent_at=NOW)
    listed = replace(lease, request=replace(lease.request, template=""))
    assert step(listed, on_stop_done=True, outcome=asked(server(""))).effect is Effect.STOP_SERVER
    assert step(listed, on_stop_done=True, outcome=asked(server("the next start"))).lease.hub_gone


def test_a_lease_ends_only_once_all_its_processes_have_and_may_wait_again_in_the_same_write():
    lease = a_lease(phase=Phase.STOPPING, hub_gone=True, held=slots("a"))
    assert step(lease).effect is Effect.END_ALL
    assert step(lease, outcome=Outcome(Effect.END_ALL, value=False)).lease is lease
    over = Outcome(Effect.END_ALL, value=True)
    ended = step(lease, outcome=over)
    assert (ended.lease.phase, ended.successor) == (Phase.ENDED, None)
    moved = replace(lease, reason=ExitReason.MOVED)
    back = step(moved, changes={"returns_to_queue": lambda: True}, outcome=over)
    assert (back.successor.phase, back.successor.follows) == (Phase.PARKED, lease.id)
    assert back.successor.id == step(moved, changes={"returns_to_queue": lambda: True}, outcome=over).successor.id


def test_the_first_reason_of_an_end_stands_and_a_user_s_own_stop_keeps_no_evidence():
    lease = a_lease(phase=Phase.RUNNING)
    stopped = finish(lease, exits.stopped_by("alice", "the page"), LATER, evidence=True)
    assert (stopped.lease.phase, stopped.evidence_since, told(stopped)) == (Phase.STOPPING, None, ["stop"])
    again = finish(stopped.lease, exits.expired(60), LATER + 1, gone=True)
    assert (again.lease.reason, again.lease.hub_gone, told(again)) == (ExitReason.STOPPED, True, [])


# After an outage


def test_after_an_outage_enough_of_the_grace_is_left_and_its_user_is_told_again():
    lease = in_grace()
    found = steps.resume(lease, rules(lease), LATER)
    assert found.lease.streak.countdown_seconds == 180.0
    assert ([note.event.name for note in found.retold], told(found)) == (["warned"], [])
    unjudged = steps.resume(lease, rules(lease, idle=None), LATER)
    assert unjudged.lease.phase is Phase.RUNNING
    other = steps.resume(lease, rules(lease, lifecycle=LifecyclePolicy(mode=Mode.WARN)), LATER)
    assert (other.lease.phase, told(other)) == (Phase.RUNNING, ["grace ended"])


def test_a_request_that_cannot_start_is_noted_once_and_ends_after_its_time():
    waits = a_lease("waits")
    assert steps.note_feasibility(waits, "", 60.0, NOW) is None
    noted = steps.note_feasibility(waits, "No node has it.", 60.0, NOW)
    assert (noted.lease.impossible, noted.lease.impossible_since) == ("No node has it.", NOW)
    assert steps.note_feasibility(noted.lease, "No node has it.", 60.0, NOW + 60) is None
    other = steps.note_feasibility(noted.lease, "No cluster has it.", 60.0, NOW + 60)
    assert (other.lease.impossible, other.lease.impossible_since, other.notes) == ("No cluster has it.", NOW, ())
    again = steps.note_feasibility(noted.lease, "", 60.0, NOW + 60)
    assert (again.lease.impossible, again.lease.impossible_since) == ("", None)
    ended = steps.note_feasibility(noted.lease, "No node has it.", 60.0, NOW + 61)
    assert ended.lease.reason is exits.impossible("", 60.0).reason


@pytest.mark.parametrize(
    ("changes", "in_seconds", "minutes"),
    [
        ({}, 240.0, 4),
        ({}, 0.0, 1),
        ({}, steps.NEAR_START_SECONDS + 1, None),
        ({"told_near_start": True}, 240.0, None),
        ({"phase": Phase.QUEUED}, 240.0, None),
        ({"asked_at": LATER}, 240.0, None),
    ],
)
def test_a_near_start_is_told_once_to_users_who_wait_elsewhere(changes, in_seconds, minutes):
    waits = replace(a_lease("waits", Phase.PARKED), **changes)
    found = steps.note_near_start(waits, in_seconds, LATER)
    assert (found is None) == (minutes is None)
    if found is not None:
        assert found.lease.told_near_start
        assert [note.event.in_seconds for note in found.notes] == [60.0 * minutes]


def test_the_rule_that_holds_a_request_back_is_noted_when_it_begins_and_ends():
    waits = a_lease("waits")
    assert steps.note_wait_reason(waits, "", "", NOW) is None
    held = steps.note_wait_reason(waits, "quota each-user", "You have 4.", NOW)
    assert held.lease.wait_reason.rule == "quota each-user"
    assert steps.note_wait_reason(held.lease, "quota each-user", "You have 5.", NOW + 5) is None
    free = steps.note_wait_reason(held.lease, "", "", NOW + 9)
    assert (free.lease.wait_reason, free.lease.blocked_seconds) == (None, 9.0)
    runs = a_lease("runs", Phase.RUNNING, held=slots("a100-0"))
    assert steps.note_wait_reason(runs, "quota each-user", "You have 4.", NOW) is None
