"""Which known name somebody meant who wrote another."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the remedy for a name that is not known: the closest one that is, or all of them."""
    names = list(known)
    if close := closest(name, names):
        return f"did you mean `{close}`?"
    return f"known: {', '.join(names[:20])}" if names else "none is defined; define one, or remove this"


def closest(name: str, known: Sequence[str], most: int = 100) -> str:
    """Return the known name that ``name`` is most like, ``""`` where it is like none. ``most`` are looked at."""
    return "".join(difflib.get_close_matches(name[:100], known[:most], n=1))  # bounded: it is slow
