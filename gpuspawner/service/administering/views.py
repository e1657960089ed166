"""Restrictions and what acts do, as JSON and in words."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.administering.restrictions import Measure, Restriction
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.sentences import gpu_title


def title_of(parts: Parts, one: Restriction) -> str:
    """Return what a restriction does and until when, without the full stop."""
    now = parts.clock.now()
    begins = f" from {show_time(one.begins_at, now)}" if one.begins_at > now else ""
    until = "" if one.until is None else f" until {show_time(one.until, now)}"
    kind = gpu_title(one.target, parts.catalog)
    return (
        {
            Measure.DRAIN: f"Nothing new starts on {one.target}",
            Measure.QUARANTINE: f"The GPU {one.whom or one.target} is given to nobody new",
            Measure.PAUSE: f"No {kind} is given" if one.target else "Nothing is given to anybody",
            Measure.RESERVE: f"{one.count} {kind} {_are(one.count)} reserved for {one.account.called(one.whom)}",
            Measure.EXEMPT: f"{one.whom if one.target else f'What {one.whom} runs'} is not judged as idle",
        }[one.measure]
        + begins
        + until
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def restriction_view(parts: Parts, one: Restriction) -> dict[str, Any]:
    """Return a restriction as JSON. Times are seconds since the epoch."""
    lifted = {"by": one.lifted_by, "at": one.lifted_at, "reason": one.lifted_why}
    now = parts.clock.now()
    return {
        "id": one.id,
        "what": one.measure.value,
        "target": one.target,
        "count": one.count,
        "for": one.whom,
        "title": title_of(parts, one),
        "reason": one.reason,
        "by": one.by,
        "since": one.since,
        "begins_at": max(one.since, one.begins_at),
        "until": one.until,
        "lifted": None if one.lifted_at is None else lifted,
        "state": _state(one, now),
    }


def _state(one: Restriction, now: float) -> str:
    if one.is_over(now):
        return "over" if one.lifted_at is None else "lifted"
    return "in force" if one.is_in_force(now) else "to come"


def name_of(lease: Lease) -> str:
    """Return what an administrator calls a workspace."""
    return f"{lease.user}: {lease.key.server or 'default workspace'}"


def affected_view(prefix: str, lease: Lease, words: str, ends_at: float | None) -> dict[str, Any]:
    """Return one workspace of an act as JSON, with what becomes of it."""
    return {
        "id": lease.id,
        "user": lease.user,
        "server": lease.key.server,
        "page": f"{prefix}workspaces/{lease.id}",
        "words": words,
        "ends_at": ends_at,
    }
