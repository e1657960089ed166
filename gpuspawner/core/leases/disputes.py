"""A user's word against an end: what it says, the readings it speaks of, and what it was answered."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.errors import RequestRefused

LONGEST_CHARACTERS = 500
"""The longest text of a user or an administrator. Arbitrary: a few sentences; the readings say the rest."""


@dataclass(frozen=True)
class Dispute:
    """Times in seconds since the epoch. ``since`` and ``until`` bound the readings that decided.

    ``sentence`` may be empty: the readings are attached anyway. ``answer`` is empty until an administrator answers.
    """

    at: float
    sentence: str
    since: float
    until: float
    answer: str = ""
    answered_by: str = ""
    answered_at: float | None = None


def written(text: object, *, needed: bool = False) -> str:
    """Return a written text as it is stored: one paragraph of printable characters.

    Raises:
        RequestRefused: it is no text, too long, or empty where it is ``needed``.
    """
    remedy = "Say it in a few sentences."
    limit = f"{'1' if needed else 'none'} to {LONGEST_CHARACTERS} characters of text"
    if not isinstance(text, str):
        raise RequestRefused("sentence", f"a {type(text).__name__}", limit, remedy)
    kept = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(kept) > LONGEST_CHARACTERS or (needed and not kept):
        raise RequestRefused("sentence", f"{len(kept)} characters", limit, remedy)
    return kept
