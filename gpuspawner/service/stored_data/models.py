"""Models of what is stored of a person, and of how a person is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from gpuspawner.core.administration import NOTICE_KEPT_SECONDS
from gpuspawner.core.leases.reports import KEPT_SECONDS as OUTPUT_SECONDS
from gpuspawner.core.units import show_duration
from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.notifications.sender import KEPT_SECONDS as MESSAGE_SECONDS
from gpuspawner.service.settings import Settings
from gpuspawner.service.sign_in.tokens import TOKEN_SECONDS
from gpuspawner.service.store.history import HISTORY_SECONDS
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


UNTIL_DELETED = "Until you delete it, or the hub deletes you"
_SECTIONS = {
    "leases": ("Workspaces", "What you asked for, its GPUs, times, end and options", "ended"),
    "readings": ("Measurements", "Use of GPUs and CPU by your workspaces, thinned after a day", "ended"),
    "outputs": ("Output of failed starts", "The last lines that a failed server wrote", "output"),
    "estimates": ("Estimates", "When a request was expected to start, and when it did", "history"),
    "idle_traces": ("Idle times", "How long your ended workspaces were idle, to plan the queue", "history"),
    "audit": ("History", "What happened to your workspaces, and what you did", "ended"),
    "ledger": ("Charges", "GPU hours and money for each workspace and day, with corrections", "use"),
    "usage_sums": ("Usage by day and month", "Your active, idle and charged GPU hours", "use"),
    "team_sums": ("Usage for teams", "What your teams are charged for you by the month, also in statements", "use"),
    "counters": ("Metrics", "Your GPU hours, for the charts of administrators", "metrics"),
    "quota_grants": ("Extra quota", "What was added to your quota, by whom and why", "always"),
    "presets": ("Presets", "Your saved choices for starts", "own"),
    "schedules": ("Schedules", "Your scheduled workspaces", "own"),
    "tokens": ("Logged-in machines", "Their names and rights. The tokens themselves are not stored", "token"),
    "inbox_read": ("Read notices", "Which notices you have read", "notice"),
    "outbox": ("Messages", "Mails and chat messages to you that are being sent", "message"),
    "secrets": ("Secrets", "The names of your secrets. Their values are encrypted and not exported", "own"),
    "preferences": ("Switches", "Whether you want messages about starts", "own"),
    "quota_requests": ("Requests for extra quota", "What you asked for, why, and the answer", "ended"),
}


@dataclass(frozen=True)
class SectionText:
    """The words about a table."""

    name: str
    title: str
    what: str
    kept: str


def section_of(table: str, settings: Settings) -> SectionText:
    """Return the words about a table."""
    kept = {
        "ended": f"{show_duration(settings.keep_ended_seconds)} after the end",
        "metrics": f"{show_duration(settings.keep_ended_seconds)} after the last change",
        "history": show_duration(HISTORY_SECONDS),
        "use": show_duration(settings.keep_use_seconds),
        "output": show_duration(OUTPUT_SECONDS),
        "token": f"Until it expires, {show_duration(TOKEN_SECONDS)} at most",
        "notice": show_duration(2 * NOTICE_KEPT_SECONDS),
        "message": f"{show_duration(MESSAGE_SECONDS)} after it is sent",
        "own": UNTIL_DELETED,
        "always": "Until an administrator forgets you",
    }
    title, what, how_long = _SECTIONS.get(table, (table.replace("_", " ").capitalize(), "", "own"))
    return SectionText(table, title, what, kept[how_long])


def in_order(tables: Iterable[str]) -> list[str]:
    """Return tables in the order in which pages show them."""
    order = list(_SECTIONS)
    return sorted(tables, key=lambda table: (order.index(table) if table in _SECTIONS else len(order), table))


def all_sections(settings: Settings) -> list[SectionText]:
    """Return the words about all tables."""
    return [section_of(table, settings) for table in _SECTIONS]
