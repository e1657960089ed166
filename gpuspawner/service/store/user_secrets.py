"""Secrets of users: variables whose values are stored encrypted."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.personal import OwnedRows
from gpuspawner.service.store.rows import owned_by, owner_columns


@dataclass(frozen=True)
class StoredSecret:
    """A secret. ``sealed`` is its encrypted value."""

    name: str
    sealed: str
    changed_at: float


class Secrets(OwnedRows):
    """Reads and writes secrets."""

    table = tables.secrets

    def of(self, owner: Owner) -> list[StoredSecret]:
        """Return a user's secrets, by name."""
        t = tables.secrets.c
        query = sa.select(t.name, t.sealed, t.changed_at).where(owned_by(tables.secrets, owner)).order_by(t.name)
        return self._read_each(tables.secrets, query, _secret_of, key="name")

    def save(self, owner: Owner, one: StoredSecret, limit: int, line: AuditLine) -> bool:
        """Write a secret with its audit entry, in place of one of its name. Return False beyond ``limit``."""
        t, own = tables.secrets, owned_by(tables.secrets, owner)
        with self._transaction(writes=True) as connection:
            others = sa.select(sa.func.count()).select_from(t).where(own, t.c.name != one.name)
            if (connection.scalar(others) or 0) >= limit:
                return False
            connection.execute(t.delete().where(own, t.c.name == one.name))
            connection.execute(t.insert(), {**owner_columns(owner), **asdict(one)})
            write_audit(connection, [line])
        return True

    def delete(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete a secret with an audit entry. Return whether there was one."""
        t = tables.secrets
        with self._transaction(writes=True) as connection:
            found = connection.execute(t.delete().where(owned_by(t, owner) & (t.c.name == name))).rowcount > 0
            write_audit(connection, [line] if found else [])
        return found


def _secret_of(row: sa.RowMapping) -> StoredSecret:
    return StoredSecret(**row)
