"""The audit log: each event of a workspace, a GPU or a setting, with its actor, time and reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuspawner.core.events import Disputed, Event, Stopped, StopperNamed, event_of, fields_of
from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import Row, StoredRows

NAMED_SECONDS = 600.0
"""The hub may report the actor of a stop this long after the stop."""
PARTS = ("gpuspawner", "hub", "cluster", "scheduler", "hub shutdown", "its own server")
"""Actors that are not people."""


@dataclass(frozen=True)
class AuditLine:
    """One entry.

    Args:
        at: seconds since the epoch.
        lease: the id of the workspace, "" without one.
        user: whose workspace it is.
        actor: the person or part that acted.
        event: what happened.
        where: from where a person acted, in words: ``the API``.
        target: what was acted on if it is not a workspace: a node, a GPU, a kind.
    """

    at: float
    lease: str
    user: str
    actor: str
    event: Event
    where: str = ""
    target: str = ""

    @property
    def why(self) -> str:
        """The details of the event, as people read them."""
        return self.event.describe(self.at)


@dataclass(frozen=True)
class AuditFilter:
    """Which entries to find. "" and None match all.

    ``actions`` are names of events. ``target`` is the id of a workspace, a node, a GPU or a kind. ``until`` is
    exclusive. ``people`` is whether a person acted.
    """

    who: str = ""
    actions: Sequence[str] = ()
    user: str = ""
    target: str = ""
    since: float | None = None
    until: float | None = None
    people: bool | None = None

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The conditions of the query."""
        t = tables.audit.c
        found: list[sa.ColumnElement[bool]] = []
        if self.who:
            found.append(t.actor == self.who)
        if self.actions:
            found.append(t.action.in_(self.actions))
        if self.user:
            found.append(t.user == self.user)
        if self.target:
            found.append((t.lease == self.target) | (t.target == self.target))
        if self.since is not None:
            found.append(t.at >= self.since)
        if self.until is not None:
            found.append(t.at < self.until)
        if self.people is not None:
            is_part = t.actor.in_(PARTS) & (t.via == "")  # a user may have the name of a part, but acts from somewhere
            found.append(~is_part if self.people else is_part)
        return found


class NumberedLine(NamedTuple):
    """An entry with its number. Later entries have higher numbers."""

    number: int
    line: AuditLine


def write_audit(connection: sa.Connection, lines: Iterable[AuditLine]) -> None:
    """Write entries in a transaction that has begun."""
    if rows := [_row_of(line) for line in lines]:
        connection.execute(tables.audit.insert(), rows)


class AuditLog(StoredRows):
    """Reads the audit log, newest entries first."""

    def latest(self, lease_id: str | None = None, limit: int = 100) -> list[AuditLine]:
        """Return the entries of one workspace, or of all (None)."""
        query = sa.select(tables.audit)
        return self._lines(query if lease_id is None else query.where(tables.audit.c.lease == lease_id), limit)

    def of_user(self, user: str, actions: Collection[str], limit: int) -> list[AuditLine]:
        """Return the entries of a user's workspaces. ``actions`` are names of events."""
        t = tables.audit.c
        return self._lines(sa.select(tables.audit).where(t.user == user, t.action.in_(actions)), limit)

    def search(self, wanted: AuditFilter, before: int | None, limit: int) -> list[NumberedLine]:
        """Return the entries that match, of those with a number below ``before`` if it is given.

        If the actor of a stop became known later, only the later entry is returned, because it has the actor.
        """
        t, later = tables.audit.c, tables.audit.alias()
        named = sa.exists().where(
            later.c.lease == t.lease,
            later.c.action == StopperNamed.name,
            later.c.number > t.number,
            later.c.at <= t.at + NAMED_SECONDS,
        )
        query = sa.select(tables.audit).where(*wanted.conditions, (t.action != Stopped.name) | (t.lease == "") | ~named)
        if before is not None:
            query = query.where(tables.audit.c.number < before)
        return self._numbered(query, limit)

    def count_disputes(self, since: float, until: float) -> int:
        """Return how many stops users disputed in a period."""
        t = tables.audit.c
        where = (t.action == Disputed.name) & (t.at >= since) & (t.at < until)
        return self._scalar(sa.select(sa.func.count()).select_from(tables.audit).where(where)) or 0

    def _lines(self, query: sa.Select[Any], limit: int) -> list[AuditLine]:
        return [one.line for one in self._numbered(query, limit)]

    def _numbered(self, query: sa.Select[Any], limit: int) -> list[NumberedLine]:
        query, fields = query.order_by(tables.audit.c.number.desc()).limit(limit), tables.audit.c.fields
        return self._read_each(tables.audit, query, _numbered_line_of, fields, key="number")


def _row_of(line: AuditLine) -> dict[str, object]:
    return {
        "at": line.at,
        "lease": line.lease,
        "user": line.user,
        "actor": line.actor,
        "action": line.event.name,
        "fields": fields_of(line.event),
        "via": line.where,
        "target": line.target,
    }


def _numbered_line_of(row: Row) -> NumberedLine:
    event = event_of(row["action"], row["fields"])
    line = AuditLine(row["at"], row["lease"], row["user"], row["actor"], event, row["via"], row["target"])
    return NumberedLine(row["number"], line)
