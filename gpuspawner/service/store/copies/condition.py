"""What a store is, on either database: its schema, the steps to this version's, and those of a way back."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store.schema import OPENED_BY, Step, check_ours, known_steps, newer_words, version_of


@dataclass(frozen=True)
class Condition:
    """What a store is: its schema, this version's, and the steps between them; how much it holds.

    ``revision`` is "" where no service has opened it yet. ``is_newer`` is whether this version does not know it.
    ``opened_by`` is the version of gpuspawner that opened it last, "" where that was not noted.
    """

    revision: str
    newest: str
    steps: tuple[Step, ...]
    is_newer: bool
    live: int
    ended: int
    size_bytes: int
    opened_by: str


def condition_of(connection: sa.Connection, size_bytes: int) -> Condition:
    """Return what a store is. Nothing of it is changed. Raises Unavailable where it is something else's."""
    check_ours(connection)
    known = known_steps()
    revision = str(_scalar(connection, "alembic_version", "SELECT version_num FROM alembic_version") or "")
    revisions = [step.revision for step in known]
    is_newer = bool(revision) and revision not in revisions
    after = revisions.index(revision) + 1 if revision in revisions else 0
    every = _number(connection, "leases", "SELECT count(*) FROM leases")
    ended = _number(connection, "leases", "SELECT count(*) FROM leases WHERE phase = :phase", phase=Phase.ENDED.value)
    steps = () if is_newer else known[after:]
    opened_by = version_of(_number(connection, "meta", "SELECT number FROM meta WHERE name = :name", name=OPENED_BY))
    return Condition(revision, revisions[-1], steps, is_newer, every - ended, ended, size_bytes, opened_by)


def steps_back(told: Condition, revision: str) -> tuple[Step, ...]:
    """Return the steps that a way back to a schema takes out again, the last one first.

    Raises:
        Conflict: the store is of a later version, or was never beyond that schema.
    """
    if told.is_newer:
        raise Conflict(newer_words(told.revision, told.newest, told.opened_by))
    known = known_steps()
    revisions = [step.revision for step in known]
    before = revisions[: revisions.index(told.revision)] if told.revision else []
    if revision not in before:
        raise Conflict(
            f"The store has schema {told.revision or 'none yet'}, and goes back to an earlier one: "
            f"{', '.join(before) or 'there is none'}. The older version's store check says which it knows."
        )
    return known[len(before) : revisions.index(revision) : -1]


def _scalar(connection: sa.Connection, table: str, query: str, **values: object) -> object:
    """Return the first value that a query finds, None for none and where its table is not there."""
    return connection.scalar(sa.text(query), values) if sa.inspect(connection).has_table(table) else None


def _number(connection: sa.Connection, table: str, query: str, **values: object) -> int:
    return int(str(_scalar(connection, table, query, **values) or 0))
