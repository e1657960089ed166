"""Models of the catalog editor: versions of the catalog, changes, and their effects."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuspawner.service.api.rest.models import Answer, Body, Query
from gpuspawner.service.web.inputs import Reason, allows

EffectKind = Literal["good", "warn", "bad", "info"]
SECTIONS = "templates, policies, quotas, gpus or teams"
LAST_NUMBER = 2**31 - 1
"""The highest number of a version that every database holds."""


class CatalogChange(Body):
    """A change of the catalog: of one entry, of the whole file, or back to an earlier version.

    An entry that is a custom resource is written to the cluster, any other one to the file.
    """

    base: int = allows("the number of the version that you change", "Read the catalog again, and send its version.")
    """The version that the change was made from: of the file, or of the custom resource, 0 for a new one.

    Another newest version is a conflict.
    """
    entry: str = Field(default="", max_length=200)
    """The entry to change: its section, a dot and its name. Empty: the whole file."""
    text: str | None = None
    """The entry, or the whole file, as YAML. Null removes the entry."""
    version: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """The earlier version to go back to, instead of ``entry`` and ``text``. The service saves it as a new version."""


class CatalogSave(CatalogChange):
    """A change of the catalog to save, and why."""

    reason: Reason


class CatalogProblem(Answer):
    """One problem of the changed catalog: its line and entry, what is wrong, and what would be right."""

    line: int | None
    entry: str
    wrong: str
    right: str

    @property
    def words(self) -> str:
        """The problem in sentences."""
        place = "" if self.line is None else f"Line {self.line}, "
        return f"{place}{self.entry}: {self.wrong}. {self.right}"


class DiffLine(Answer):
    """A line of a comparison. ``sign`` is - for a removed line, + for an added one, and empty for a common one."""

    sign: Literal["", "-", "+"]
    text: str


class CatalogEffect(Answer):
    """An effect of a change on workspaces, requests or people."""

    kind: EffectKind
    words: str


class CatalogPreview(Answer):
    """The effects of a change that is not saved."""

    number: int
    """The number that it would get."""
    changes: str
    """The entries that differ, or empty if nothing differs."""
    problems: list[CatalogProblem]
    """The problems of the change. It can't be saved until this list is empty."""
    effects: list[CatalogEffect]
    diff: list[DiffLine]
    text: str
    """The whole file with the change."""


class Version(Answer):
    """A version of the catalog's file, or of an entry that is a custom resource.

    ``by`` is empty if it was changed outside of the console.
    """

    number: int
    saved_at: float
    by: str
    reason: str
    changes: str
    """The entries that differ from the version before."""
    fingerprint: str
    in_force: bool
    entry: str
    """The section and name of the entry that is a custom resource, with a dot between them. Empty for the file."""
    newest: int
    """The number of the newest version of the same entry, or of the file."""


class VersionList(Answer):
    """Versions, the newest first. ``next`` is the ``before`` of the next part, null for the last part."""

    versions: list[Version]
    next: int | None
    now: float


class VersionText(Answer):
    """A version with its text, and the comparison with another version."""

    version: Version
    text: str
    against: int | None
    """The version that it is compared with, null without one."""
    diff: list[DiffLine]


class CatalogResource(Answer):
    """An entry of the catalog that is a custom resource, and whether the console may change it."""

    entry: str
    """Its section and name, with a dot between them."""
    kind: str
    """Its kind in the cluster."""
    text: str
    """Its spec as YAML."""
    version: int
    """The number of its newest version, the ``base`` of a change. 0 if none is stored yet."""
    editable: bool
    why_not: str
    """Why it can't be changed here, and where to change it. Empty if it can."""
    refused: str
    """Why it is not in force as it is, or empty."""


class CatalogState(Answer):
    """The newest version with its text, and whether the console may change it."""

    version: Version | None
    text: str
    editable: bool
    why_not: str
    """Why it can't be changed here, and where to change it. Empty if it can."""
    kept_in: str
    """The address of the place where the catalog is kept, as its key ``console.kept_in`` says."""
    resources: list[CatalogResource]
    """The entries that are custom resources."""
    adds_resources: bool
    """Whether the console may add entries as custom resources."""


class VersionsQuery(Query):
    """The versions to list."""

    limit: int = Field(default=50, ge=1, le=100)
    before: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """``next`` of the previous part."""


class ComparisonQuery(Query):
    """The version to compare with."""

    against: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """Its number. Default: the version before."""
