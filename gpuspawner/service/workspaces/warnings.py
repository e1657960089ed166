"""Warnings of a workspace: its arrival, its GPUs and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.leases.lease import UP, Key, Lease, Owner
from gpuspawner.core.leases.memory_kills import is_recent
from gpuspawner.core.units import show_bytes, show_duration, show_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of

HOW = "Open it, connect by SSH, or use its GPU"


def claim_ends_at(lease: Lease) -> float | None:
    """Return by when somebody has to come, in seconds since the epoch; None where nobody has to."""
    if lease.arrival is None or lease.phase not in UP:
        return None
    since = lease.sampled_at or lease.running_at or lease.phase_since
    return max(since, lease.ready_at or 0.0) + lease.arrival.left_seconds


def arrival_view(lease: Lease, now: float) -> dict[str, Any] | None:
    """Return that a workspace came while its user was away, as JSON; None where nobody has to come to it."""
    ends_at = claim_ends_at(lease)
    if lease.arrival is None or ends_at is None:
        return None
    since = show_time(lease.running_at or lease.phase_since, now)
    words = f"It is ready since {since}. {HOW} by {show_time(ends_at, now)}."
    return {"ends_at": ends_at, "claim_seconds": lease.arrival.claim_seconds, "words": words}


def awaited_words(lease: Lease, because: str, now: float) -> str:
    """Return where its idleness stands: it does not count before somebody came, or the time for it is over."""
    until = show_time(claim_ends_at(lease) or now, now)
    words = f"idle time counts once somebody came, or from {until}"
    return f"{words}; {because}" if because else words


def unclaimed_warning(lease: Lease, keep: Sequence[str], now: float) -> dict[str, Any] | None:
    """Return the warning to its user; None before half of the time has passed. ``keep``: what can be done about it."""
    ends_at = claim_ends_at(lease)
    if lease.arrival is None or ends_at is None or lease.arrival.warned_after_seconds is None:
        return None
    since = show_time(lease.running_at or lease.phase_since, now)
    text = f"It is ready since {since}, and nobody has come to it. {HOW} by {show_time(ends_at, now)}"
    if lease.streak.mode is not Mode.ENFORCE:
        text += ", or stop it if you do not need it. Nothing is stopped for it."
        return {"kind": "unclaimed", "text": text, "ends_at": None, "actions": list(keep)}
    text += ": else it goes to who waits next. Files stay."
    return {"kind": "unclaimed", "text": text, "ends_at": ends_at, "actions": list(keep)}


def claim_words(parts: Parts, lease: Lease) -> str:
    """Return what its user has to do once a workspace runs that was granted while they were away; "" for nothing."""
    policy = policy_of(parts.catalog, lease, parts.clock.now())
    if not lease.slots or policy.mode is not Mode.ENFORCE:
        return ""
    now, ready_at = parts.clock.now(), lease.ready_at or 0.0
    since = f" of {show_time(ready_at, now)}" if ready_at > now else ""
    return f" {HOW} within {show_duration(policy.claim_seconds)}{since}: else it goes to who waits next."


def elsewhere(parts: Parts, lease: Lease) -> list[dict[str, Any]]:
    """Return which other workspaces of the same user came while they were away: told in this one's JupyterLab too."""
    now, found = parts.clock.now(), []
    for one in parts.registry:
        view = arrival_view(one, now) if one.id != lease.id and one.key.owner == lease.key.owner else None
        if view is not None:
            name = one.key.server or "your default workspace"
            page = f"{parts.prefix}workspaces/{one.id}"
            text = f"Another workspace of yours, {name}, came. {view['words']}"
            found.append({"id": one.id, "text": text, "page": page, "ends_at": view["ends_at"]})
    return found


def reach_words(parts: Parts, user: str, key: Key) -> str:
    """Return what tells a user who has closed the page that the workspace of this key starts, in a sentence."""
    reached = parts.notifier.reaches(user)
    if reached:
        return "You get a message when it starts."
    labs = parts.queue.once("labs", lambda: _labs(parts)).get(key.owner, set()) - {key.server}
    if labs:
        name = min(labs) or "your default workspace"
        return f"JupyterLab of {name} tells you when it starts."
    if reached is None:
        return "You get a message when it starts, if the hub knows your mail address."
    return "Nothing else tells you when it starts: come back to look."


def _labs(parts: Parts) -> dict[Owner, set[str]]:
    """Return of whose workspaces JupyterLab may tell them something: by name."""
    found: dict[Owner, set[str]] = {}
    for lease in parts.registry:
        opens = lease.request.opens
        if lease.phase in UP and lease.request.template and (not opens or "lab" in opens):
            found.setdefault(lease.key.owner, set()).add(lease.key.server)
    return found


def _unhealthy(parts: Parts, lease: Lease) -> dict[str, Any]:
    """Return what is to be told of a GPU that failed under a workspace: moving is its user's to choose."""
    gone = parts.allocator.offered_no_more(lease)
    bad, all_of_it = len(lease.unhealthy), len(lease.slots)
    few = f"{bad} of its {all_of_it} GPUs {'is' if bad == 1 else 'are'}" if all_of_it > 1 else "its GPU is"
    mend = (
        f"Save, and stop it: it can't be moved, as it would not start again. {gone} Ask anew on the form. Running "
        "kernels are lost then; files stay. Nothing is stopped unless you stop it; the administrator sees it too."
        if gone
        else "Save, then move this workspace: it stops, and starts again by itself on other GPUs, first in the queue "
        "at its old place. Running kernels are lost then; files stay. Nothing is stopped unless you move it; the "
        "administrator sees it too."
    )
    text = f"We are told that {few} unhealthy: work on it may fail. {mend}"
    return {"kind": "unhealthy", "text": text, "ends_at": None, "actions": [] if gone else ["move"]}


def closed_gpus(parts: Parts, lease: Lease) -> tuple[str, ...]:
    """Return why an administrator lets nobody new have the GPUs of a workspace, in words; none where they do."""
    known = parts.allocator.observed.fleet.by_id
    found = (known.get(slot.gpu) for slot in lease.slots)
    return tuple(dict.fromkeys(gpu.closed for gpu in found if gpu is not None and gpu.closed))


def _closed(parts: Parts, lease: Lease, why: tuple[str, ...]) -> dict[str, Any]:
    """Return what is told of a GPU that an administrator takes out of service: moving is its user's to choose."""
    can = lease.notice is None and not parts.allocator.offered_no_more(lease)
    move = (
        " Move it when it suits you: it stops, and starts again by itself elsewhere, at its old place." if can else ""
    )
    text = f"{'. '.join(why)}. This workspace goes on.{move} Running kernels are lost when it stops; files stay."
    return {"kind": "closed", "text": text, "ends_at": None, "actions": ["move"] if can else []}


def of_gpus(parts: Parts, lease: Lease) -> Iterator[dict[str, Any]]:
    """Yield what is to be told of its GPUs: that one failed, or is taken out of service."""
    if lease.unhealthy:
        yield _unhealthy(parts, lease)
    elif closed := closed_gpus(parts, lease):
        yield _closed(parts, lease, closed)


def of_memory(lease: Lease, now: float) -> Iterator[dict[str, Any]]:
    """Yield that a program was killed, for an hour after the last one was."""
    if not is_recent(lease, now) or lease.memory_killed_at is None:
        return
    size, at = show_bytes(lease.request.memory_bytes), show_time(lease.memory_killed_at, now)
    text = (
        f"Your workspace used all of its {size} of memory by {at}, and Linux killed a program in it, for example a "
        "notebook's kernel. The workspace goes on, and files stay. Restart the program and use less memory, or start a "
        "workspace with more."
    )
    yield {"kind": "memory", "text": text, "ends_at": None, "actions": []}
