"""Counters of the metrics, as they were told last: a service goes on counting where the one before it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa

from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Transactions

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels by name."""


class CounterRows:
    """Their table. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Read and write by the store's transactions."""
        self._transaction = transaction

    def save(self, values: Mapping[Series, float], at: float) -> None:
        """Write some, in place of what was stored of them."""
        t = tables.counters
        rows = [{"series": _text(series), "value": value, "at": at} for series, value in values.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(
                t.delete().where(t.c.series == sa.bindparam("this")), [{"this": r["series"]} for r in rows]
            )
            connection.execute(t.insert(), rows)

    def all(self) -> dict[Series, float]:
        """Return every one."""
        t = tables.counters.c
        with self._transaction() as connection:
            return {_series(text): value for text, value in connection.execute(sa.select(t.series, t.value))}

    def forget(self, before: float) -> None:
        """Delete what was counted last before: users who are gone, teams that are no more."""
        t = tables.counters
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(t.c.at < before))


def _text(series: Series) -> str:
    return json.dumps(series, ensure_ascii=False, separators=(",", ":"))


def _series(text: str) -> Series:
    name, labels = json.loads(text)
    return name, tuple((key, value) for key, value in labels)
