"""Lists of the admin pages: filtered, sorted and paged by their address, and exported as CSV and JSON. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.units import show_iso

PAGE_ROWS = 50
MAX_PAGES = 1000
"""The most pages of a list. Arbitrary: more than anybody reads. A filter finds the rows behind them."""
MAX_FILTER_LETTERS = 100
EXPORTED_DECIMALS = 9
"""The decimals of exported numbers. More would show the rounding errors of sums: 99.99999999999999."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet calculates a text with one of these beginnings, and may send other cells elsewhere."""

Row = Any
"""A frozen value with an attribute for each column and each filter, and ``id``."""


@dataclass(frozen=True)
class Column:
    """An attribute of each row.

    Args:
        name: the attribute, and the name in addresses, JSON and CSV.
        title: the heading on the page.
        kind: how a page writes it: ``text``, ``number``, ``amount``, ``hours``, ``money``, ``percent``, ``seconds`` (a
            duration), ``time`` (seconds since the epoch), ``person`` (a user's name, with a link), ``workspace`` (a
            name that links to the row's ``page``), ``gpus``, ``state``, ``bar`` (a percentage) or ``words`` (a
            sentence, never sorted).
        absent: what a screen reader says for None.
        exported_only: whether only CSV and JSON have it.
    """

    name: str
    title: str
    kind: str = "text"
    absent: str = "not known"
    exported_only: bool = False

    @property
    def is_number(self) -> bool:
        """Whether its values are aligned to the right."""
        return self.kind in {"number", "amount", "hours", "money", "percent", "seconds", "time"}

    @property
    def falls_first(self) -> bool:
        """Whether the first click sorts from high to low."""
        return self.is_number or self.kind == "bar"


@dataclass(frozen=True)
class Filter:
    """A condition on rows: one value of ``name`` if it has ``choices``, else a part of one of the columns ``within``.

    ``parse`` turns the typed text into the text to look for. It raises RequestRefused for a wrong text.
    """

    name: str
    title: str
    choices: tuple[tuple[str, str], ...] = ()
    within: tuple[str, ...] = ()
    parse: Callable[[str], str] | None = None
    input_type: str = "search"
    """The type of the page's input: ``search`` or ``date``."""

    def matches(self, row: Row, wanted: str) -> bool:
        """Return whether a row fulfils it."""
        if self.choices:
            return str(getattr(row, self.name)) == wanted
        return any(
            wanted.casefold() in str(getattr(row, name) or "").casefold() for name in self.within or (self.name,)
        )


@dataclass(frozen=True)
class Table:
    """The columns, filters and orders of a list.

    Args:
        name: the last part of its address, and the name of its files.
        columns: its columns.
        filters: its filters.
        sort: its order by default: a column, after ``-`` from high to low. A list without it has one order.
        others: arguments of its address that are not the list's own.
        choices: further arguments with the values that each may have. The first is the default.
        sorted_by: the columns that it can be sorted by, if not by all.
    """

    name: str
    columns: tuple[Column, ...]
    filters: tuple[Filter, ...] = ()
    sort: str = ""
    others: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sorted_by: tuple[str, ...] = ()

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns of its page."""
        return tuple(column for column in self.columns if not column.exported_only)

    def can_sort_by(self, column: Column) -> bool:
        """Return whether it can be sorted by a column."""
        return bool(self.sort) and column.kind != "words" and (not self.sorted_by or column.name in self.sorted_by)


@dataclass(frozen=True)
class ListState:
    """The state of a list: its filters, order and page, as its address has them. ``kept`` are other arguments."""

    table: Table
    filters: Mapping[str, str] = field(default_factory=dict)
    sort: str = ""
    page: int = 1
    kept: Mapping[str, str] = field(default_factory=dict)

    def query(self, **changes: Any) -> str:
        """Return the query of the address, "" for the default state. Another filter or order begins at page 1."""
        state: dict[str, Any] = {**self.kept, **self.filters, "sort": self.sort, "page": self.page}
        if changes and "page" not in changes:
            state["page"] = 1
        state |= changes
        defaults = {"sort": self.table.sort, "page": 1}
        said = {name: value for name, value in state.items() if value != "" and value != defaults.get(name)}
        return f"?{urlencode(said)}" if said else ""

    def query_sorted_by(self, column: Column) -> str:
        """Return the query that sorts by a column. If the list is sorted by it already, it is the other direction."""
        first = f"-{column.name}" if column.falls_first else column.name
        other = column.name if first.startswith("-") else f"-{column.name}"
        return self.query(sort=other if self.sort == first else first)

    def direction(self, column: Column) -> str:
        """Return the order of a column as ARIA names it, "" for a column that the list is not sorted by."""
        if self.sort.removeprefix("-") != column.name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"


@dataclass(frozen=True)
class ListPart:
    """One page of a list. ``found`` rows match the filters, of ``total``."""

    state: ListState
    rows: tuple[Row, ...]
    found: int
    total: int

    @property
    def pages(self) -> int:
        """The number of pages, at least 1."""
        return max(1, min(MAX_PAGES, -(-self.found // PAGE_ROWS)))

    @property
    def first(self) -> int:
        """The number of the first row, 0 without rows."""
        return (self.state.page - 1) * PAGE_ROWS + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The number of the last row."""
        return (self.state.page - 1) * PAGE_ROWS + len(self.rows)


def parse_list_state(table: Table, arguments: Mapping[str, Sequence[str]]) -> ListState:
    """Parse the arguments of an address. The last of several with one name counts.

    Raises:
        RequestRefused: an argument does not exist, or has a wrong value.
    """
    last = {name: values[-1].strip() for name, values in arguments.items() if values}
    known = {one.name: one for one in table.filters}
    others = (*table.others, *table.choices)
    for name, text in last.items():
        if name not in {*known, *others, "sort", "page"}:
            allowed = ", ".join([*known, *others, "sort", "page"])
            raise RequestRefused(quoted(name), "an argument that does not exist", allowed, "Leave it out.")
        if text and text not in table.choices.get(name, (text,)):
            raise RequestRefused(name, quoted(text), ", ".join(table.choices[name]), "Choose one of them.")
    filters = {name: _parse_filter(one, last[name]) for name, one in known.items() if last.get(name)}
    kept = {name: last[name] for name in others if last.get(name)}
    return ListState(table, filters, _parse_sort(table, last.get("sort", "")), _parse_page(last.get("page", "")), kept)


def _parse_filter(one: Filter, text: str) -> str:
    if len(text) > MAX_FILTER_LETTERS or not text.isprintable():
        limit, remedy = f"up to {MAX_FILTER_LETTERS} letters", "Enter a part of the text that you look for."
        raise RequestRefused(one.name, quoted(text), limit, remedy)
    choices = dict(one.choices)
    if choices and text not in choices:
        raise RequestRefused(one.name, quoted(text), ", ".join(choices), "Choose one of them.")
    return one.parse(text) if one.parse else text


def _parse_sort(table: Table, text: str) -> str:
    names = [column.name for column in table.columns if table.can_sort_by(column)]
    if text and text.removeprefix("-") not in names:
        limit, remedy = ", ".join(names), "Choose one of them, with a minus sign before it to sort from high to low."
        raise RequestRefused("sort", quoted(text), limit or "no other order", remedy if names else "Leave it out.")
    return text or table.sort


def _parse_page(text: str) -> int:
    if not text:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PAGES)) and 1 <= int(text) <= MAX_PAGES):
        raise RequestRefused("page", quoted(text), f"1 to {MAX_PAGES}", "Enter a whole number.")
    return int(text)


def select_rows(rows: Iterable[Row], state: ListState) -> list[Row]:
    """Return the rows that match the filters, in the wanted order. Unknown values come last."""
    filters = [(one, state.filters[one.name]) for one in state.table.filters if one.name in state.filters]
    found = [row for row in rows if all(one.matches(row, text) for one, text in filters)]
    if state.sort:
        name, falls = state.sort.removeprefix("-"), state.sort.startswith("-")
        known = [(getattr(row, name), row) for row in found]
        in_order = sorted((x for x in known if x[0] is not None), key=lambda x: _sort_key(x[0]), reverse=falls)
        found = [*(row for _, row in in_order), *(row for value, row in known if value is None)]
    return found


def _sort_key(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def list_part(rows: Sequence[Row], state: ListState) -> ListPart:
    """Return the wanted page. A page beyond the last is empty."""
    found = select_rows(rows, state)
    begin = (state.page - 1) * PAGE_ROWS
    return ListPart(state, tuple(found[begin : begin + PAGE_ROWS]), len(found), len(rows))


# Exports


def csv_text(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return rows as CSV (RFC 4180), with the names of the columns in the first line. Unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(exported_value(column, row), column.kind) for column in columns])
    return out.getvalue()


def exported_value(column: Column, row: Row) -> Any:
    """Return the value of a row as CSV and JSON have it."""
    value = getattr(row, column.name)
    return round(value, EXPORTED_DECIMALS) if isinstance(value, float) and column.kind != "time" else value


def _csv_cell(value: Any, kind: str) -> Any:
    """Return a cell. Times are in ISO 8601. An apostrophe keeps spreadsheets from calculating a text."""
    if value is None:
        return ""
    if kind == "time":
        return show_iso(value)
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA_STARTS) else value


def json_rows(columns: Sequence[Column], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON objects with the names of the columns."""
    return [{column.name: exported_value(column, row) for column in columns} for row in rows]
