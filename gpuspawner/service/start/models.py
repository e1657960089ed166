"""Models of starts: the options of one, the reader's account, GPUs that can be had, and the check of a start."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SkipValidation

from gpuspawner.service.api.rest.models import Answer, Body
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
    roles: list[str]
    """The reader's roles, for example ``user`` and ``team lead``."""
    teams: list[Team]
    team: str | None
    """The team that is charged if a start names none. Null if it must name one."""
    pages: str | None
    """The address of the service's pages, null if the hub's public address is not known."""


class Offer(Answer):
    """The GPUs of one kind. Unknown numbers are null, not 0."""

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


class StartBody(Body):
    """Options of a start. Missing options are those of the template. A template may have options of its own."""

    model_config = ConfigDict(extra="allow")

    server: str = ""
    """The name of the workspace, "" for the default one."""
    template: SkipValidation[str | None] = None
    gpu: SkipValidation[str | None] = None
    """A kind of GPU as the catalog calls it, or ``none``."""
    count: SkipValidation[int | str | None] = None
    """How many GPUs."""
    cpu: SkipValidation[float | str | None] = None
    """Cores, for example ``4`` or ``0.5``."""
    memory: SkipValidation[int | str | None] = None
    """A size, for example ``64``, ``64 GB`` or ``64GiB``. A JSON number is bytes."""
    lifetime: SkipValidation[str | None] = None
    """A run time, for example ``90`` (minutes), ``1h30`` or ``3 days``."""
    team: SkipValidation[str | None] = None
    """The team that is charged."""
    substitutes: SkipValidation[list[str] | str | None] = None
    """Kinds of GPU that may be given instead: a list, or a text with commas."""
    gpu_memory: SkipValidation[int | str | None] = None
    """The least GPU memory of a substitute, written as ``memory``."""
    repository: SkipValidation[str | None] = None
    """The repository that is cloned into the home: an address of https or ssh, without a password."""
    own_image: SkipValidation[str | None] = None
    """An image of one's own, where the template takes any."""
    tools: SkipValidation[list[str] | str | None] = None
    """Tools of the template: a list of their names, or a text with commas."""

    variables: SkipValidation[str | None] = None
    """Variables for the workspace: one ``NAME=value`` in a line. Secrets do not belong here."""
    script: SkipValidation[str | None] = None
    """A script that runs when the workspace has started."""

    def options(self) -> dict[str, Any]:
        """Return the options that were sent, with the name of the workspace as ``server``."""
        return {name: getattr(self, name) for name in self.model_fields_set}
