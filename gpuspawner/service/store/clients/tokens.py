"""Tokens of the command line: for whom each acts, until when, and the hash by which it is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions
from gpuspawner.service.store.rows import AuditLine, row_of_line


@dataclass(frozen=True)
class TokenRow:
    """One token. ``device`` is what the machine calls itself; ``admin_until`` None where it is a plain user's."""

    id: str
    hash: str
    hub: str
    user_created: str
    user: str
    device: str
    made_at: float
    until: float
    admin_until: float | None = None

    @property
    def owner(self) -> Owner:
        """For whom it acts."""
        return Owner(self.hub, self.user_created)


class Tokens:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def make(self, row: TokenRow, line: AuditLine) -> None:
        """Write one, and that it was made."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.tokens.insert(), asdict(row))
            connection.execute(tables.audit.insert(), row_of_line(line))

    def of_hash(self, hashed: str) -> TokenRow | None:
        """Return the one with this hash, None where there is none."""
        return next(iter(self._where(tables.tokens.c.hash == hashed)), None)

    def of_owner(self, owner: Owner, now: float) -> list[TokenRow]:
        """Return somebody's that are not over, the newest first."""
        columns = tables.tokens.c
        mine = (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
        return self._where(mine & (columns.until > now))

    def revoke(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete one of somebody's by its id, and write that it was; whether there was one."""
        columns = tables.tokens.c
        mine = (columns.id == name) & (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
        with self._transaction(writes=True) as connection:
            found = connection.execute(tables.tokens.delete().where(mine)).rowcount > 0
            if found:
                connection.execute(tables.audit.insert(), row_of_line(line))
        return found

    def forget_owner(self, owner: Owner) -> None:
        """Delete all of somebody whom the hub has no more."""
        columns = tables.tokens.c
        mine = (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
        with self._transaction(writes=True) as connection:
            connection.execute(tables.tokens.delete().where(mine))

    def forget(self, now: float) -> None:
        """Delete those that are over."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.tokens.delete().where(tables.tokens.c.until <= now))

    def _where(self, where: sa.ColumnElement[bool]) -> list[TokenRow]:
        query = sa.select(tables.tokens).where(where).order_by(tables.tokens.c.made_at.desc(), tables.tokens.c.id)
        with self._transaction() as connection:
            return [TokenRow(**row) for row in connection.execute(query).mappings()]
