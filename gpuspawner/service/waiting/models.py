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


class StartTimes(Answer):
    """The position of a request, and when it starts."""

    place: int | None
    """Null if its scheduler does not report it."""
    of: int | None
    form: str
    """How precisely the start is known: ``time``, ``range``, ``within the hour``, ``more than 3 hours``, or ""."""
    likely_seconds: float | None
    unchanged_seconds: float | None
    likely_start_at: float | None
    unchanged_start_at: float | None
    earliest_start_at: float | None
    """The begin of the range in which four of five requests start, null while it is not known."""
    range_end_at: float | None
    """The end of that range."""


class Standing(StartTimes):
    """The position of a waiting request, its likely start, and the sentences about both."""

    hit_rate: str
    """How often shown times of the last 30 days were right, in a sentence, "" with few of them."""
    startable_count: int | None
    """The smaller number of GPUs with which it could start now, null for none."""
    sentence: str
    why: str
    precedence: str
    """The requests that may still go first, "" if another program owns the queue."""
    wait_reason: WaitReason | None
    changed: str | None
    impossible: str | None


class WaitingRequest(StartTimes):
    """A waiting request. Names and reasons are null for requests of others."""

    id: str | None
    user: str | None
    server: str | None
    team: str | None
    mine: bool
    gpu: str | None
    count: int
    asked: str
    sentence: str | None
    wait_reason: WaitReason | None
    changed: str | None
    precedence: str | None
    asked_at: float


class Queue(Answer):
    """The waiting requests, in order."""

    queue: list[WaitingRequest]
    as_of: float
    """The time of these positions. In a long queue they are computed from time to time."""
    now: float


class HorizonAccuracy(Answer):
    """How often estimates of waits of about the same length were right."""

    title: str
    from_seconds: float
    upto_seconds: float | None
    """The longest estimated wait, null for no limit."""
    estimates: int
    """All estimates, also those of which neither a time nor a range was shown."""
    times: int
    """Estimates that showed a time."""
    right_times: int
    """Starts within ten minutes of the time."""
    ranges: int
    """Estimates with a range. Those that also showed a time are included."""
    right_ranges: int
    """Starts within the range."""


class EstimateReport(Answer):
    """How often the estimates of the last days were right. A start that is overdue counts as wrong."""

    horizons: list[HorizonAccuracy]
    period_seconds: float
    now: float
