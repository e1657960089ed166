"""Findings, answers over HTTP and options of the examination."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from gpuspawner.cli.client import OPENER
from gpuspawner.core.units import show_bytes


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

    ``date`` is the time of the other side's clock, in seconds since the epoch, or None. ``at`` is the time of this
    machine's clock at that moment.
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

    @property
    def why(self) -> str:
        """Why there is no good answer: the problem, or the status."""
        return self.problem or str(self.status)


def good(check: str, words: str) -> Finding:
    """Return a finding about a check without a fault."""
    return Finding(check, State.GOOD, words)


def bad(check: str, words: str, remedy: str) -> Finding:
    """Return a finding about a fault, with its remedy."""
    return Finding(check, State.BAD, words, remedy)


def unknown(check: str, words: str, remedy: str) -> Finding:
    """Return a finding about something that was not examined. ``remedy`` says how to examine it."""
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


TIMEOUT_SECONDS = 10.0
MOST_BYTES = 4 * 2**20
"""The longest answer of hub or service that is read. Arbitrary: far more than either sends."""


def fetch_answer(url: str, token: str = "") -> Answer:
    """Return the answer to a GET. Never raises."""
    headers = {"Authorization": f"token {token}"} if token else {}
    began = time.time()
    try:
        if not url.startswith(("http://", "https://")):
            return Answer(0, problem="it is no http address")
        with OPENER.open(Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - checked
            return _answer(response.status, response.read(MOST_BYTES + 1), response.headers.get("Date"), began)
    except HTTPError as error:
        with error:
            return _answer(error.code, error.read(MOST_BYTES + 1), error.headers.get("Date"), began)
    except (OSError, HTTPException, ValueError) as error:
        return Answer(0, problem=str(getattr(error, "reason", "") or error) or type(error).__name__)


def _answer(status: int, content: bytes, date: str | None, began: float) -> Answer:
    if len(content) > MOST_BYTES:
        return Answer(0, problem=too_long(MOST_BYTES))
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = content.decode(errors="replace").strip()
    return Answer(status, body, date=seconds_of(date), at=(began + time.time()) / 2)


def too_long(most_bytes: int) -> str:
    """Return why an answer was not read to its end."""
    return f"its answer is longer than {show_bytes(most_bytes)}"


def seconds_of(date: str | None) -> float | None:
    """Return HTTP's date in seconds since the epoch."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, TypeError):
        return None
