"""Idempotency keys that were used, each with its answer, for as long as they may be sent again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions

MOST_KEYS = 500
"""So many keys of one person are kept, the newest. Arbitrary: a client repeats within minutes."""
MOST_CHARACTERS = 500_000
"""So much of the answers of one person is kept, the newest; of the others only that they were given. Arbitrary."""


@dataclass(frozen=True)
class AnswerRow:
    """One key. ``of`` is the digest of person and key, ``person`` that of the person, ``asked`` that of the request.

    ``about`` names what the act made. ``text`` is "" where the service ended before the answer was known.
    """

    of: str
    person: str
    at: float
    asked: str
    status: int
    about: str = ""
    text: str = ""


class Answers:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def write(self, connection: sa.Connection, row: AnswerRow) -> None:
        """Write a key in the transaction of its act, and drop what is too much of its person."""
        t = tables.answers
        connection.execute(t.delete().where(t.c.of == row.of))
        connection.execute(t.insert(), asdict(row))
        sizes = sa.select(t.c.of, sa.func.length(t.c.text)).where(t.c.person == row.person)
        total, without_text = 0, []
        found = connection.execute(sizes.order_by(t.c.at.desc(), t.c.of)).all()
        for of, size in found[:MOST_KEYS]:
            total += size
            if size and total > MOST_CHARACTERS and of != row.of:
                without_text.append(of)
        connection.execute(t.update().where(t.c.of.in_(without_text)).values(text=""))
        connection.execute(t.delete().where(t.c.of.in_([of for of, _ in found[MOST_KEYS:]])))

    def keep(self, row: AnswerRow) -> None:
        """Write one, in place of what was stored of its key."""
        with self._transaction(writes=True) as connection:
            self.write(connection, row)

    def drop(self, of: str) -> None:
        """Forget a key: its request was refused, and may be sent again."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.answers.delete().where(tables.answers.c.of == of))

    def of(self, of: str) -> AnswerRow | None:
        """Return the one of a key, None where there is none."""
        with self._transaction() as connection:
            found = connection.execute(sa.select(tables.answers).where(tables.answers.c.of == of)).mappings().first()
        return None if found is None else AnswerRow(**found)

    def forget(self, before: float) -> None:
        """Delete what was answered before."""
        with self._transaction(writes=True) as connection:
            connection.execute(tables.answers.delete().where(tables.answers.c.at < before))
