"""What could be had, what a start would do, who waits; who asks."""

from __future__ import annotations

from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.quotas.models import Budget, Limit
from gpuspawner.service.workspaces.models import HeldBack, Substitute


class Team(Answer):
    """A team that may be charged."""

    name: str
    title: str


class Whoever(Answer):
    """Who asks, and which version answers."""

    version: str
    user: str
    admin: bool
    teams: list[Team]
    team: str | None
    """The one that is charged where a start names none; null where one must be named."""
    pages: str | None
    """Where people open the service's pages; null where the hub's public address is not known."""


class Offer(Answer):
    """What there is of a kind of GPU: null is unknown, never 0 for that."""

    kind: str
    title: str
    memory_bytes: int | None
    memory_enforced: bool
    """False where others on the same GPU may use up its memory."""
    price_per_hour: float | None
    spot: bool
    """Whether it is on spot nodes, which the cloud may take back at any time."""
    free: int | None
    total: int | None
    waiting: int
    simulated: bool
    note: str
    measured: str


class Offers(Answer):
    """What could be had of every kind now."""

    offers: list[Offer]
    currency: str
    """Of the prices; "" where the catalog names none."""
    age_seconds: float | None
    held: int
    """How many GPUs who asks has, or waits for."""
    consents: dict[str, list[str]]
    """By template, which substitutes were consented to last."""
    quota: list[Limit | Budget]
    teams: list[Team]
    team: str | None


class Cost(Answer):
    """What a start costs that runs to its end."""

    amount: float | None
    """None where no price is set."""
    currency: str | None
    words: list[str]
    """What it costs, and what it leaves of each budget."""


class Outlook(Answer):
    """What a start would do now."""

    sentence: str
    starts_now: bool
    place: int | None
    asked: str
    ends_at: float | None
    team: str | None
    understood: dict[str, str]
    """What each size and time was understood to mean, by option."""
    cost: Cost
    substitutes: list[Substitute]
    quota: list[Limit | Budget]
    likely_start_at: float | None
    unchanged_start_at: float | None


class Waiter(Answer):
    """One who waits. Of others than oneself only what is waited for is told."""

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
    held_back: HeldBack | None
    changed: str | None
    precedence: str | None
    asked_at: float
    unchanged_seconds: float | None
    likely_seconds: float | None
    likely_start_at: float | None
    unchanged_start_at: float | None


class Queue(Answer):
    """Who waits, in order."""

    queue: list[Waiter]
    as_of: float
    """Of when places and waits are: in a long queue they are worked out anew now and then."""
    now: float


class Groups(Answer):
    """The hub's groups, and a sentence for each that the catalog names and the hub has not."""

    groups: list[str]
    missing: list[str]
