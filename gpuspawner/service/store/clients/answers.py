"""What was answered by an idempotency key, for as long as it may be asked again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions


@dataclass(frozen=True)
class AnswerRow:
    """One answer. ``of`` is the digest of who asked and their key, ``asked`` that of what they asked."""

    of: str
    at: float
    asked: str
    status: int
    text: str


class Answers:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def keep(self, row: AnswerRow) -> None:
        """Write one."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.answers.insert(), asdict(row))

    def of(self, of: str) -> AnswerRow | None:
        """Return the one of a key, None where there is none."""
        with self._transaction() as connection:
            found = connection.execute(sa.select(tables.answers).where(tables.answers.c.of == of)).mappings().first()
        return None if found is None else AnswerRow(**found)

    def forget(self, before: float) -> None:
        """Delete what was answered before."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.answers.delete().where(tables.answers.c.at < before))
