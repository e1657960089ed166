"""The audit, looked through from the newest line on: by who, what, whose, to what and when, some lines at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from gpuspawner.core.leases.stored_events import event_of
from gpuspawner.service.store import tables
from gpuspawner.service.store.damaged import rows_of
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine

PARTS = ("gpuspawner", "hub", "cluster", "scheduler", "hub shutdown", "its own server")
"""Who acts and is no person."""


@dataclass(frozen=True)
class Sought:
    """What lines are looked for; "" and None for any. Times are seconds since the epoch, ``until`` left out.

    ``actions`` are names of events; ``target`` is a workspace by its id, a node, a GPU or a kind.
    """

    who: str = ""
    actions: Sequence[str] = ()
    user: str = ""
    target: str = ""
    since: float | None = None
    until: float | None = None
    people: bool | None = None


class Numbered(NamedTuple):
    """A line, and its number: later lines have higher ones."""

    number: int
    line: AuditLine


class AuditSearch:
    """Reads the audit. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read by the store's transactions."""
        self._transaction = transaction

    def find(self, sought: Sought, before: int | None, limit: int) -> list[Numbered]:
        """Return the newest lines that are sought, of those with a number below ``before``, where one is given."""
        t = tables.audit.c
        query = sa.select(tables.audit).where(*_where(sought)).order_by(t.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.number < before)
        with self._transaction() as connection:
            rows = rows_of(connection, query, t.fields)
        return [
            Numbered(
                row.number,
                AuditLine(
                    row.at,
                    row.lease,
                    row.user,
                    row.actor,
                    event_of(row.action, row.fields, row.why),
                    row.via,
                    row.target,
                ),
            )
            for row in rows
        ]


def _where(sought: Sought) -> list[sa.ColumnElement[bool]]:
    t = tables.audit.c
    found: list[sa.ColumnElement[bool]] = []
    if sought.who:
        found.append(t.actor == sought.who)
    if sought.actions:
        found.append(t.action.in_(sought.actions))
    if sought.user:
        found.append(t.user == sought.user)
    if sought.target:
        found.append((t.lease == sought.target) | (t.target == sought.target))
    if sought.since is not None:
        found.append(t.at >= sought.since)
    if sought.until is not None:
        found.append(t.at < sought.until)
    if sought.people is not None:
        is_part = t.actor.in_(PARTS) & (t.via == "")  # a user may be called as a part is, and acts from somewhere
        found.append(~is_part if sought.people else is_part)
    return found
