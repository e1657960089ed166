"""Models of the catalog's versions and changes."""

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
    """A change of the catalog: of one entry, of the whole file, or back to an earlier version."""

    base: int = allows("the number of the version that you change", "Read the catalog again, and send its version.")
    """The version that the change was made from. Another newest version is a conflict."""
    entry: str = Field(default="", max_length=200)
    """The entry to change: its section, a dot and its name. Empty: the whole file."""
    text: str | None = None
    """The entry, or the whole file, as YAML. Null removes the entry."""
    version: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """Instead of ``entry`` and ``text``: the earlier version to go back to. It is saved as a new version."""


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
    """What a change does to some workspaces, requests or people."""

    kind: EffectKind
    words: str


class CatalogPreview(Answer):
    """What a change would do. Nothing was saved."""

    number: int
    """The number that it would get."""
    changes: str
    """The entries that differ, or empty if nothing differs."""
    problems: list[CatalogProblem]
    """What is wrong with it. It can't be saved until this is empty."""
    effects: list[CatalogEffect]
    diff: list[DiffLine]
    text: str
    """The whole file with the change."""


class Version(Answer):
    """A version of the catalog. ``by`` is empty if the file was changed outside of the console."""

    number: int
    saved_at: float
    by: str
    reason: str
    changes: str
    """The entries that differ from the version before."""
    fingerprint: str
    in_force: bool


class VersionList(Answer):
    """Versions, the newest first; ``next`` is the ``before`` of those that follow, null if none do."""

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


class CatalogState(Answer):
    """The newest version with its text, and whether the console may change it."""

    version: Version | None
    text: str
    editable: bool
    why_not: str
    """Why it can't be changed here, and where to change it. Empty if it can."""
    kept_in: str
    """The address of the place where the catalog is kept, as its key ``console.kept_in`` says."""


class VersionsQuery(Query):
    """Which versions."""

    limit: int = Field(default=50, ge=1, le=100)
    before: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """``next`` of the part before."""


class ComparisonQuery(Query):
    """The version to compare with."""

    against: int | None = Field(default=None, ge=1, le=LAST_NUMBER)
    """Its number. Default: the version before."""
