"""Models of the queue: the position of a request, and the list of waiting requests."""

from __future__ import annotations

from gpuspawner.service.api.rest.models import Answer


class WaitReason(Answer):
    """The rule that holds a request back, and since when."""

    rule: str
    entry: str | None
    words: str
    since: float | None
    owner: str | None


class Standing(Answer):
    """The position of a waiting request, and its likely start."""

    place: int | None
    """Null if its scheduler does not tell."""
    of: int | None
    likely_seconds: float | None
    unchanged_seconds: float | None
    likely_start_at: float | None
    unchanged_start_at: float | None
    form: str
    """How precisely the start is known: ``time``, ``range``, ``within the hour``, ``more than 3 hours``, or ""."""
    earliest_start_at: float | None
    """The begin of the range in which four of five requests start, null while it is not known."""
    range_end_at: float | None
    """The end of that range."""
    hit_rate: str
    """How often shown times were right, for example ``4 of 5 of the last 60 times were right``, "" while unknown."""
    startable_count: int | None
    """The smaller number of GPUs with which it could start now, null for none."""
    sentence: str
    why: str
    precedence: str
    """The requests that may still go first, "" if another program owns the queue."""
    wait_reason: WaitReason | None
    changed: str | None
    impossible: str | None


class WaitingRequest(Answer):
    """A waiting request. Names and reasons are null for requests of others."""

    id: str | None
    user: str | None
    server: str | None
    team: str | None
    mine: bool
    gpu: str | None
    count: int
    asked: str
    place: int | None
    of: int | None
    sentence: str | None
    wait_reason: WaitReason | None
    changed: str | None
    precedence: str | None
    asked_at: float
    unchanged_seconds: float | None
    likely_seconds: float | None
    likely_start_at: float | None
    unchanged_start_at: float | None
    form: str
    earliest_start_at: float | None
    range_end_at: float | None


class Queue(Answer):
    """The waiting requests, in order."""

    queue: list[WaitingRequest]
    as_of: float
    """The time of these positions. In a long queue they are computed from time to time."""
    now: float
