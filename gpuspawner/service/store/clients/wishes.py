"""Workspaces that users wish to be ready at a time of some weekdays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.calendar.ready import Wish
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line

_json: TypeAdapter[Wish] = TypeAdapter(Wish)


class Wishes:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def all(self, hub: str) -> list[tuple[Owner, Wish]]:
        """Return those of a hub's users, each with whose it is."""
        t = tables.wishes.c
        query = sa.select(t.user_created, t.document).where(t.hub == hub).order_by(t.id)
        with self._transaction() as connection:
            return [(Owner(hub, created), _json.validate_python(row)) for created, row in connection.execute(query)]

    def of(self, owner: Owner) -> list[Wish]:
        """Return a user's, the oldest first."""
        query = sa.select(tables.wishes.c.document).where(_theirs(owner))
        with self._transaction() as connection:
            found = [_json.validate_python(document) for document in connection.scalars(query)]
        return sorted(found, key=lambda one: (one.made_at, one.id))

    def make(self, owner: Owner, one: Wish, most: int, line: AuditLine, *, once: bool = False) -> Wish | None:
        """Write one, and that it was made, and return it; None where the user has ``most`` already.

        With ``once`` one that asks for the same at the same times is returned instead: a second click.
        """
        t = tables.wishes
        with self._transaction(writes=True) as connection:
            documents = connection.scalars(sa.select(t.c.document).where(_theirs(owner)))
            known = [_json.validate_python(document) for document in documents]
            if once and (same := next((other for other in known if other.asks_the_same(one)), None)):
                return same
            if len(known) >= most:
                return None
            row = {"id": one.id, "hub": owner.hub, "user_created": owner.user_created, "document": _document(one)}
            connection.execute(t.insert(), row)
            connection.execute(tables.audit.insert(), row_of_line(line))
        return one

    def change(self, owner: Owner, name: str, how: Callable[[Wish], Wish], *audit: AuditLine) -> Wish | None:
        """Write what ``how`` makes of one as it is by now, with its audit; None where its user has removed it."""
        t = tables.wishes
        where = _theirs(owner) & (t.c.id == name)
        with self._transaction(writes=True) as connection:
            document = connection.scalar(sa.select(t.c.document).where(where))
            if document is None:
                return None
            after = how(_json.validate_python(document))
            connection.execute(t.update().where(where).values(document=_document(after)))
            if audit:
                connection.execute(tables.audit.insert(), [row_of_line(line) for line in audit])
        return after

    def remove(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete one, and write that it was; False where there is none."""
        t = tables.wishes
        with self._transaction(writes=True) as connection:
            if not connection.execute(t.delete().where(_theirs(owner) & (t.c.id == name))).rowcount:
                return False
            connection.execute(tables.audit.insert(), row_of_line(line))
        return True

    def owners(self, hub: str) -> frozenset[str]:
        """Return who of a hub's users has any, by when they were created."""
        t = tables.wishes.c
        with self._transaction() as connection:
            return frozenset(connection.scalars(sa.select(t.user_created).where(t.hub == hub).distinct()))

    def forget(self, owners: Iterable[Owner]) -> None:
        """Delete all that users have, who are no more."""
        with self._transaction(writes=True) as connection:
            for owner in owners:
                connection.execute(tables.wishes.delete().where(_theirs(owner)))


def _document(one: Wish) -> Any:
    return _json.dump_python(one, mode="json")


def _theirs(owner: Owner) -> sa.ColumnElement[bool]:
    columns = tables.wishes.c
    return (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
