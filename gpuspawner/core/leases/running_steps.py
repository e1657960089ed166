"""The rules of a running workspace: news of the cluster, idleness, arrival, lost time, notices, deadline, absence.

Each rule is a function that returns what follows from it, or None for nothing. :func:`step_running` applies them in
order until one ends the workspace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from gpuspawner.core import events
from gpuspawner.core.events import Event
from gpuspawner.core.idle.arrival import ArrivalStep, advance_arrival, arrival_sign
from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.verdicts import Verdict, credited_seconds, judge, reset_idle_time
from gpuspawner.core.leases import exits, lifetimes, transitions
from gpuspawner.core.leases.exits import CLUSTER, GPUSPAWNER
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.leases.observations import Effect, Observation, TakenSample, is_of_user, is_own
from gpuspawner.core.leases.step_results import Extension, LeaseRules, Note, Step, finish
from gpuspawner.core.leases.transitions import count_kills
from gpuspawner.core.quotas.ledger import BUDGET_RULE
from gpuspawner.core.rules import EndNotice, LostInterval

POLICY_CHANGED = "its policy has changed"
NODE_AWAY = "Its node did not answer."
EXTENDED_BEFORE = "as an administrator had extended it before"
SOONER_SECONDS = 10.0
"""A disruption that comes sooner by less than this is not told again. Arbitrary: longer than a look at the cluster."""
QUIET_SECONDS = 30.0
"""A running workspace is stepped at least this often: rules by hours or budgets may change at any time. Arbitrary: far
less than the shortest notice."""


Rule = Callable[[Lease, Observation, LeaseRules, float], Step | None]


def step_running(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step:
    """Apply each rule of a running workspace in turn, until one ends it.

    A sample and a new catalog are judged by their own rules. The fault of another rule must not keep them from it.
    """
    applied: Sequence[Rule] = _RULES
    if seen.sample is not None or seen.catalog_changed:
        applied = (_policy_change, _sample)
    found = Step(lease)
    for rule in applied:
        if found.lease.phase not in UP:
            return found
        if (following := rule(found.lease, seen, rules, now)) is not None:
            found = found.then(following)
    return replace(found, wake_at=_wake_at(found.lease, seen, rules, now))


def _wake_at(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> float:
    """Return when the next rule may apply without a new observation."""
    if seen.missing_since is not None:
        return now
    times = [now + QUIET_SECONDS]
    if lease.notice is not None:
        times.append(lease.notice.at)
    if (at := lease.deadline_at) is not None:
        times += [at - seconds for seconds in (*_warn_seconds(rules), 0.0) if at - seconds > now]
    return min(times)


def _warn_seconds(rules: LeaseRules) -> Iterable[float]:
    return rules.lifecycle.extend.warn_seconds or (lifetimes.LEAST_NOTICE_SECONDS,)


def _cluster_news(lease: Lease, seen: Observation, _rules: LeaseRules, now: float) -> Step | None:
    """Note that the cluster ends the workspace, which of its GPUs failed, and which GPUs it has."""
    own = [one for one in seen.processes if one.attempt == lease.attempt]
    if not own:
        return None
    before, told = lease, list[Event]()
    ending = next((one for one in own if one.disruption), None)
    if ending is not None:
        until = None if ending.ends_in_seconds is None else now + ending.ends_in_seconds
        told_until = lease.disrupted_until
        sooner = until is not None and (told_until is None or until <= told_until - SOONER_SECONDS)
        if not lease.disruption or sooner:
            # That it may end at any moment is told once: a time that is learned afterwards says less.
            if lease.disruption != ending.disruption or told_until is not None:
                told.append(events.Disrupted(ending.disruption))
            lease = transitions.disrupt(lease, ending.disruption, until)
    elif lease.disruption:
        lease = transitions.disrupt(lease, "", None)
        told.append(events.Spared())
    unhealthy = {*own[0].unhealthy, *(slot.gpu for slot in lease.slots if slot.gpu in seen.failed_gpus)}
    if tuple(sorted(unhealthy)) != lease.unhealthy:
        lease = replace(lease, unhealthy=tuple(sorted(unhealthy)))
        told.append(events.Health(lease.unhealthy))
    if own[0].uuids not in {(), lease.uuids}:
        lease = replace(lease, uuids=own[0].uuids)
        told.append(events.Allocated(lease.uuids))
    return None if lease is before else Step(lease, tuple(Note(event, CLUSTER) for event in told))


def _policy_change(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step | None:
    """Begin the idle time again if hours or the catalog changed the policy that judges the workspace.

    No policy ends a workspace before a full idle period of its own has passed. A sample speaks of the time before it.
    """
    taken = seen.sample
    if taken is None and not seen.catalog_changed:
        return None
    policy, mode, at = (
        (rules.idle, rules.lifecycle.mode, now) if taken is None else (taken.policy, taken.mode, taken.at)
    )
    judged = fingerprint(policy, mode)
    if judged == lease.judged:
        return None
    if not lease.judged:  # its first sample, or the lease of an older version
        return Step(replace(lease, judged=judged))
    is_warned = lease.streak.grace_left_seconds is not None
    after = replace(lease, judged=judged, streak=replace(reset_idle_time(lease.streak), mode=mode), sampled_at=at)
    after = transitions.end_grace(after, now) if lease.phase is Phase.RECLAIMING else after
    return Step(after, (Note(events.GraceEnded(POLICY_CHANGED)),) if is_warned else ())


@lru_cache(maxsize=1024)
def fingerprint(policy: IdlePolicy | None, mode: Mode) -> str:
    """Return a text that changes when the policy changes, and stays the same over a restart."""
    return hashlib.sha256(f"{mode.value} {policy}".encode()).hexdigest()[:16]


def kept_until(lease: Lease, exempt_until: float | None) -> float | None:
    """Return the time until which idle time does not count, by Keep or by an exemption; None for no such time."""
    return max((at for at in (lease.kept_until, exempt_until) if at is not None), default=None)


def _sample(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step | None:
    """Judge the newest sample: warn, end the grace, or end an idle workspace whose grace has passed."""
    taken = seen.sample
    if taken is None or taken.server_started != lease.server_started:
        return None
    evidence = _within(taken, lease)
    streak, verdict = judge(lease.streak, evidence, taken.policy, taken.mode)
    if lease.arrival is not None or taken.at < (kept_until(lease, rules.exempt_until) or 0.0):
        streak, verdict = reset_idle_time(streak), Verdict.NONE
    counted, killed = count_kills(lease, taken.memory_kills, taken.at)
    found = Step(counted, () if killed is None else (Note(killed, CLUSTER),))
    kernels = lease.kernels if taken.kernels is None else taken.kernels
    judged = replace(counted, streak=streak, sampled_at=taken.at, kernels=kernels)
    if lease.arrival is not None:
        return found.then(_arrival(judged, evidence, seen, taken, rules, now))
    return found.then(_verdict(judged, verdict, seen, rules, now))


def _within(taken: TakenSample, lease: Lease) -> Evidence:
    """Return the evidence of a sample, for no more time than has passed since the last judgement."""
    if lease.sampled_at is None:
        return taken.evidence
    seconds = min(taken.evidence.interval_seconds, max(0.0, taken.at - lease.sampled_at))
    return replace(taken.evidence, interval_seconds=seconds)


def _verdict(lease: Lease, verdict: Verdict, seen: Observation, rules: LeaseRules, now: float) -> Step:
    policy = rules.idle
    if verdict is Verdict.BEGIN_GRACE:
        # In mode warn the workspace goes on running: nothing will be reclaimed.
        warned = transitions.begin_grace(lease, now) if lease.streak.mode is Mode.ENFORCE else lease
        return Step(warned, (Note(measured(lease, policy)),))
    if verdict is Verdict.END_GRACE and lease.phase is Phase.RECLAIMING:
        return Step(transitions.end_grace(lease, now), (Note(events.GraceEnded(lease.streak.because)),))
    if verdict is Verdict.WOULD_BEGIN_GRACE:
        return Step(lease, (Note(measured(lease, policy, events.WouldWarn)),))
    if verdict is Verdict.WOULD_RECLAIM:
        return Step(lease, (Note(measured(lease, policy, events.WouldStop)),))
    if verdict is Verdict.RECLAIM and lease.phase is Phase.RECLAIMING and policy is not None and seen.hub_answers:
        # Without the hub its user could not keep it.
        idle = measured(lease, policy).describe(now)
        return finish(lease, exits.idle(idle, policy.grace_seconds), now, evidence=True)
    return Step(lease)


def measured(
    lease: Lease, policy: IdlePolicy | None, kind: type[events.IdleEvent] = events.WarnedIdle
) -> events.IdleEvent:
    """Return the measured idleness of a workspace as an event. ``policy`` is the one that judges it, if any."""
    streak, peak = lease.streak, lease.streak.peak_percent
    unheld = peak is not None and policy is not None and peak >= policy.below_percent
    return kind(len(lease.slots), streak.idle_seconds, streak.because, peak, unheld)


def _arrival(
    lease: Lease, evidence: Evidence, seen: Observation, taken: TakenSample, rules: LeaseRules, now: float
) -> Step:
    """Judge whether its user came to a workspace that became ready while they were away."""
    assert lease.arrival is not None, "only a workspace with an arrival is awaited"
    could_come = seen.hub_answers and now >= (lease.ready_at or 0.0)
    credit_seconds = credited_seconds(evidence, taken.policy) if could_come else 0.0
    sign = arrival_sign(evidence)
    arrival, turn = advance_arrival(lease.arrival, sign, credit_seconds, taken.policy, taken.mode)
    after = replace(lease, arrival=arrival)
    if turn is ArrivalStep.CAME:
        return come(after, Note(events.Came(sign.words)), now)
    if rules.exempt_until is not None:
        return Step(_judged_as_new(after), (Note(events.NobodyCameYet(exempt=True)),))
    if turn is ArrivalStep.OVER:
        unclaimed = arrival.absent_seconds > 0 and arrival.is_known(taken.policy)
        nobody_came = Note(events.NobodyCameYet(arrival.claim_seconds))
        return Step(replace(_judged_as_new(after), unclaimed=unclaimed), (nobody_came,))
    if turn is ArrivalStep.WARN:
        return Step(after, (Note(warn_nobody_came(after, now)),))
    if turn is ArrivalStep.NOBODY_CAME and seen.hub_answers:
        return finish(after, exits.nobody_came(arrival.claim_seconds), now, evidence=True)
    return Step(after)


def come(lease: Lease, note: Note, now: float) -> Step:
    """Note that its user came to the workspace: from now on it is judged like every other one."""
    return Step(_judged_as_new(replace(lease, claimed_at=now)), (note,))


def _judged_as_new(lease: Lease) -> Lease:
    return replace(lease, arrival=None, streak=replace(reset_idle_time(lease.streak), since_busy_seconds=0.0))


def warn_nobody_came(lease: Lease, now: float) -> events.WarnedNobodyCame:
    """Return the warning that says until when its user must come."""
    left = 0.0 if lease.arrival is None else lease.arrival.left_seconds
    return events.WarnedNobodyCame(now + left)


def _lost_time(lease: Lease, seen: Observation, _rules: LeaseRules, now: float) -> Step | None:
    """Note when failed GPUs or unreachable nodes begin and cease to cost time. That time is not charged."""
    if lease.rate is None:
        return None
    going_on = {(one.why, one.share) for one in lease.lost if one.until is None}
    due: set[tuple[str, Fraction]] = set()
    if lease.unhealthy and lease.slots:
        share = min(Fraction(1), Fraction(len(lease.unhealthy), len(lease.slots)))
        due.add((f"{', '.join(lease.unhealthy)} was reported unhealthy.", share))
    if seen.away_gpus is None:  # nothing shows that the node answers again
        due |= {one for one in going_on if one[0] == NODE_AWAY}
    elif seen.away_gpus:
        due.add((NODE_AWAY, Fraction(seen.away_gpus, len(lease.slots))))
    if due == going_on:
        return None
    ended = (
        replace(one, until=now) if one.until is None and (one.why, one.share) not in due else one for one in lease.lost
    )
    begun = (LostInterval(now, None, why, share) for why, share in sorted(due - going_on))
    return Step(replace(lease, lost=(*ended, *begun)))


def _class_hold(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step | None:
    """Tell a workspace that it runs into a time for which its GPUs are held. Nothing ends it for that.

    It is told once of a hold for others, and several times of the maintenance of its node.
    """
    if not seen.holds_known:
        return None
    if seen.held is None:
        return None if lease.reaches_into is None else Step(replace(lease, reaches_into=None))
    held, known, event = seen.held, lease.reaches_into, seen.held.event(now)
    bound = replace(held.bound(now), words=event.describe(now))
    is_told = known is not None and (known.at, known.name) == (bound.at, bound.name)
    if held.hold.is_maintenance:
        told_at = lease.maintenance_told_at if is_told else None
        if any(told_at is None or told_at < bound.at - x for x in MAINTENANCE_SECONDS if bound.at - x <= now):
            return Step(replace(lease, reaches_into=bound, maintenance_told_at=now), (Note(event),))
        return None
    if is_told or bound.at - now > max(_warn_seconds(rules)):
        return None
    return Step(replace(lease, reaches_into=bound), (Note(event),))


MAINTENANCE_SECONDS = (3 * 86400.0, 86400.0, 3600.0)
"""How long before the maintenance of its node a workspace is told of it: once each. Arbitrary."""


def _notice(lease: Lease, seen: Observation, _rules: LeaseRules, now: float) -> Step | None:
    """End a workspace when its notice is over, or spare it when the stronger claim is over."""
    notice = lease.notice
    if notice is None or (notice.preemption and seen.claim_is_over is None):
        return None
    if notice.preemption and seen.claim_is_over:
        return spare(lease)
    if notice.at > now or not seen.hub_answers:  # without the hub it could not be stopped
        return None
    if notice.preemption:
        return finish(lease, exits.made_room(notice.why, notice.by), now, evidence=True)
    ending = exits.moved_by if notice.moves else exits.stopped_by
    return finish(lease, ending(notice.by, notice.where, notice.why), now, evidence=True)


def warn_of_claim(lease: Lease, notice: EndNotice, actor: str = GPUSPAWNER, *, late: bool = False) -> Step:
    """Tell a workspace that a stronger claim needs its GPUs. ``late``: its time is over already."""
    return Step(replace(lease, notice=notice), (Note(events.WarnedOfClaim(notice.why, notice.at, late), actor),))


def spare(lease: Lease, scheduler: str = "") -> Step:
    """Withdraw the notice of a stronger claim. ``scheduler`` made the claim, or "" if a person did."""
    return Step(replace(lease, notice=None), (Note(events.ClaimGone(scheduler)),))


def _extension(lease: Lease, seen: Observation, rules: LeaseRules, _now: float) -> Step | None:
    """Extend a workspace that came back as far as an administrator had extended it before."""
    at, until = lease.deadline_at, lease.granted_until or 0.0
    if at is None or at >= until:
        return None
    if not seen.answered(Effect.ASK_EXTENSION):
        return Step(lease, effect=None if rules.extension() is None else Effect.ASK_EXTENSION)
    found: Extension | None = seen.outcome.value if seen.outcome is not None else None
    if found is None or found.deadline_at != at:
        return None
    seconds = found.end - at
    longer = replace(
        lease,
        deadline_at=found.end,
        extended_seconds=lease.extended_seconds + seconds,
        warned_seconds=(),
        latest_end=found.bound,
    )
    return Step(longer, (Note(events.Extended(seconds, EXTENDED_BEFORE)),))


def _deadline(lease: Lease, _seen: Observation, rules: LeaseRules, now: float) -> Step | None:
    """Warn of the end of the lifetime, and end the workspace then. Expiry acts in every mode."""
    at, notice = lease.deadline_at, lease.notice
    if at is None or (notice is not None and not notice.preemption and notice.at <= now):
        return None
    seconds: float = lease.request.lifetime_seconds + lease.extended_seconds
    if lease.latest_end is not None and lease.running_at is not None:
        seconds = min(seconds, at - lease.running_at)
    due = lifetimes.due_warnings(at, lease.warned_seconds, rules.lifecycle.extend, seconds, now)
    if due is not None:
        warned = replace(lease, deadline_at=due.deadline, warned_seconds=(*lease.warned_seconds, *due.thresholds))
        return Step(warned, (Note(events.WarnedOfEnd(max(0.0, due.deadline - now))),))
    if not lifetimes.is_expired(at, lease.warned_seconds, now):
        return None
    by_budget = lease.latest_end is not None and lease.latest_end.rule == BUDGET_RULE
    how = exits.budget_used_up(rules.budget_used_up()) if by_budget else exits.expired(seconds)
    return finish(lease, how, now, evidence=True)


def _missing(lease: Lease, seen: Observation, rules: LeaseRules, now: float) -> Step | None:
    """End a workspace that neither hub nor backend shows, or that the hub has forgotten. The hub is asked first.

    The place of a workspace at the hub may belong to a newer server. No lease takes that server for its own.
    """
    gone = seen.missing_since is not None and now - seen.missing_since >= rules.timing.settle_seconds
    if not gone and not seen.is_orphan:
        return None
    if not seen.answered(Effect.ASK_SERVER):
        return Step(lease, effect=Effect.ASK_SERVER)
    server = seen.asked_server
    if gone and not is_own(server, lease):
        newer = is_of_user(server, lease)
        how = exits.vanished(disruption=lease.disruption, newer_server=newer, adopted=lease.adopted)
        return finish(lease, how, now, gone=True)
    if seen.is_orphan and not is_of_user(server, lease):
        return finish(lease, exits.ORPHANED, now, evidence=True)
    return None


_RULES = (_cluster_news, _lost_time, _class_hold, _notice, _extension, _deadline, _missing)
