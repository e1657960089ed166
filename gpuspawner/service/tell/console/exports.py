"""Rows as CSV and JSON: the same values as on the page, whole lists instead of one page of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from gpuspawner.core.units import show_iso
from gpuspawner.service.web.lists import Column, Row

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A text that begins so is calculated by spreadsheets, and may send what stands beside it elsewhere."""


def csv_text(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return rows as CSV (RFC 4180), the first line the names of the columns. What is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_cell(row[column.name], column.kind) for column in columns])
    return out.getvalue()


def _cell(value: Any, kind: str) -> Any:
    """Return a value as a cell that is read and never calculated: before what would be, an apostrophe.

    Times are in ISO 8601, with their offset.
    """
    if value is None:
        return ""
    if kind == "time":
        return show_iso(value)
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else value


def json_rows(columns: Sequence[Column], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON objects with the columns' names."""
    return [{column.name: row[column.name] for column in columns} for row in rows]
