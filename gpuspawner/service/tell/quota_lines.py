"""What bounds who asks, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from gpuspawner.core.queue.bounds import Bound, Who
from gpuspawner.core.queue.quota_words import shown
from gpuspawner.core.queue.quotas import Tally
from gpuspawner.core.rules import What, Whom
from gpuspawner.service.parts import Parts


def quota_lines(parts: Parts, askers: Iterable[Who]) -> list[dict[str, Any]]:
    """Return every limit that binds somebody, for each team that they may charge: what is used of it, and in words."""
    seen = parts.allocator.observed.snapshot()
    tally = Tally(seen)
    bounds = {bound.bucket: bound for who in askers for bound in tally.bounds(who)}
    return [_line(parts, bound, tally.used(bound)) for bound in bounds.values()]


def _line(parts: Parts, bound: Bound, used: Fraction) -> dict[str, Any]:
    entry, limit, account = bound.entry, bound.limit, bound.bucket.account
    return {
        "entry": entry.name,
        "whose": whose(entry.whom, entry.subject, account.team),
        "limit": limit.what.value,
        "kind": limit.kind or None,
        "soft": None if bound.soft is None else float(bound.soft),
        "hard": None if bound.hard is None else float(bound.hard),
        "used": float(used),
        "words": _words(parts, bound, used),
    }


def _words(parts: Parts, bound: Bound, used: Fraction) -> str:
    limit, kinds, team = bound.limit, parts.scheduler.kinds, bound.bucket.account.team
    how = {Whom.TEAM: f"in use by team {team}", Whom.EVERYBODY: "in use by all"}.get(
        bound.entry.whom, "used or waited for" + (f" in {team}" if team else "")
    )
    has = shown(limit, used, kinds).split(" ")[0] if limit.what is not What.MEMORY else shown(limit, used, kinds)
    if bound.hard is None:
        return f"{has} of a share of {shown(limit, bound.soft or Fraction(0), kinds)} {how}"
    words = f"{has} of {shown(limit, bound.hard, kinds)} {how}"
    return words if bound.soft is None else f"{words}; the share is {shown(limit, bound.soft, kinds)}"


def whose(whom: Whom, subject: str, team: str) -> str:
    """Return whom an entry counts, as people read it: ``you``, ``you in vision``, ``team vision``, ``everybody``."""
    if whom is Whom.EVERYBODY:
        return "everybody"
    if whom is Whom.TEAM:
        return f"team {subject}"
    return f"you in {team}" if team else "you"
