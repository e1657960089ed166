"""Suggest the known name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known name, or all known names."""
    names = list(known)
    if close := closest(name, names):
        return f"did you mean `{close}`?"
    return f"known: {', '.join(names[:20])}" if names else "none is defined; define one, or remove this"


def closest(name: str, known: Sequence[str], most: int = 100) -> str:
    """Return the known name that is most like ``name``, or ``""``. Only the first ``most`` names are compared."""
    return "".join(difflib.get_close_matches(name[:100], known[:most], n=1))  # bounded, because it is slow
