"""Presents the idleness of a workspace: the numbers, and the sentences that say why it is judged so."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.catalog.template_models import MONITOR
from gpuspawner.core.administration import Restriction
from gpuspawner.core.errors import split_sentences
from gpuspawner.core.gpus.vendors import NVIDIA, vendor_of
from gpuspawner.core.idle.policies import IdlePolicy, LifecyclePolicy, Mode
from gpuspawner.core.idle.readings import CPU, Source
from gpuspawner.core.idle.verdicts import Explanation, IdleState, explain
from gpuspawner.core.leases.exits import FINAL_WARNINGS
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import idle_policy_of, policy_now, policy_of
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.warnings import awaited_words, grace_end

NO_MONITOR = "The GPU monitor does not run in this workspace. GPU work of a few seconds may be missed."
NO_MONITOR_IN_IMAGE = (
    "The GPU monitor does not run in this workspace, because its Python has no nvidia-ml-py. GPU work of a few "
    "seconds may be missed."
)


def present_policy(state: Parts, name: str) -> models.PolicyNow:
    """Return the policy that is in force for requests with the policy of that name."""
    now = state.clock.now()
    policy, instead_of, until = policy_now(state.catalog, name, now)
    words = hours_words(policy.name, instead_of, until, now)
    return models.PolicyNow(name=policy.name, instead_of=instead_of or None, until=until, words=words)


def present_idle(state: Parts, lease: Lease) -> models.Idle | None:
    """Return the idleness of a running workspace, None if nothing judges it."""
    now = state.clock.now()
    policy = idle_policy_of(state.catalog, lease, now)
    if lease.phase not in UP or policy is None:
        return None
    mode, seen = policy_of(state.catalog, lease, now).mode, explain(lease.streak, policy)
    kept_until = state.actions.kept_until(lease)
    kept = kept_until is not None and kept_until > now
    grace = seen.grace_left_seconds
    grace_ends_at = None if grace is None or mode is not Mode.ENFORCE else grace_end(lease, grace)
    words = idle_words(seen, None if grace_ends_at is None else show_time(grace_ends_at, now))
    if lease.arrival is not None:
        words = awaited_words(lease, seen.because, now)
    elif kept:
        words = _kept_words(state, lease, seen.because)
    return models.Idle(
        state="awaited" if lease.arrival is not None else "kept" if kept else seen.state.value,
        mode=mode.value,
        idle_seconds=seen.idle_seconds,
        for_seconds=seen.for_seconds,
        below_percent=policy.below_percent,
        because=seen.because,
        words=words,
        peak_percent=seen.peak_percent,
        known_share=seen.known_share,
        grace_ends_at=grace_ends_at,
        kept_until=kept_until if kept else None,
        unreadable=[models.Unreadable(gpu=gpu, seconds=seconds) for gpu, seconds in seen.unreadable],
        monitor=has_monitor(state, lease),
        seen_by=_seen_by(state, lease, policy),
        soft_seconds=policy.soft_seconds,
        soft_left_seconds=seen.soft_left_seconds,
        also_counts=[_soft_evidence(state, lease, name) for name in policy.soft_names],
    )


def is_simulated(state: Parts, lease: Lease) -> bool:
    """Return whether the GPUs that a workspace has or waits for are simulated."""
    kind, fleet = state.catalog.gpus.get(lease.kind or ""), state.scheduler.fleet
    held = (fleet.by_id.get(slot.gpu) for slot in lease.slots)
    return (kind is not None and kind.pool in fleet.simulated_pools) or any(gpu and gpu.simulated for gpu in held)


def has_monitor(state: Parts, lease: Lease) -> bool | None:
    """Return whether the GPU monitor runs in a workspace, None if that is not known or it cannot run there."""
    kind = state.catalog.gpus.get(lease.kind or "")
    is_nvidia = kind is not None and (not kind.resource or vendor_of(kind.resource) is NVIDIA)
    can_run = bool(lease.slots) and is_nvidia and not is_simulated(state, lease)
    return state.sampler.monitors.runs(lease.id) if can_run else None


def _seen_by(state: Parts, lease: Lease, policy: IdlePolicy) -> list[str]:
    """Return the sources that see each GPU of the workspace all of the time, by the newest reading."""
    covering = [
        {one["source"] for one in row.sources or () if one["coverage"] >= policy.coverage and not one["engine"]}
        for row in state.sampler.newest(lease.id).values()
    ]
    return sorted(Source(source).value for source in set[str]().union(*covering).intersection(*covering))


def _soft_evidence(state: Parts, lease: Lease, name: str) -> models.SoftEvidence:
    row = next(iter(state.sampler.newest(lease.id).values()), None)
    if name == CPU:
        cores, bound = row.cpu_cores if row else None, policy_of(state.catalog, lease, state.clock.now()).idle
        active = None if cores is None else cores > bound.cpu_bound_cores
        return models.SoftEvidence(evidence=name, active=active, words="CPU use")
    if row is None or row.soft is None:
        return models.SoftEvidence(evidence=name, active=None, words="not read yet")
    return models.SoftEvidence(evidence=name, **row.soft.get(name, {"active": False, "words": "quiet"}))


def exemption_words(one: Restriction, now: float) -> str:
    """Return the words about a workspace's exemption, with its end, actor and reason."""
    until = "" if one.until is None else f" until {show_time(one.until, now)}"
    return f"exempt{until} by {one.by}: {one.reason.rstrip('.')}"


def _kept_words(state: Parts, lease: Lease, because: str) -> str:
    """Return why idle time does not count now, and the newest measurement."""
    now, one = state.clock.now(), state.restrictions.exemption_of(lease)
    if one is not None and (one.until or 0.0) >= (lease.kept_until or 0.0):
        why = exemption_words(one, now)
    else:
        why = f"kept until {show_time(lease.kept_until or now, now)}"
    return f"{why}; {because or 'not measured yet'}"


# The sentences of a workspace


def explained(lease: Lease, shown: models.Workspace, policy: IdlePolicy) -> list[str]:
    """Return in sentences why a workspace is in its state. ``policy`` judges its idleness."""
    if shown.end is not None:
        return list(_of_end(shown.end))
    if lease.phase in WAITING and shown.queue is not None:
        why = [one for text in (shown.queue.why, shown.queue.precedence) if text for one in split_sentences(text)]
        return [shown.queue.sentence, *why, *_of_holding_back(shown)]
    if lease.phase not in UP:
        return ["Idle time counts only once it runs."]
    hours = [shown.policy.words] if shown.policy.words and shown.idle else []
    bound = [shown.latest_end.sentence] if shown.latest_end else []
    awaited = [shown.arrival.words] if shown.arrival else []
    decided = [shown.warning.text] if shown.warning is not None and shown.warning.kind in FINAL_WARNINGS else []
    adopted = _of_adoption(lease, shown.now)
    return [*decided, *adopted, *awaited, *bound, *_of_use(lease, shown.idle, policy), *hours]


def _of_holding_back(shown: models.Workspace) -> Iterator[str]:
    held = shown.queue.wait_reason if shown.queue else None
    if held is None or shown.queue is None:
        return
    if held.words not in shown.queue.sentence:
        yield held.words
    since = "" if held.since is None else f" since {show_time(held.since, shown.now)}"
    if held.owner:
        yield f"Held back by {held.owner}{since}, by its rule {held.rule}."
    else:
        yield f"Held back by the rule {held.rule}{since}. That time does not count as waiting time."


def _of_adoption(lease: Lease, now: float) -> Iterator[str]:
    if lease.unasked and lease.running_at is not None:
        yield (
            "It was started before the GPU service was installed, or while the service was away. The service took it "
            f"over at {show_time(lease.running_at, now)}. It has no set end until it is started again, and earlier "
            "idle time does not count."
        )


def _of_use(lease: Lease, idle: models.Idle | None, policy: IdlePolicy) -> Iterator[str]:
    if idle is None:
        if lease.unasked:
            yield "It is not measured, and it is not stopped for being idle."
        else:
            yield "It has no GPU, and its policy does not judge such workspaces. It is not stopped for being idle."
        return
    yield f"{idle.words[0].upper()}{idle.words[1:]}."
    if idle.seen_by:
        yield f"Its GPUs are seen all of the time by {' and '.join(idle.seen_by)}."
    if idle.monitor is False:
        yield NO_MONITOR_IN_IMAGE if MONITOR in lease.lacks else NO_MONITOR
    if idle.state == "soft" and idle.soft_left_seconds:
        yield f"This counts as use for {show_duration(round(idle.soft_left_seconds))} more."
    if idle.known_share is not None and idle.known_share < policy.coverage:
        yield (
            f"Only {100 * idle.known_share:.0f} % of that time is known: below {100 * policy.coverage:.0f} % "
            "nobody is warned."
        )
    elif idle.state == "idle" and idle.mode != "observe":
        left = max(0.0, idle.for_seconds - idle.idle_seconds)
        yield f"If nothing changes, a warning comes in {show_duration(round(left))}."
    if idle.mode != "enforce":
        yield "This policy stops nothing for being idle."
    for gpu in idle.unreadable:
        yield f"We can't read {gpu.gpu} for {show_duration(gpu.seconds)} now. Nothing will be stopped because of it."


def _of_end(end: models.End) -> Iterator[str]:
    yield end.why
    if dispute := end.dispute:
        said = f": “{dispute.sentence}”" if dispute.sentence else "."
        yield f"Its user called this wrong{said}"
        yield f"{dispute.answered_by} answered: {dispute.answer}" if dispute.answer else "Not answered yet."


def idle_words(seen: Explanation, stops_at: str | None = None) -> str:
    """Return the idleness of a workspace and its reason: ``idle for 12 min of 30 min: GPU 0 at 1 %``.

    ``stops_at`` is when a grace that will be carried out is over, as people read it.
    """
    if seen.state is IdleState.UNMEASURED:
        return "not measured yet"
    if seen.state is IdleState.BUSY:
        return f"in use: {seen.because}"
    so_far = f"idle for {show_duration(round(seen.idle_seconds))}"
    if seen.grace_left_seconds is None:
        so_far += f" of {show_duration(seen.for_seconds)}"
    if stops_at is not None:
        so_far += f", stops at {stops_at}"
    if seen.state in {IdleState.IDLE, IdleState.GRACE}:
        return f"{so_far}: {seen.because}"
    if seen.idle_seconds:
        return f"{so_far}, paused now: {seen.because}"
    return f"not measured now: {seen.because}" if seen.state is IdleState.UNKNOWN else f"in use: {seen.because}"


def rule_words(policy: LifecyclePolicy, *, gpus: bool) -> str:
    """Return in a sentence what a policy does with idle workspaces."""
    idle = policy.idle_of(gpus=gpus)
    if idle is None:
        return "Nothing stops it for being idle."
    below = f" below {idle.below_percent:g} %" if gpus else " without activity"
    warns = f"Warns after {show_duration(idle.for_seconds)}{below}"
    if policy.mode is Mode.ENFORCE:
        return f"{warns}, stops {show_duration(idle.grace_seconds)} later."
    return f"{warns}, stops nothing." if policy.mode is Mode.WARN else "Records idle time, stops nothing."


def hours_words(policy: str, instead_of: str, until: float | None, now: float) -> str:
    """Return which policy judges by the hour, and until when; "" where no hours change it."""
    if until is None and not instead_of:
        return ""
    end = "" if until is None else f" until {show_time(until, now)}"
    instead = f" instead of {instead_of}" if instead_of else ""
    return f"By the hours of the catalog, the policy {policy} applies{end}{instead}."
