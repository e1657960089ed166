"""What people are told: their inbox, and messages of administrators."""

from __future__ import annotations

from pydantic import Field

from gpuspawner.core.inbox.messages import LONGEST_CHARACTERS
from gpuspawner.service.api.rest.models import Answer, Body, Query
from gpuspawner.service.api.rest.shapes.workspaces import Workspace

MOST_IDS = 500


class InboxQuery(Query):
    """Which notices."""

    unread: bool = False
    """Only those that are not read."""


class ReadBody(Body):
    """What was read: notices by their ids, or all of them."""

    ids: list[str] | None = Field(default=None, max_length=MOST_IDS)
    all: bool = False


class Notice(Answer):
    """Something that a person is told."""

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
    """A message that pages show who asks now. ``id`` is that of its notice."""

    id: str
    text: str
    by: str
    made_at: float
    until: float
    until_words: str


class Inbox(Answer):
    """The newest notices, how many are not read, and the unread messages."""

    notices: list[Notice]
    unread: int
    messages: list[Shown]
    now: float


class Elsewhere(Answer):
    """Another workspace of the same user that came while they were away."""

    id: str
    text: str
    page: str
    ends_at: float


class OneWorkspace(Workspace):
    """A workspace, with what its user is told there."""

    messages: list[Shown]
    """Those that they have not read."""
    elsewhere: list[Elsewhere]


class PastQuery(Query):
    """Which messages."""

    past: bool = False
    """All of the last 30 days."""


class MessageBody(Body):
    """What is said, to whom, until when."""

    to: str
    """``all``, ``user:NAME`` or ``group:NAME``."""
    text: str = Field(max_length=LONGEST_CHARACTERS)
    until: str
    """``Friday``, ``2026-12-24 18:00``, ``2h``."""
    dry_run: bool = False
    """Say how many people it reaches, and send nothing."""


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


class MessageList(Answer):
    """Messages, the newest first."""

    messages: list[Message]
    now: float
