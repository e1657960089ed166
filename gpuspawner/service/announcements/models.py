"""Models of inboxes and announcements."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from gpuspawner.core.administration import (
    AnnouncementAudience,
    parse_announcement,
    parse_audience,
)
from gpuspawner.service.administration.models import Affected, WorkspaceIds
from gpuspawner.service.api.rest.models import Answer, Body, Query
from gpuspawner.service.web.inputs import ParsedText, Until, refused

MAX_IDS = 500
Text = Annotated[str, ParsedText(parse_announcement)]
"""Plain text of at most 500 characters."""


class InboxQuery(Query):
    """The notices to return."""

    unread: bool = False
    """Only unread notices."""


class ReadInput(Body):
    """The notices that were read, by their ids, or all of them."""

    ids: list[str] | None = Field(default=None, max_length=MAX_IDS)
    all: bool = Field(default=False, validate_default=True)

    @field_validator("all")
    @classmethod
    def _all_or_some(cls, all_: bool, info: ValidationInfo) -> bool:
        if all_ == (info.data.get("ids") is not None):
            raise refused("ids or all: true", "Take ids from the inbox.", "ids", "both, or neither")
        return all_


class Notice(Answer):
    """A notice in an inbox."""

    id: str
    at: float
    kind: str
    title: str
    text: str
    page: str | None
    server: str | None
    by: str
    unread: bool


class Shown(Answer):
    """A message that pages show the reader now. ``id`` is the id of its notice."""

    id: str
    text: str
    by: str
    made_at: float
    until: float
    until_words: str


class Inbox(Answer):
    """The newest notices, the number of unread ones, and the unread messages."""

    notices: list[Notice]
    unread: int
    messages: list[Shown]
    now: float


class PastQuery(Query):
    """The messages to return."""

    past: bool = False
    """All of the last 30 days."""


class MessageInput(Body):
    """An announcement: its recipients, its text, and the end of the time in which pages show it."""

    to: Annotated[tuple[AnnouncementAudience, str], ParsedText(parse_audience)]
    """``all``, ``user:NAME`` or ``group:NAME``."""
    text: Text
    until: Until
    """``Friday``, ``2026-12-24 18:00``, ``2h``."""
    dry_run: bool = False
    """Answer how many people it reaches, and send nothing."""


class MessageUsersInput(Body):
    """An announcement to the users of workspaces."""

    ids: WorkspaceIds
    text: Text
    until: Until
    dry_run: bool = False


class Message(Answer):
    """A message as administrators see it."""

    id: str
    to: str
    to_words: str
    text: str
    by: str
    made_at: float
    until: float
    until_words: str
    state: str
    """``shown``, ``over`` or ``withdrawn``."""
    withdrawn_at: float | None
    withdrawn_by: str | None


class Sent(Message):
    """A message, and how many people it reaches, on pages and by mail."""

    reaches: int
    mailed: int
    dry_run: bool

    @property
    def words(self) -> str:
        """The preview in sentences."""
        people = "1 person" if self.reaches == 1 else f"{self.reaches} people"
        mail = "Each gets it by email, too." if self.mailed else "No email is sent, because email is not set up."
        return f"{people} will read it until {self.until_words}: {self.to_words}. {mail}"

    @property
    def affected(self) -> list[Affected]:
        """The workspaces that it changes: none."""
        return []

    refused = affected


class MessageList(Answer):
    """Messages, the newest first."""

    messages: list[Message]
    now: float
