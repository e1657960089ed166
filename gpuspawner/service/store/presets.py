"""What people saved of the form, by names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions


@dataclass(frozen=True)
class Preset:
    """A user's own choices. ``options`` are as the form sends them: whether they may be had is judged at use."""

    name: str
    options: Mapping[str, Any]
    saved_at: float


class Presets:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def of(self, owner: Owner) -> list[Preset]:
        """Return a user's, by name."""
        t = tables.presets
        query = sa.select(t.c.name, t.c.options, t.c.saved_at).where(_theirs(owner)).order_by(t.c.name)
        with self._transaction() as connection:
            return [Preset(*row) for row in connection.execute(query)]

    def save(self, owner: Owner, one: Preset, most: int) -> bool:
        """Write one, in place of an earlier one of its name; False where the user has ``most`` others already."""
        t = tables.presets
        with self._transaction(writes=True) as connection:
            others = sa.select(sa.func.count()).select_from(t).where(_theirs(owner), t.c.name != one.name)
            if (connection.scalar(others) or 0) >= most:
                return False
            connection.execute(t.delete().where(_theirs(owner), t.c.name == one.name))
            row = {"name": one.name, "options": dict(one.options), "saved_at": one.saved_at}
            connection.execute(t.insert(), {"hub": owner.hub, "user_created": owner.user_created, **row})
        return True

    def rename(self, owner: Owner, before: str, name: str) -> bool:
        """Give one another name; False where there is none, or one is called so already."""
        t = tables.presets
        with self._transaction(writes=True) as connection:
            if connection.scalar(sa.select(t.c.name).where(_theirs(owner), t.c.name == name)):
                return False
            changed = connection.execute(t.update().where(_theirs(owner), t.c.name == before).values(name=name))
            return changed.rowcount > 0

    def owners(self, hub: str) -> frozenset[str]:
        """Return who of a hub's users has any, by when they were created."""
        t = tables.presets.c
        with self._transaction() as connection:
            return frozenset(connection.scalars(sa.select(t.user_created).where(t.hub == hub).distinct()))

    def forget(self, owners: Iterable[Owner]) -> None:
        """Delete all that users have, who are no more."""
        with self._transaction(writes=True) as connection:
            for owner in owners:
                connection.execute(tables.presets.delete().where(_theirs(owner)))

    def delete(self, owner: Owner, name: str) -> bool:
        """Forget one; False where there is none."""
        t = tables.presets
        with self._transaction(writes=True) as connection:
            return connection.execute(t.delete().where(_theirs(owner), t.c.name == name)).rowcount > 0


def _theirs(owner: Owner) -> sa.ColumnElement[bool]:
    columns = tables.presets.c
    return (columns.hub == owner.hub) & (columns.user_created == owner.user_created)
