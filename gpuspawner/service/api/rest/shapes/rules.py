"""Limits, budgets, use, grants and stronger claims."""

from __future__ import annotations

from pydantic import Field

from gpuspawner.service.api.rest.models import Answer


class Shown(Answer):
    """The numbers of a limit as people read them."""

    soft: str | None
    hard: str | None
    used: str | None
    waiting: str | None
    left: str | None


class Limit(Answer):
    """How much at one time. What its user waits for is not used, but no longer left. Memory is in bytes."""

    entry: str
    whose: str
    limit: str
    kind: str | None
    unit: str
    soft: float | None
    hard: float | None
    used: float
    waiting: float
    left: float | None
    shown: Shown
    words: str


class Budget(Answer):
    """How much in a day, week or month: GPU hours, or money."""

    entry: str
    whose: str
    limit: str
    per: str
    soft: float | None
    hard: float | None
    granted: float
    used: float
    set_aside: float
    left: float | None
    renews_at: float
    renews_words: str
    lasts_until: float | None
    words: str


class TakenBack(Answer):
    """Who took a grant back, when and why."""

    at: float
    by: str
    why: str


class Grant(Answer):
    """What was granted beyond a limit or budget, for a time."""

    id: str
    user: str | None
    team: str | None
    limit: str
    kind: str | None
    amount: float
    since: float
    until: float
    until_words: str
    state: str
    why: str
    by: str
    made_at: float
    now: float
    taken_back: TakenBack | None
    words: str
    note: str


class GrantList(Answer):
    """Grants, the newest first."""

    grants: list[Grant]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class Quota(Answer):
    """All that bounds a user."""

    user: str
    teams: list[str]
    now: float
    timezone: str
    contact: str
    limits: list[Limit]
    budgets: list[Budget]
    grants: list[Grant]


class UsageRow(Answer):
    """What one of them used. ``name`` is what people read, ``key`` what it is told apart by."""

    key: str
    name: str
    charged_gpu_hours: float
    """What budgets count: allocated, less what was credited, with what administrators charged besides."""
    credited_gpu_hours: float
    cost: float | None


class Usage(Answer):
    """What was used from one day to another, in the catalog's time zone."""

    by: str
    since: str
    until: str
    timezone: str
    now: float
    rows: list[UsageRow]
    charged_gpu_hours: float
    credited_gpu_hours: float
    cost: float | None


class Correction(Answer):
    """A line of the ledger that was written by hand."""

    user: str
    team: str | None
    amount: float
    limit: str
    why: str
    by: str
    at: float
    words: str
    note: str
    """What it leaves as it was: the cost, or the use of the user's teams."""


class ClaimedGpu(Answer):
    """A GPU of a claim."""

    id: str
    node: str
    share: str
    free: bool


class Victim(Answer):
    """A workspace that ends for a claim, and what its user loses."""

    id: str
    user: str
    server: str
    gpus: list[str]
    ends_at: float | None
    running_seconds: float | None
    idle_seconds: float
    loses: str
    returns: bool


class External(Answer):
    """For work outside the hub."""

    external: str


class ForTeam(Answer):
    """For a team."""

    team: str


class ForUser(Answer):
    """For a user."""

    user: str


class Claim(Answer):
    """A stronger claim: GPUs that others use, kept free for whoever it is for."""

    id: str | None
    """Null of a dry run."""
    state: str
    words: str
    dry_run: bool
    kind: str
    title: str
    count: int
    for_: External | ForTeam | ForUser = Field(alias="for")
    by: str
    key: str
    now: float
    made_at: float
    ends_at: float | None
    free_at: float | None
    kept_until: float | None
    over_at: float | None
    gpus: list[ClaimedGpu]
    victims: list[Victim]
    note: str


class ClaimList(Answer):
    """Claims, the newest first."""

    preemptions: list[Claim]
