"""The next step of a lease: one pure function of the lease, its observation, its rules, and the time.

:func:`step` returns the lease from now on, the events for the audit, and at most one effect. The service stores the
lease before it carries out the effect, and then calls :func:`step` again with the outcome. Nothing here waits, so no
decision can be outdated when it is stored. The rules of a running workspace are in ``running_steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuspawner.core import events
from gpuspawner.core.idle import verdicts
from gpuspawner.core.idle.arrival import resume_arrival
from gpuspawner.core.leases import exits, successors, transitions
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.observations import Effect, Observation, Running, is_of_user, is_own, is_ready
from gpuspawner.core.leases.reports import storable
from gpuspawner.core.leases.running_steps import POLICY_CHANGED, measured, step_running, warn_nobody_came
from gpuspawner.core.leases.step_results import LeaseRules, Note, Step, drop_start, finish

NEAR_START_SECONDS = 600.0
"""A user is told that the start is near when it is this far away."""
RECOVERED = "its server runs: that its start was given up was wrong"


def step(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:
    """Return the next step of a lease.

    Args:
        lease: the lease as it is at this moment.
        seen: its processes, its server, its sample, and the outcome of the last effect.
        rules: what the catalog and the administrators say about it.
        now: seconds of the service's clock.
    """
    return _BY_PHASE[lease.phase](lease, seen, rules, now)


# Waiting, reserved, starting


def _waiting(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:
    """Park a silent waiter. End the processes of earlier attempts: they may use the GPUs that the lease waits for."""
    effect = None
    if any(one.attempt < lease.attempt for one in seen.processes):
        effect = Effect.END_OLDER
        if lease.failed_starts:  # the start was given up without a report, and its server may answer after all
            if not seen.answered(Effect.ASK_SERVER):
                effect = Effect.ASK_SERVER
            elif is_ready(seen.asked_server, lease):
                return _recover(seen, rules, now)
    listens_until = seen.heard_at + rules.timing.listen_seconds
    if lease.phase is Phase.QUEUED and now > listens_until:
        return Step(transitions.park(lease, now), effect=effect)
    if lease.phase is Phase.QUEUED:
        return Step(lease, effect=effect, wake_at=listens_until)
    return Step(lease, effect=effect)


def _reserved(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:  # noqa: PLR0911 - a table
    """Start a parked workspace, or take the grant back if no start uses it."""
    if seen.answered(Effect.START_SERVER) and seen.outcome is not None and seen.outcome.value is not None:
        return finish(lease, seen.outcome.value, now, gone=True)
    to_start = lease.unattended and not seen.start_sent
    held_up = (lease.granted_at or now) < seen.sees_since  # an outage kept its start from being tried
    is_silent = now - max(lease.phase_since, seen.heard_at) > rules.timing.reserved_seconds
    if is_silent and seen.answered(Effect.ASK_SERVER):
        ready = is_ready(seen.asked_server, lease)
        return _recover(seen, rules, now) if ready else drop_start(lease, rules.timing, now)
    if is_silent and is_ready(seen.server, lease):
        return Step(lease, effect=Effect.ASK_SERVER)
    if held_up and (is_silent or to_start):
        return Step(transitions.park(lease, now))
    if is_silent:
        return drop_start(lease, rules.timing, now)
    if to_start and seen.hub_answers:
        return Step(lease, effect=Effect.START_SERVER)
    if to_start and seen.hub_in_doubt:  # the hub went away when this was granted: no start failed
        return Step(transitions.park(lease, now))
    return Step(lease)


def _recover(seen: Observation, rules: LeaseRules, now: float) -> Step:
    """Return the running lease of a server whose start was given up by mistake."""
    found, server = rules.recovered(), seen.asked_server
    assert server is not None, "only a server that answers is recovered"
    running = transitions.recover(found.lease, server.started, found.attempt, found.lease.slots, now)
    return Step(running, (Note(events.Adopted(RECOVERED)),))


def _starting(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:  # noqa: PLR0911 - a table
    """See whether the server of a start answers, found no room, or was dropped by the hub."""
    own = [one for one in seen.processes if one.attempt == lease.attempt]
    if (stuck := _without_room(own, rules)) is not None:
        if not seen.answered(Effect.END_ATTEMPT):
            return Step(lease, effect=Effect.END_ATTEMPT)
        has_ended = seen.outcome is not None and seen.outcome.value
        return _requeue(lease, stuck, rules, now) if has_ended else Step(lease)
    silent = not seen.processes and seen.looked_at - seen.heard_at > rules.timing.heartbeat_seconds
    if not (seen.processes or silent):
        return Step(lease)
    if not seen.answered(Effect.ASK_SERVER):
        return Step(lease, effect=Effect.ASK_SERVER)
    server = seen.asked_server
    if seen.is_orphan and not is_of_user(server, lease):
        return drop_start(lease, rules.timing, now)
    if server is not None and server.pending == "stop":
        return Step(lease)  # the hub ends it, and reports when it has
    ready = is_ready(server, lease)
    if silent and not ready:
        return drop_start(lease, rules.timing, now)
    if (own or silent) and ready and server is not None:
        return Step(transitions.run(rules.running(), server.started, now), (Note(events.Started()),))
    return Step(lease)


def _without_room(own: list[Running], rules: LeaseRules) -> Running | None:
    """Return the process of this start that has had no room for too long, or that the cluster is about to end."""
    patience_seconds = max(rules.pod_waits_seconds, rules.timing.no_room_seconds + rules.node_seconds)

    def waited_seconds(one: Running) -> float:
        # The owner of the queue may say nothing of a pod that it has not looked at.
        return one.age_seconds if rules.pod_waits_seconds and one.given is None else one.waiting_seconds

    return next((one for one in own if waited_seconds(one) > patience_seconds or one.disruption), None)


def _requeue(lease: Lease, stuck: Running, rules: LeaseRules, now: float) -> Step:
    """Move a start back to its place in the queue, and let others pass for a while."""
    reported = storable(stuck.disruption or stuck.waiting)
    event = events.Requeued("no room", reported=reported)
    if rules.node_seconds:
        event = events.Requeued("no node", rules.node_seconds, reported=reported)
    elif rules.pod_waits_seconds and not stuck.disruption:
        event = events.Requeued("queue", rules.pod_waits_seconds, rules.queue_title, reported)
    return requeue(lease, event, rules.node(), rules.timing.no_room_wait_seconds, now)


def requeue(lease: Lease, event: events.Requeued, node: str, wait_seconds: float, now: float) -> Step:
    """Move a start back to its place in the queue. ``node`` is where it found no room; "" if that has no part."""
    back = transitions.requeue(lease, storable(event.describe(now)), wait_seconds, now, node)
    return Step(back, (Note(event),))


def note_feasibility(lease: Lease, why: str, kept_seconds: float, now: float) -> Step | None:
    """Note whether a waiting request could start at all. End a request that could not for ``kept_seconds``.

    Args:
        lease: a waiting lease.
        why: why it cannot start, however many GPUs are free; "" if it can.
        kept_seconds: how long a request that cannot start keeps its place.
        now: seconds of the service's clock.
    """
    since = lease.impossible_since
    if not why:
        able = replace(lease, impossible="", impossible_since=None)
        return None if since is None else Step(able, (Note(events.CanStart()),))
    if since is None:
        return Step(replace(lease, impossible=why, impossible_since=now), (Note(events.CannotStart(why)),))
    if now - since > kept_seconds:
        return finish(lease, exits.impossible(why, kept_seconds), now)
    return None if why == lease.impossible else Step(replace(lease, impossible=why))


def note_near_start(lease: Lease, in_seconds: float, now: float) -> Step | None:
    """Note, once for each request, that its start is at most about ten minutes away.

    A user whose start still waits in the hub reads it on the page. A user who asked less than ten minutes ago has read
    it there.

    Args:
        lease: a lease.
        in_seconds: the estimated wait.
        now: seconds of the service's clock.
    """
    is_new = now - lease.asked_at < NEAR_START_SECONDS
    if lease.phase is not Phase.PARKED or lease.told_near_start or is_new or in_seconds > NEAR_START_SECONDS:
        return None
    minutes = max(1, round(in_seconds / 60))
    return Step(replace(lease, told_near_start=True), (Note(events.StartNear(60.0 * minutes)),))


def note_wait_reason(lease: Lease, rule: str, words: str, now: float) -> Step | None:
    """Record the rule that holds a waiting request back, if it has changed. An empty ``rule`` is no rule."""
    before = "" if lease.wait_reason is None else lease.wait_reason.rule
    if lease.phase not in WAITING or before == rule:
        return None
    if rule:
        held = transitions.set_wait_reason(lease, rule, words, now)
        return Step(held, (Note(events.WaitReasonNoted(rule, words)),))
    return Step(transitions.clear_wait_reason(lease, now), (Note(events.WaitReasonGone(before)),))


# Stopping


def _stopping(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:  # noqa: PLR0911 - a table
    """Stop the server in the hub, then end all remaining processes, then free the GPUs. Each part survives a crash."""
    if lease.hub_gone:
        if not seen.answered(Effect.END_ALL):
            return Step(lease, effect=Effect.END_ALL)
        return _ended(lease, rules, now) if seen.outcome is not None and seen.outcome.value else Step(lease)
    if seen.answered(Effect.RUN_ON_STOP) or not seen.answered(Effect.ASK_SERVER):
        return Step(lease, effect=Effect.ASK_SERVER)  # the server may be another one by now
    server = seen.asked_server
    if server is None or not is_own(server, lease):
        return Step(replace(lease, hub_gone=True), effect=Effect.END_ALL)
    sent_at = lease.stop_sent_at
    if server.pending == "stop" or (sent_at is not None and now - sent_at < rules.timing.stop_retry_seconds):
        return Step(lease)
    if sent_at is None and lease.running_at is not None and not seen.on_stop_done:
        return Step(lease, effect=Effect.RUN_ON_STOP)
    # A start that never ran is known by its server from here on: a repeated stop must not hit the next start.
    sent = replace(lease, stop_sent_at=now, server_started=lease.server_started or server.started)
    return Step(sent, effect=Effect.STOP_SERVER)


def _ended(lease: Lease, rules: LeaseRules, now: float) -> Step:
    """End a lease. If the cluster took its GPUs or its user moved it, it waits again in the same write."""
    ended = transitions.end(lease, now)
    if lease.reason is None or not rules.returns_to_queue():
        return Step(ended)
    return Step(ended, successor=successors.successor(lease, successors.successor_id(lease), now))


def _over(lease: Lease, _seen: Observation, _rules: LeaseRules, _now: float) -> Step:
    return Step(lease)


_BY_PHASE: Mapping[Phase, Callable[[Lease, Observation, LeaseRules, float], Step]] = {
    Phase.QUEUED: _waiting,
    Phase.PARKED: _waiting,
    Phase.RESERVED: _reserved,
    Phase.STARTING: _starting,
    Phase.RUNNING: step_running,
    Phase.RECLAIMING: step_running,
    Phase.STOPPING: _stopping,
    Phase.ENDED: _over,
}


# After an outage


def resume(lease: Lease, rules: LeaseRules, now: float) -> Step:
    """Return a running lease after a time in which its user could not object: enough of its notice is left.

    The end has moved, and a service that was killed may not have sent the warning. So the warning is sent again.
    """
    policy, found = rules.idle, Step(lease)
    if lease.phase in UP and lease.arrival is not None and policy is not None:
        awaited = replace(lease, arrival=resume_arrival(lease.arrival, policy))
        is_warned = lease.arrival.warned_after_seconds is not None
        found = Step(awaited, retold=(Note(warn_nobody_came(awaited, now)),) if is_warned else ())
    if lease.phase is not Phase.RECLAIMING:
        return found
    lease, mode = found.lease, rules.lifecycle.mode
    if policy is None:  # the catalog does not judge it any more
        return Step(transitions.end_grace(replace(lease, streak=verdicts.reset_idle_time(lease.streak)), now))
    if not verdicts.is_grace_valid(lease.streak, policy, mode):
        streak = replace(lease.streak, mode=mode, countdown_seconds=None)
        ended = transitions.end_grace(replace(lease, streak=streak), now)
        return Step(ended, (Note(events.GraceEnded(POLICY_CHANGED)),))
    resumed = replace(lease, streak=verdicts.resume_streak(lease.streak, policy), sampled_at=now)
    return Step(resumed, retold=(Note(measured(resumed, policy)),))
