"""What a check found, and what was answered to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class State(Enum):
    """How a check ended. ``unknown``: it could not be looked at, which is no fault by itself."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One check: what was found, in a sentence, and what to do where that is not good."""

    check: str
    state: State
    words: str
    remedy: str = ""


@dataclass(frozen=True)
class Answer:
    """What was answered: HTTP's ``status``, 0 where nobody did, and then ``problem`` says why.

    ``date`` is the answerer's clock in seconds since the epoch, ``at`` this machine's at that time; None: not told.
    """

    status: int
    body: Any = None
    problem: str = ""
    date: float | None = None
    at: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it is what was asked for."""
        return self.status in {200, 201}


def good(check: str, words: str) -> Finding:
    """Return a finding that needs nothing done."""
    return Finding(check, State.GOOD, words)


def bad(check: str, words: str, remedy: str) -> Finding:
    """Return a finding with its remedy."""
    return Finding(check, State.BAD, words, remedy)


def unknown(check: str, words: str, remedy: str) -> Finding:
    """Return what was not looked at, and how it would be."""
    return Finding(check, State.UNKNOWN, words, remedy)
