"""Stored leases: each is a document, with the columns that it is searched by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import StoredRows, Whose, owned_by, read_with_damaged_json, rows_whose, save_rows

DELETED_AT_ONCE = 200
"""The number of leases, or audit entries, that one transaction deletes. It takes some milliseconds, in which no other
write is possible."""
LAST_CHARACTER = "\U0010ffff"
"""Sorts after every continuation of a text."""

_lease_json: TypeAdapter[Lease] = TypeAdapter(Lease)


class StoredLeases(StoredRows):
    """Reads and writes leases.

    A live lease that cannot be read keeps the service from serving: its GPUs would be granted again. Lists
    of ended leases leave out those that cannot be read.
    """

    @staticmethod
    def rows_of(leases: Iterable[Lease]) -> list[dict[str, Any]]:
        """Return the rows of leases, in the order of writing.

        Leases that end go first: their key may pass to a new one in the same transaction.
        """
        return [_row_of(lease) for lease in sorted(leases, key=lambda one: one.live)]

    @staticmethod
    def write(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """Write rows of leases in a transaction that has begun."""
        save_rows(connection, tables.leases, rows)

    @staticmethod
    def parse(document: Any) -> Lease:
        """Return the lease of a stored document. Raises Unavailable if it can't be read."""
        return _lease_of(document)

    def live(self) -> list[Lease]:
        """Return every lease that has not ended."""
        return self._whole(tables.leases.c.phase != Phase.ENDED.value)

    def get(self, lease_id: str) -> Lease | None:
        """Return a lease by its id, whether it has ended or not."""
        return next(iter(self._whole(tables.leases.c.id == lease_id)), None)

    def servers(self, lease_ids: Sequence[str]) -> dict[str, str]:
        """Return the name of the server of each of these leases, whether it has ended or not."""
        t = tables.leases.c
        with self._transaction() as connection:
            rows = connection.execute(sa.select(t.id, t.server).where(t.id.in_(lease_ids)))
            return {row.id: row.server for row in rows}

    def ended(self, whose: Whose, limit: int = 20, before: tuple[float, str] | None = None) -> list[Lease]:
        """Return the leases of an owner, of teams or of all that ended, newest first.

        ``before`` is the end and the id of a lease. Only leases after it in this order are returned.
        """
        t = tables.leases.c
        where = (t.phase == Phase.ENDED.value) & rows_whose(tables.leases, whose)
        if before is not None:
            at, name = before
            where &= (t.ended_at < at) | ((t.ended_at == at) & (t.id > name))
        return self._readable(sa.select(t.document).where(where).order_by(t.ended_at.desc(), t.id).limit(limit))

    def last_ended(self, key: Key) -> Lease | None:
        """Return the lease of a key that ended last."""
        t = tables.leases.c
        where = owned_by(tables.leases, key.owner) & (t.server == key.server) & (t.phase == Phase.ENDED.value)
        query = sa.select(t.document).where(where).order_by(t.ended_at.desc(), t.id).limit(1)
        return next(iter(self._readable(query)), None)

    def ended_of_user(self, user: str, limit: int) -> list[Lease]:
        """Return the leases that ended under a user's name, newest first."""
        t = tables.leases.c
        query = sa.select(t.document).where(t.user == user, t.phase == Phase.ENDED.value)
        return self._readable(query.order_by(t.ended_at.desc(), t.id).limit(limit))

    def disputed(self, whose: Whose, limit: int = 100) -> list[Lease]:
        """Return the leases of an owner, of teams or of all with an unanswered report, oldest first."""
        t = tables.leases.c
        where = t.disputed_at.is_not(None) & rows_whose(tables.leases, whose)
        return self._readable(sa.select(t.document).where(where).order_by(t.disputed_at, t.id).limit(limit))

    def search_ended(
        self, user: str, reason: str, first: int, count: int, sort: str = "-ended_at", whose: Whose = None
    ) -> tuple[list[Lease], int]:
        """Return one page of ended leases, and how many there are.

        Args:
            user: the beginning of users' names, "" for all.
            reason: the exit reason, "" for all.
            first: how many leases come before the page.
            count: the length of the page.
            sort: ``ended_at``, ``user`` or ``reason``, with ``-`` in front from high to low. Within one user or reason,
                ends are in the same direction, so that one index has the order.
            whose: the owner or the teams, None for all.
        """
        t = tables.leases.c
        # Ended leases are selected by their end, not by their phase: an index alone counts them.
        where = t.ended_at.is_not(None) & rows_whose(tables.leases, whose)
        if user:
            where &= (t.user >= user) & (t.user < user + LAST_CHARACTER)
        if reason:  # for one user, avoid the index of reasons: far more leases ended for the same reason
            where &= (sa.func.coalesce(t.reason, "") if user else t.reason) == reason
        by = [t[name] for name in dict.fromkeys((sort.removeprefix("-"), "ended_at"))]
        order = [column.desc() for column in by] if sort.startswith("-") else by
        query = sa.select(t.document).where(where).order_by(*order, t.id).offset(first).limit(count)
        with self._transaction() as connection:
            found = connection.scalar(sa.select(sa.func.count(t.ended_at)).where(where)) or 0
            return self._readable_of(connection, query), found

    def delete_ended(self, before: float, at_once: int = DELETED_AT_ONCE) -> bool:
        """Delete some leases that ended before, with their audit and readings, and older audit entries without a lease.

        A live lease keeps its whole audit. Return whether there may be more to delete.
        """
        leases, audit = tables.leases.c, tables.audit.c
        ended = sa.select(leases.id).where(leases.ended_at < before, leases.phase == Phase.ENDED.value)
        of_no_lease = sa.select(audit.number).where(audit.at < before, ~sa.exists().where(leases.id == audit.lease))
        with self._transaction(writes=True) as connection:
            ids = connection.scalars(ended.order_by(leases.ended_at).limit(at_once)).all()
            for table in (tables.audit, tables.readings):
                connection.execute(table.delete().where(table.c.lease.in_(ids)))
            connection.execute(tables.leases.delete().where(leases.id.in_(ids)))
            lines = connection.scalars(of_no_lease.order_by(audit.at).limit(at_once)).all()
            connection.execute(tables.audit.delete().where(audit.number.in_(lines)))
        return at_once in {len(ids), len(lines)}

    def _whole(self, where: sa.ColumnElement[bool]) -> list[Lease]:
        with self._transaction() as connection:
            return [_lease_of(one) for one in connection.scalars(sa.select(tables.leases.c.document).where(where))]

    def _readable(self, query: sa.Select[Any]) -> list[Lease]:
        with self._transaction() as connection:
            return self._readable_of(connection, query)

    def _readable_of(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Lease]:
        t = tables.leases.c
        rows = read_with_damaged_json(connection, query.with_only_columns(t.id, t.document), t.document)
        return self._damaged.read(tables.leases, rows, lambda row: _lease_of(row["document"]))


def _lease_of(document: Any) -> Lease:
    try:
        return _lease_json.validate_python(document)
    except ValidationError as error:
        name = document.get("id") if isinstance(document, dict) else document
        where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise Unavailable(
            f"The store holds the lease {quoted(name)}, whose {where} this version can't read. Was it written by a "
            "newer one? Nothing is served before it can be read."
        ) from error


def _row_of(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "hub": lease.key.hub,
        "user_created": lease.key.user_created,
        "server": lease.key.server,
        "user": lease.user,
        "team": lease.request.team,
        "phase": lease.phase.value,
        "asked_at": lease.asked_at,
        "ended_at": lease.ended_at,
        "document": _lease_json.dump_python(lease, mode="json"),
        "disputed_at": lease.dispute.at if lease.dispute and lease.dispute.answered_at is None else None,
        "reason": lease.reason.value if lease.reason else "",
    }
