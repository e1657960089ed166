"""Models of what is stored of a person, and of how a person is forgotten."""

from __future__ import annotations

from typing import Any, Literal

from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.web.inputs import MAX_NAME_LETTERS, NAME, Reason, allows

PSEUDONYMISE, DELETE = "pseudonymise", "delete"


class StoredSection(Answer):
    """What is stored of one kind. ``name`` is that of the table, ``kept`` for how long it is kept."""

    name: str
    title: str
    what: str
    kept: str
    entries: int


class ExportedSection(StoredSection):
    """The same with each entry."""

    rows: list[dict[str, Any]]


class StoredData(Answer):
    """All that is stored of a person."""

    user: str
    created: str
    """When the hub created the user. It tells them from others who had the name."""
    made_at: float
    sections: list[ExportedSection]


class ForgottenSection(Answer):
    """What becomes of the entries of one kind: ``deleted`` or ``kept under the pseudonym``."""

    title: str
    entries: int
    becomes: str
    words: str


class Forgotten(Answer):
    """A person who is forgotten, or with ``dry_run`` would be."""

    dry_run: bool
    pseudonym: str
    words: str
    note: str
    sides: list[ForgottenSection]
    """What becomes of each kind of entry."""


class StoredQuery(Query):
    """The person."""

    user: str = ""
    """Of this user, for administrators (default: one's own)."""
    created: str = ""
    """When the hub created the user, if several users had the name."""


class ForgetInput(Body):
    """A person to forget."""

    user: str = allows(*NAME, min_length=1, max_length=MAX_NAME_LETTERS)
    why: Reason
    how: Literal["pseudonymise", "delete"] = "pseudonymise"
    """``pseudonymise`` keeps workspaces and their history under a pseudonym. ``delete`` deletes them."""
    created: str = ""
    """When the hub created the user, if several users had the name."""
    dry_run: bool = False
    """Whether only the effects are answered, and nothing is done."""
