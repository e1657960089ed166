"""What users want to be told outside of pages."""

from __future__ import annotations

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.personal import OwnedRows
from gpuspawner.service.store.rows import owned_by, owner_columns


class Preferences(OwnedRows):
    """Reads and writes preferences. A user without a row wants every message."""

    table = tables.preferences

    def wants_start_mail(self, owner: Owner) -> bool:
        """Return whether a user wants messages about starts outside of pages."""
        query = sa.select(tables.preferences.c.start_mail).where(owned_by(tables.preferences, owner))
        with self._transaction() as connection:
            return connection.scalar(query) is not False

    def set_start_mail(self, owner: Owner, *, wanted: bool) -> None:
        """Store whether a user wants them."""
        t = tables.preferences
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(owned_by(t, owner)))
            connection.execute(t.insert(), {**owner_columns(owner), "start_mail": wanted})
