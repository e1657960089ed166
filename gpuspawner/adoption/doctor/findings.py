"""Answers, findings and options of the examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class State(Enum):
    """The result of a check. ``unknown``: it could not be examined, which is not a fault by itself."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One check: a sentence with the result, and a remedy if it is not good."""

    check: str
    state: State
    words: str
    remedy: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP. ``status`` is 0 without an answer, and ``problem`` says why.

    ``date`` is the clock of the other side in seconds since the epoch or None, ``at`` this machine's at that time.
    """

    status: int
    body: Any = None
    problem: str = ""
    date: float | None = None
    at: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return self.status in {200, 201}


def good(check: str, words: str) -> Finding:
    """Return a finding that needs nothing done."""
    return Finding(check, State.GOOD, words)


def bad(check: str, words: str, remedy: str) -> Finding:
    """Return a finding with its remedy."""
    return Finding(check, State.BAD, words, remedy)


def unknown(check: str, words: str, remedy: str) -> Finding:
    """Return a finding about something that was not examined, and how it would be."""
    return Finding(check, State.UNKNOWN, words, remedy)


@dataclass(frozen=True)
class DoctorOptions:
    """The options of ``gpuspawner server doctor``."""

    hub: str
    service: str
    token_file: str | None
    secret_file: str | None
    catalog: str | None
    kubernetes: bool
    kubeconfig: str | None
    context: str | None
    namespace: str
    account: str | None
    """The account whose rights are checked, as of ``kubectl --as``."""
