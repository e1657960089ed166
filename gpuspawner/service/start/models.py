"""Models of starts: the reader's account, GPUs that can be had, and the check of a start."""

from __future__ import annotations

from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.quotas.models import Budget, Limit
from gpuspawner.service.workspaces.models import Substitute


class Team(Answer):
    """A team that may be charged."""

    name: str
    title: str


class Account(Answer):
    """The reader's name, rights and teams, and the version of the service."""

    version: str
    commit: str | None
    """The Git commit of the service, null if it is not known."""
    user: str
    admin: bool
    teams: list[Team]
    team: str | None
    """The team that is charged if a start names none. Null if it must name one."""
    pages: str | None
    """The address of the service's pages, null if the hub's public address is not known."""


class Offer(Answer):
    """The GPUs of one kind. Null is unknown, and never 0 for that."""

    kind: str
    title: str
    memory_bytes: int | None
    memory_enforced: bool
    """False if others on the same GPU may use up its memory."""
    price_per_hour: float | None
    spot: bool
    """Whether it is on spot nodes, which the cloud can take back at any time."""
    free: int | None
    total: int | None
    waiting: int
    simulated: bool
    note: str
    measured: str


class Offers(Answer):
    """The kinds of GPU that can be had now."""

    offers: list[Offer]
    currency: str
    """The currency of the prices, "" if the catalog names none."""
    age_seconds: float | None
    held: int
    """The number of GPUs that the reader has or waits for."""
    consents: dict[str, list[str]]
    """The substitutes that the reader accepted last, by template."""
    quota: list[Limit | Budget]
    teams: list[Team]
    team: str | None


class Cost(Answer):
    """The cost of a start that runs to its end."""

    amount: float | None
    """Null if no price is set."""
    currency: str | None
    words: list[str]
    """The cost, and what is left of each budget."""


class Outlook(Answer):
    """The outcome of a start now."""

    sentence: str
    starts_now: bool
    place: int | None
    asked: str
    ends_at: float | None
    team: str | None
    understood: dict[str, str]
    """The meaning of each size and time, by option."""
    cost: Cost
    substitutes: list[Substitute]
    quota: list[Limit | Budget]
    likely_start_at: float | None
    unchanged_start_at: float | None


class Groups(Answer):
    """The groups of the hub, and a sentence for each that the catalog names and the hub lacks."""

    groups: list[str]
    missing: list[str]
