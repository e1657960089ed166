"""What administrators send and are answered: acts, restrictions, the audit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpuspawner.service.api.rest.models import Answer, Body, Query

Measures = Literal["drain", "quarantine", "pause", "reserve", "exempt"]


class AdministerBody(Body):
    """Which workspaces, and why: their users read it."""

    ids: list[str] = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=500)
    until: str | None = None
    """Of ``extend``: such as Friday, 2026-12-24 18:00, or 3d."""
    now: bool = False
    """Of ``stop`` and ``move``: at once, without the notice of its policy."""
    dry_run: bool = False


class Affected(Answer):
    """One workspace, and what becomes of it."""

    id: str
    user: str
    server: str
    page: str
    words: str
    ends_at: float | None


class Done(Answer):
    """What was done, or would be."""

    action: str
    dry_run: bool
    now: float
    reason: str
    words: str
    affected: list[Affected]
    refused: list[Affected]
    """Those to which it can't be done; ``words`` is why."""


class RestrictionBody(Body):
    """What is kept from being given or judged, and why."""

    what: Measures
    reason: str = Field(min_length=1, max_length=500)
    begins: str | None = None
    """From when on, such as tomorrow, 2026-12-24 18:00, or 2h; now where it is left out."""
    until: str | None = None
    """Such as Friday, 2026-12-24 18:00, or 3d; needed by ``reserve`` and ``exempt``."""
    dry_run: bool = False
    node: str | None = None
    """Of ``drain``."""
    gpu: str | None = None
    """Of ``quarantine``: its id."""
    kind: str | None = None
    """Of ``reserve``, and of ``pause``, where none means everything."""
    count: int | None = None
    """Of ``reserve``."""
    user: str | None = None
    """Of ``reserve`` and ``exempt``."""
    team: str | None = None
    """Of ``reserve``."""
    ids: list[str] | None = None
    """Of ``exempt``: workspaces."""


class Lifted(Answer):
    """Who lifted it, when and why."""

    by: str
    at: float | None
    reason: str


class Restriction(Answer):
    """One restriction; ``title`` is what it does, in words."""

    id: str
    what: Measures
    target: str
    count: int
    for_: str = Field(alias="for")
    title: str
    reason: str
    by: str
    since: float
    """When it was made."""
    begins_at: float
    until: float | None
    lifted: Lifted | None
    state: Literal["in force", "to come", "over", "lifted"]


class Restricted(Answer):
    """What was made, or would be, and whom it concerns now."""

    restrictions: list[Restriction]
    words: str
    affected: list[Affected]
    refused: list[Affected]
    """Workspaces that have ended; ``words`` says so."""
    dry_run: bool
    now: float


class RestrictionList(Answer):
    """Restrictions, the newest first."""

    restrictions: list[Restriction]
    now: float


class LiftBody(Body):
    """Why it is lifted."""

    reason: str = Field(min_length=1, max_length=500)


class PastQuery(Query):
    """Which restrictions."""

    past: bool = False
    """Those that are over, too."""


class AuditQuery(Query):
    """Which lines."""

    by: Literal["", "people", "parts"] = ""
    """Only what people did, or only gpuspawner, hub and cluster."""
    who: str = Field(default="", max_length=255)
    what: str = Field(default="", max_length=100)
    """An action, as a line has it."""
    user: str = Field(default="", max_length=255)
    """Whose workspace or grant it was."""
    target: str = Field(default="", max_length=255)
    """A workspace by its id, a node, a GPU or a kind."""
    since: str = Field(default="", max_length=20)
    """The first day, such as 2026-11-01."""
    until: str = Field(default="", max_length=20)
    """The last day."""
    limit: int = Field(default=200, ge=1, le=1000)
    before: str = Field(default="", max_length=20)
    """Where to go on: ``next`` of the part before."""


class AuditRecord(Answer):
    """Who did what, to what, from where, when, why, and what came of it."""

    id: str
    number: int
    at: float
    actor: str
    where: str
    what: str
    action: str
    user: str
    target: str
    page: str
    why: str
    outcome: Literal["done", "refused"]
    fields: dict[str, Any] | None


class AuditPage(Answer):
    """Lines, the newest first; ``next`` is the ``before`` of those that follow, null where none do."""

    audit: list[AuditRecord]
    next: int | None
    now: float
