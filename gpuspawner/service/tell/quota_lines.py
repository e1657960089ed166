"""What bounds who asks, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.core.leases.lease import Key
from gpuspawner.core.queue.bounds import Bucket, Who
from gpuspawner.core.queue.quota_words import line_words
from gpuspawner.core.queue.quotas import Tally
from gpuspawner.service.parts import Parts


def quota_lines(parts: Parts, key: Key, user: str, teams: Sequence[str]) -> list[dict[str, Any]]:
    """Return every limit that binds the owner of a key: what is used of it now, and in words.

    ``user`` is what they are called; ``teams`` are those that they may have charged, none for who is in none.
    """
    tally = parts.queue.once("tally", lambda: Tally(parts.allocator.observed.snapshot()))
    found: dict[Bucket, dict[str, Any]] = {}
    for team in teams or ("",):
        for bound, used in tally.uses(Who(user, key.user_created, team)):
            words = line_words(bound, used, parts.catalog.gpus)
            about = {"entry": bound.entry.name, "limit": bound.limit.what.value, "kind": bound.limit.kind or None}
            amounts = {"used": float(used), "soft": _number(bound.soft), "hard": _number(bound.hard)}
            found[bound.bucket] = {"words": words, **about, **amounts}
    return [line for line in found.values() if line["words"]]


def _number(limit: Fraction | int | None) -> float | None:
    return None if limit is None else float(limit)
