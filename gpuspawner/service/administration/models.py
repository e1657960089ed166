"""Models of the administrators' API: actions on workspaces, restrictions, roles and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from gpuspawner.core.administration import RestrictionKind
from gpuspawner.core.calendar import Window, parse_from, read_weekly_window
from gpuspawner.service.api.rest.models import Answer, Body, Query
from gpuspawner.service.web.inputs import InputContext, ParsedText, ReasonText, Until, allows, refused

MAX_WORKSPACES = 200
"""The most workspaces of one act. Arbitrary: a list shows as many."""
MEASURES = tuple(measure.value for measure in RestrictionKind)
NEEDS_END = frozenset({RestrictionKind.RESERVE, RestrictionKind.EXEMPT})
Measures = Literal["drain", "quarantine", "pause", "reserve", "exempt"]
MAX_PLACE = 100_000
RestrictionState = Literal["in force", "to come", "over", "lifted"]
Outcome = Literal["done", "refused"]


def _parse_ids(value: object) -> list[str]:
    is_list = isinstance(value, list) and 1 <= len(value) <= MAX_WORKSPACES
    if isinstance(value, list) and is_list and all(isinstance(one, str) and one.isascii() for one in value):
        return list(dict.fromkeys(value))
    raise refused(f"1 to {MAX_WORKSPACES} ids of workspaces", "Choose at least one.")


WorkspaceIds = Annotated[
    list[str],
    PlainValidator(_parse_ids),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_WORKSPACES}),
]
Reason = Annotated[str, ReasonText("Say why: the user reads it.")]


class BulkInput(Body):
    """The workspaces of an act, and its reason."""

    reason: Reason
    """The reason. The users of the workspaces read it."""
    dry_run: bool = False
    """Return the effects, and do nothing."""
    ids: WorkspaceIds


class StopInput(BulkInput):
    """The workspaces to stop or move, and the reason."""

    now: bool = False
    """At once, without the notice of its policy."""


class ExtendInput(BulkInput):
    """The workspaces to extend, their new end, and the reason."""

    until: Until
    """The end, for example Friday, 2026-12-24 18:00 or 3d."""


class ReorderInput(BulkInput):
    """A waiting request, its new place in the queue, and the reason. The users of the passed requests read it."""

    place: int = allows(f"1 to {MAX_PLACE}", "1 goes first.", ge=1, le=MAX_PLACE)
    """The new place among the requests for the same GPUs, from 1."""


class Affected(Answer):
    """One workspace, and the effect on it."""

    id: str
    user: str
    server: str
    page: str
    words: str
    ends_at: float | None


class BulkResult(Answer):
    """The result of an act on several workspaces, or of its dry run."""

    action: str
    dry_run: bool
    now: float
    reason: str
    words: str
    affected: list[Affected]
    refused: list[Affected]
    """The workspaces that can't be changed. ``words`` is the reason."""


class RestrictionInput(Body):
    """A restriction, and the reason. The users that it concerns read the reason."""

    what: Measures = allows(", ".join(MEASURES), "Name one of them.")
    dry_run: bool = False
    """Return the effects, and do nothing."""
    reason: Reason
    begins: Annotated[float, ParsedText(parse_from, ("now", "zone"))] | None = None
    """The beginning, for example tomorrow, 2026-12-24 18:00 or 2h. The default is now."""
    until: Until | None = Field(default=None, validate_default=True)
    """The end, for example Friday, 2026-12-24 18:00 or 3d. ``reserve`` and ``exempt`` need it."""
    every: Annotated[Window, ParsedText(read_weekly_window)] | None = None
    """For ``drain`` and ``reserve``: the part of each week between both, for example ``Thu 09:00-11:00``."""
    node: str | None = None
    """For ``drain``, and for ``reserve`` to reserve GPUs of this node only."""
    gpu: str | None = None
    """For ``quarantine``: the id of a GPU, or its node and number, for example ``node-1/0``."""
    kind: str | None = None
    """For ``reserve`` and ``pause``. A pause without a kind is for all GPUs."""
    count: int | None = None
    """For ``reserve``."""
    user: str | None = allows("users of the hub", "Name one as the hub does.", default=None)
    """For ``reserve`` and ``exempt``."""
    team: str | None = None
    """For ``reserve``."""
    group: str | None = None
    """For ``reserve``: a group of the hub, for example a class."""
    replaces: str | None = None
    """For ``drain`` and ``reserve``: the id of the restriction that this one replaces."""
    ids: WorkspaceIds | None = None
    """For ``exempt``: workspaces."""

    @field_validator("until")
    @classmethod
    def _ends_after_it_begins(cls, until: float | None, info: ValidationInfo[InputContext]) -> float | None:
        if until is None and info.data.get("what") in NEEDS_END:
            raise refused("a time, for example Friday, 2026-12-24 18:00 or 3d", "Give the end.")
        if until is not None and until <= (info.data.get("begins") or 0.0):
            raise refused("after it begins", "End it after it begins.")
        return until


class Lifted(Answer):
    """The administrator who lifted it, the time and the reason."""

    by: str
    at: float | None
    reason: str


EFFECTS: Mapping[str, str] = {
    "drain": "No new workspace starts there",
    "quarantine": "No new workspace gets it",
    "pause": "No waiting request gets one",
    "reserve": "Nobody else gets them",
    "exempt": "No idle stops",
}
"""The effect of each measure, as a list shows it."""


class Restriction(Answer):
    """One restriction. ``title`` is its effect in words."""

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
    state: RestrictionState
    on: str
    """Its target, as people read it."""
    every: str
    """The part of each week in which it is in force, or ""."""
    next_from: float | None
    """The beginning of its present or next time. Null once it is over."""
    next_until: float | None

    @property
    def effect(self) -> str:
        """Its effect, as a list shows it."""
        return EFFECTS[self.what]


class ReservationConflict(Answer):
    """A time in which fewer GPUs are left than a reservation asks for. ``words`` says why."""

    begins_at: float
    until: float
    left: int
    words: str


class ReservationChoice(Answer):
    """A reservation that fits instead."""

    count: int
    begins_at: float
    until: float
    words: str


class RestrictionResult(Answer):
    """The restrictions that were made, or would be, and the workspaces that they concern now."""

    restrictions: list[Restriction]
    words: str
    affected: list[Affected]
    refused: list[Affected]
    """The workspaces that have ended. ``words`` says so."""
    conflicts: list[ReservationConflict]
    """Conflicts with other reservations and maintenance, at most 20."""
    choices: list[ReservationChoice]
    """Reservations that fit instead of one with conflicts."""
    dry_run: bool
    now: float


class RestrictionList(Answer):
    """Restrictions, the newest first."""

    restrictions: list[Restriction]
    now: float


class LiftInput(Body):
    """The reason to lift a restriction."""

    reason: Reason


class PastQuery(Query):
    """The restrictions to list."""

    past: bool = False
    """Include restrictions that are over."""


class RolePerson(Answer):
    """A person who has used a role, with their scopes."""

    name: str
    scopes: list[str]


class RoleEntry(Answer):
    """A role, the scope of the hub that gives it, and the people who have used it since the service started."""

    role: str
    scope: str
    may: dict[str, str]
    """Its permissions, each with its reach: ``own``, ``team`` or ``all``."""
    people: list[RolePerson]


class RoleList(Answer):
    """The roles of people."""

    roles: list[RoleEntry]


class AuditQuery(Query):
    """The entries to list."""

    by: Literal["", "people", "parts"] = ""
    """Only what people did, or only gpuspawner, hub and cluster."""
    who: str = Field(default="", max_length=255)
    what: str = Field(default="", max_length=100)
    """An action, as ``action`` of an entry."""
    user: str = Field(default="", max_length=255)
    """The owner of the workspace or grant."""
    target: str = Field(default="", max_length=255)
    """A workspace by its id, a node, a GPU or a kind."""
    since: str = Field(default="", max_length=20)
    """The first day, for example 2026-11-01."""
    until: str = Field(default="", max_length=20)
    """The last day."""
    limit: int = Field(default=200, ge=1, le=1000)
    before: str = Field(default="", max_length=20)
    """``next`` of the previous part."""


class AuditEntry(Answer):
    """One act: its actor, target, origin, time, reason and outcome."""

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
    outcome: Outcome
    fields: dict[str, Any] | None


class AuditPage(Answer):
    """Entries, the newest first. ``next`` is the ``before`` of the next part, null for the last part."""

    audit: list[AuditEntry]
    next: int | None
    now: float
