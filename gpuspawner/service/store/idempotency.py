"""Idempotency keys with their answers, each stored in the transaction of its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import Context, ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import StoredRows, save_rows

MAX_KEYS = 500
"""The newest keys of one person are kept. Arbitrary: a client repeats within minutes."""
MAX_ANSWER_CHARACTERS = 500_000
"""The newest answers of one person are kept, up to this length in all. Older keys lose their answer. Arbitrary."""


@dataclass(frozen=True)
class KeyRow:
    """One key.

    Args:
        id: the digest of person and key.
        person: the digest of the person.
        at: when it was used, in seconds since the epoch.
        request: the digest of the request.
        status: the HTTP status of the answer.
        about: the id of the object that the request made.
        answer: the body of the answer, "" if the service ended before it was known.
    """

    id: str
    person: str
    at: float
    request: str
    status: int
    about: str = ""
    answer: str = ""


def write_key(connection: sa.Connection, row: KeyRow) -> None:
    """Write a key in the transaction of its request, and delete what exceeds the bounds of its person."""
    t = tables.idempotency_keys
    save_rows(connection, t, [asdict(row)])
    sizes = sa.select(t.c.id, sa.func.length(t.c.answer)).where(t.c.person == row.person)
    characters, without_answer = 0, []
    found = connection.execute(sizes.order_by(t.c.at.desc(), t.c.id)).all()
    for name, size in found[:MAX_KEYS]:
        characters += size
        if size and characters > MAX_ANSWER_CHARACTERS and name != row.id:
            without_answer.append(name)
    connection.execute(t.update().where(t.c.id.in_(without_answer)).values(answer=""))
    connection.execute(t.delete().where(t.c.id.in_([name for name, _ in found[MAX_KEYS:]])))


class IdempotencyKeys(StoredRows):
    """Reads and writes keys."""

    def save(self, row: KeyRow) -> None:
        """Write a key, in place of its stored row."""
        with self._transaction(writes=True) as connection:
            write_key(connection, row)

    def get(self, name: str) -> KeyRow | None:
        """Return a key by its id, None without one."""
        rows = self._read(sa.select(tables.idempotency_keys).where(tables.idempotency_keys.c.id == name))
        return KeyRow(**rows[0]) if rows else None

    def delete(self, name: str) -> None:
        """Delete a key whose request was refused: it may be sent again."""
        self._delete(tables.idempotency_keys, tables.idempotency_keys.c.id == name)


@dataclass(eq=False)
class KeyedAct:
    """The work for a request with a key.

    ``row`` has no answer until it is known. ``stored``: a write has stored the key. ``closed``: no further write
    stores it.
    """

    row: KeyRow
    closed: bool = False
    stored: bool = False


_current: ContextVar[KeyedAct | None] = ContextVar("keyed act", default=None)


def begin_act(row: KeyRow) -> KeyedAct:
    """Let the next write of this task, or of a task that it starts, store the key."""
    act = KeyedAct(row)
    _current.set(act)
    return act


def take_key() -> KeyRow | None:
    """Return the key that a write is to store. Return None without one, and after the first call."""
    act = _open_act()
    if act is None:
        return None
    act.closed = act.stored = True
    return act.row


def drop_key() -> None:
    """Let no write store the key: the next one stores a refusal, after which the same key may be tried again."""
    if (act := _current.get()) is not None:
        act.closed = True


def set_answer(answer: Mapping[str, Any]) -> None:
    """Set the answer before the write, so that it is stored in the same transaction."""
    if (act := _open_act()) is not None:
        act.row = replace(act.row, answer=json.dumps(answer))


def set_about(name: str) -> None:
    """Set the id of what the request made before the write. A repeated request gets its state at that time."""
    if (act := _open_act()) is not None:
        act.row = replace(act.row, about=name)


def _open_act() -> KeyedAct | None:
    act = _current.get()
    return None if act is None or act.closed else act


def context_without_act() -> Context:
    """Return the context of a task that outlives the request that starts it."""
    return Context()
