"""Warnings to the user of a workspace: what ends it soon, what is wrong with its GPUs, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.leases.running_steps import measured
from gpuspawner.core.leases.transitions import has_recent_memory_kill
from gpuspawner.core.units import show_bytes, show_duration, show_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.words import notice_words, reaches_into_words, return_words
from gpuspawner.service.rules.policies import idle_policy_of, policy_of
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.restarts import size_of, ways_out

OVERDUE_SECONDS = 15.0
"""A workspace that its backend ends is gone within this time, as a rule: a kill and a look at it take seconds."""
HOW = "Open it, connect by SSH, or use its GPU"
LOST = "You lose running kernels. Your files stay."
RESTART_NOW, NOT_NOW = "size-now", "size-withdraw"
"""The actions on the notice of a new size. Both are the endpoint ``size``: with ``at_once``, and its withdrawal."""


def present_warning(state: Parts, lease: Lease) -> models.Warning | None:
    """Return all warnings of a workspace as one. The one that ends it first leads."""

    def order(warning: models.Warning) -> tuple[bool, float]:
        return warning.kind != "preempted", math.inf if warning.ends_at is None else warning.ends_at

    found = sorted(warnings_of(state, lease), key=order)
    if not found:
        return None
    actions = list(dict.fromkeys(action for one in found for action in one.actions))
    return found[0].model_copy(update={"text": " ".join(one.text for one in found), "actions": actions})


def warnings_of(state: Parts, lease: Lease) -> Iterator[models.Warning]:
    """Yield the warnings of a running workspace."""
    if lease.phase not in UP:
        return
    now = state.clock.now()
    keep = ["keep"] if present_keep(state, lease).left else []
    if lease.disruption:
        yield _disruption(state, lease, now)
    if lease.notice is not None:
        mail = bool(state.settings.notify_users)
        returns = state.allocator.returns(lease) if lease.notice.preemption else lease.notice.moves
        text = notice_words(
            lease.notice, now, returns=return_words(state.scheduler, lease) if returns else "", mail=mail
        )
        yield models.Warning(kind="claim", text=text, ends_at=lease.notice.at, actions=[])
    yield from _idleness(state, lease, keep, now)
    yield from _unclaimed(lease, keep, now)
    yield from _gpus(state, lease)
    yield from _memory(lease, now)
    yield from _size(state, lease, now)
    if lease.reaches_into is not None:
        text = reaches_into_words(lease.reaches_into, lease.deadline_at, now)
        yield models.Warning(kind="hold", text=text, ends_at=None, actions=[])
    if lease.warned_seconds and lease.deadline_at is not None:
        text = f"{why_it_ends(lease, lease.deadline_at, now)} Save your work. {LOST}"
        can = present_extend(state, lease).each_seconds > 0
        yield models.Warning(kind="expiry", text=text, ends_at=lease.deadline_at, actions=["extend"] if can else [])


def _size(state: Parts, lease: Lease, now: float) -> Iterator[models.Warning]:
    """Yield that a workspace restarts with its new size soon."""
    change = lease.size_change
    if change is None or change.restarts_at is None:
        return
    left_seconds = max(0.0, change.restarts_at - now)
    text = (
        f"Your new size is free: {size_of(state, change.after.request)}. This workspace restarts at "
        f"{show_time(change.restarts_at, now)}, in {show_duration(left_seconds)}. Save your work. {LOST}"
    )
    yield models.Warning(kind="size", text=text, ends_at=change.restarts_at, actions=[RESTART_NOW, NOT_NOW])


def grace_end(lease: Lease, left_seconds: float) -> float:
    """Return when the grace of an idle workspace ends, in seconds since the epoch."""
    return (lease.sampled_at or lease.phase_since) + left_seconds


def _idleness(state: Parts, lease: Lease, keep: Sequence[str], now: float) -> Iterator[models.Warning]:
    grace = lease.streak.grace_left_seconds
    if grace is None:
        return
    idle = measured(lease, idle_policy_of(state.catalog, lease, now)).describe(now)
    actions = [*keep, *ways_out(state, lease)]
    if lease.phase is Phase.RECLAIMING:
        ends_at = grace_end(lease, grace)
        lost = "running kernels and what they hold on the GPU" if lease.slots else "running kernels"
        text = (
            f"{idle} This workspace stops at {show_time(ends_at, now)}, in {show_duration(max(0.0, ends_at - now))}. "
            f"You lose {lost}. Your files stay."
        )
        yield models.Warning(kind="idle", text=text, ends_at=ends_at, actions=actions)
    elif policy_of(state.catalog, lease, now).mode is Mode.WARN:
        text = f"{idle} Please stop this workspace if you do not need it. We do not stop it for you."
        yield models.Warning(kind="idle", text=text, ends_at=None, actions=actions)


def _disruption(state: Parts, lease: Lease, now: float) -> models.Warning:
    """Return the warning that the cluster is about to end a workspace. Nothing here can keep it."""
    until = lease.disrupted_until
    then = f"{return_words(state.scheduler, lease)}. " if state.allocator.returns(lease) else ""
    if until is None:
        end = "This workspace may end at any moment. Save now."
    elif now - until < OVERDUE_SECONDS:
        end = f"This workspace ends at {show_time(until, now)}. Save now."
    else:
        end = (
            f"This workspace should have ended at {show_time(until, now)}, but we cannot see that it is gone. Its node "
            "may not answer. Nobody else gets its GPUs before it is gone."
        )
    return models.Warning(kind="preempted", text=f"{lease.disruption} {end} {then}{LOST}", ends_at=until, actions=[])


def why_it_ends(lease: Lease, deadline_at: float, now: float) -> str:
    """Return in a sentence when and why a workspace ends at its deadline."""
    bound = lease.latest_end
    if bound is None or deadline_at < bound.at:
        return f"The run time of this workspace ends at {show_time(deadline_at, now)}."
    if deadline_at == bound.at:
        return f"This workspace {bound.words}."
    return f"This workspace ends at {show_time(deadline_at, now)}. Its run time is over, and this is your warning."


# A workspace that started while its user was away


def arrival_ends_at(lease: Lease) -> float | None:
    """Return the deadline for the user to open a workspace, in seconds since the epoch, None without a deadline."""
    if lease.arrival is None or lease.phase not in UP:
        return None
    since = lease.sampled_at or lease.running_at or lease.phase_since
    return max(since, lease.ready_at or 0.0) + lease.arrival.left_seconds


def present_arrival(lease: Lease, now: float) -> models.Arrival | None:
    """Return the notice that a workspace started while its user was away, None without a deadline to open it."""
    ends_at = arrival_ends_at(lease)
    if lease.arrival is None or ends_at is None:
        return None
    since = show_time(lease.running_at or lease.phase_since, now)
    words = f"It has been ready since {since}. {HOW} by {show_time(ends_at, now)}, or its GPU is released."
    return models.Arrival(ends_at=ends_at, claim_seconds=lease.arrival.claim_seconds, words=words)


def awaited_words(lease: Lease, because: str, now: float) -> str:
    """Return the idleness of a workspace that waits for its user."""
    until = show_time(arrival_ends_at(lease) or now, now)
    words = f"idle time counts once it is opened, or from {until}"
    return f"{words}; {because}" if because else words


def _unclaimed(lease: Lease, keep: Sequence[str], now: float) -> Iterator[models.Warning]:
    """Yield the warning that the user has not opened the workspace, after half of the time."""
    ends_at = arrival_ends_at(lease)
    if lease.arrival is None or ends_at is None or lease.arrival.warned_after_seconds is None:
        return
    since = show_time(lease.running_at or lease.phase_since, now)
    text = f"It has been ready since {since}, and nobody has opened it. {HOW} by {show_time(ends_at, now)}"
    if lease.streak.mode is not Mode.ENFORCE:
        text += ", or stop it if you do not need it. We do not stop it for you."
        yield models.Warning(kind="unclaimed", text=text, ends_at=None, actions=list(keep))
    else:
        text += ", or its GPU goes to the next in line. Your files stay."
        yield models.Warning(kind="unclaimed", text=text, ends_at=ends_at, actions=list(keep))


def claim_words(state: Parts, lease: Lease) -> str:
    """Return how soon the user must open a workspace that was granted while they were away, "" without a limit."""
    policy = policy_of(state.catalog, lease, state.clock.now())
    if not lease.slots or policy.mode is not Mode.ENFORCE:
        return ""
    now, ready_at = state.clock.now(), lease.ready_at or 0.0
    since = f" of {show_time(ready_at, now)}" if ready_at > now else ""
    return f" {HOW} within {show_duration(policy.claim_seconds)}{since}, or its GPU goes to the next in line."


def elsewhere(state: Parts, lease: Lease) -> list[models.Elsewhere]:
    """Return the other workspaces of the same user that started while they were away."""
    now, found = state.clock.now(), []
    for one in state.registry:
        shown = present_arrival(one, now) if one.id != lease.id and one.key.owner == lease.key.owner else None
        if shown is not None:
            name = one.key.server or "your default workspace"
            text = (
                f"{name[:1].upper()}{name[1:]} is ready. {HOW} by {show_time(shown.ends_at, now)}, or its GPU is "
                "released."
            )
            page = f"{state.prefix}workspaces/{one.id}"
            found.append(models.Elsewhere(id=one.id, text=text, page=page, ends_at=shown.ends_at))
    return found


# Its GPUs and its memory


def _gpus(state: Parts, lease: Lease) -> Iterator[models.Warning]:
    """Yield the warning that a GPU failed or is taken out of service."""
    if lease.unhealthy:
        yield _unhealthy(state, lease)
    elif closed := closed_gpus(state, lease):
        yield _closed(state, lease, closed)


def _unhealthy(state: Parts, lease: Lease) -> models.Warning:
    gone = state.allocator.offered_no_more(lease)
    bad, count = len(lease.unhealthy), len(lease.slots)
    few = f"{bad} of its {count} GPUs {'is' if bad == 1 else 'are'}" if count > 1 else "its GPU is"
    mend = (
        f"Save your work and stop it. It cannot be moved, because it would not start again. {gone} Start a new one "
        f"from the form. {LOST} Nothing stops unless you stop it. Your administrator sees it too."
        if gone
        else "Save your work, then move this workspace. It stops and starts again on other GPUs, first in line at its "
        f"old place. {LOST} Nothing stops unless you move it. Your administrator sees it too."
    )
    text = f"We are told that {few} unhealthy. Work on it may fail. {mend}"
    return models.Warning(kind="unhealthy", text=text, ends_at=None, actions=[] if gone else ["move"])


def closed_gpus(state: Parts, lease: Lease) -> tuple[str, ...]:
    """Return the reasons for which an administrator closed GPUs of a workspace to new workspaces."""
    known = state.allocator.observed.fleet.by_id
    found = (known.get(slot.gpu) for slot in lease.slots)
    return tuple(dict.fromkeys(gpu.closed for gpu in found if gpu is not None and gpu.closed))


def _closed(state: Parts, lease: Lease, why: tuple[str, ...]) -> models.Warning:
    can = lease.notice is None and not state.allocator.offered_no_more(lease)
    move = " Move it when it suits you: it stops, and starts again on other GPUs, at its old place." if can else ""
    text = f"{'. '.join(why)}. This workspace goes on.{move} When it stops, you lose running kernels. Your files stay."
    return models.Warning(kind="closed", text=text, ends_at=None, actions=["move"] if can else [])


def _memory(lease: Lease, now: float) -> Iterator[models.Warning]:
    """Yield that Linux killed a program for lack of memory, for an hour after the last one."""
    if not has_recent_memory_kill(lease, now) or lease.memory_killed_at is None:
        return
    size, at = show_bytes(lease.request.memory_bytes), show_time(lease.memory_killed_at, now)
    text = (
        f"Your workspace used all of its {size} of memory by {at}, and Linux killed a program in it, for example a "
        "notebook's kernel. The workspace goes on, and files stay. Restart the program and use less memory, or start a "
        "workspace with more."
    )
    yield models.Warning(kind="memory", text=text, ends_at=None, actions=[])


# Actions of its user


def present_keep(state: Parts, lease: Lease) -> models.Keep:
    """Return the keeps that are left."""
    keep = policy_of(state.catalog, lease, state.clock.now()).keep
    return models.Keep(left=max(0, keep.times - lease.keeps_used), each_seconds=keep.each_seconds)


def extension_left_seconds(state: Parts, lease: Lease) -> float:
    """Return by how much the end of a workspace may still move."""
    return max(0.0, policy_of(state.catalog, lease, state.clock.now()).extend.total_seconds - lease.extended_seconds)


def present_extend(state: Parts, lease: Lease) -> models.Extend:
    """Return by how much the end of a workspace may move, and why not."""
    extend = policy_of(state.catalog, lease, state.clock.now()).extend
    left, why = extension_left_seconds(state, lease), state.allocator.bounds.reason_not_to_extend(lease)
    return models.Extend(
        left_seconds=left, each_seconds=0.0 if why else min(extend.each_seconds, left), why=why or None
    )
