"""Measurements of the service itself: counters, and the kinds of GPU it has seen."""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.rows import StoredRows

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels by name."""


class Counters(StoredRows):
    """Reads and writes counters of metrics, so that a new service continues where the one before it ended."""

    def save(self, values: Mapping[Series, float], at: float) -> None:
        """Write counters, in place of what was stored of them."""
        t = tables.counters
        rows = [{"series": _text_of(series), "value": value, "at": at} for series, value in values.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(
                t.delete().where(t.c.series == sa.bindparam("this")), [{"this": row["series"]} for row in rows]
            )
            connection.execute(t.insert(), rows)

    def all(self) -> dict[Series, float]:
        """Return every counter."""
        query = sa.select(tables.counters)
        return dict(self._read_each(tables.counters, query, lambda row: (_series_of(row.series), row.value), "series"))

    def delete_old(self, before: float) -> None:
        """Delete counters that last changed before: those of users and teams that are gone."""
        self._delete(tables.counters, tables.counters.c.at < before)


def _text_of(series: Series) -> str:
    return json.dumps(series, ensure_ascii=False, separators=(",", ":"))


def _series_of(text: str) -> Series:
    name, labels = json.loads(text)
    return name, tuple((key, value) for key, value in labels)


class KindsSeen(StoredRows):
    """Reads and writes which kinds of GPU there have been: how many one workspace could have, and when that was."""

    def all(self) -> dict[str, tuple[int, float]]:
        """Return count and time by kind."""
        query = sa.select(tables.kinds_seen)
        return dict(self._read_each(tables.kinds_seen, query, lambda row: (row.kind, (row.largest, row.at)), "kind"))

    def save(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Write kinds as :meth:`all` returns them."""
        t = tables.kinds_seen
        rows = [{"kind": kind, "largest": largest, "at": at} for kind, (largest, at) in seen.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.kind.in_(list(seen))))
            connection.execute(t.insert(), rows)
