"""What bounds who asks, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuspawner.core.queue.bounds import Amount, Bound, Who
from gpuspawner.core.queue.quota_words import line_words
from gpuspawner.core.queue.quotas import Tally
from gpuspawner.core.rules import Whom
from gpuspawner.service.parts import Parts


def quota_lines(parts: Parts, askers: Iterable[Who]) -> list[dict[str, Any]]:
    """Return every limit that binds somebody, for each team that they may charge: what is used of it, and in words."""
    tally = Tally(parts.allocator.observed.snapshot())
    uses = {bound.bucket: (bound, used) for who in askers for bound, used in tally.uses(who)}
    lines = (_line(parts, bound, used) for bound, used in uses.values())
    return [line for line in lines if line["words"]]


def _line(parts: Parts, bound: Bound, used: Amount) -> dict[str, Any]:
    entry, limit, account = bound.entry, bound.limit, bound.bucket.account
    return {
        "entry": entry.name,
        "whose": whose(entry.whom, entry.subject, account.team),
        "limit": limit.what.value,
        "kind": limit.kind or None,
        "soft": None if bound.soft is None else float(bound.soft),
        "hard": None if bound.hard is None else float(bound.hard),
        "used": float(used),
        "words": line_words(bound, used, parts.catalog.gpus),
    }


def whose(whom: Whom, subject: str, team: str) -> str:
    """Return whom an entry counts, as people read it: ``you``, ``you in vision``, ``team vision``, ``everybody``."""
    if whom is Whom.EVERYBODY:
        return "everybody"
    if whom is Whom.TEAM:
        return f"team {subject}"
    return f"you in {team}" if team else "you"
