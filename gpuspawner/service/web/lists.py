"""Lists of the console: filtered, sorted, paged, with all of their state in the address. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from gpuspawner.core.errors import RequestRefused, quoted

PAGE_ROWS = 50
MOST_PAGES = 1000
"""Arbitrary: nobody turns so many pages; a filter finds what is further."""
LONGEST_FILTER = 100

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One value of each row: ``name`` in addresses, JSON and CSV, ``title`` on the page.

    ``kind`` is how a page writes it: text, number, amount, hours, money, percent, seconds (a duration), time (since the
    epoch), link (a text that leads to the row's ``page``), or words (a sentence, never sorted). ``absent`` is what a
    screen reader says where there is none.
    """

    name: str
    title: str
    kind: str = "text"
    absent: str = "not known"

    @property
    def is_number(self) -> bool:
        """Whether its values stand at the right."""
        return self.kind in {"number", "amount", "hours", "money", "percent"}


@dataclass(frozen=True)
class Filter:
    """What rows can be chosen by. With ``choices`` one value of the column ``name``, else a part of any of ``within``.

    ``reads`` turns what is written into what is looked for, and raises RequestRefused for what it does not take.
    """

    name: str
    title: str
    choices: tuple[tuple[str, str], ...] = ()
    within: tuple[str, ...] = ()
    reads: Callable[[str], str] | None = None
    of: str = "text"
    """What a page's field takes: text or date."""

    def lets(self, row: Row, wanted: str) -> bool:
        """Whether a row is let through."""
        if self.choices:
            return str(row[self.name]) == wanted
        return any(wanted.casefold() in str(row[name] or "").casefold() for name in self.within or (self.name,))


@dataclass(frozen=True)
class Table:
    """What a list can show. ``sort`` is its order unless another is asked for: a column, from high to low after ``-``.

    Without it, the list has one order alone. ``others`` are arguments of its address that are not the list's own.
    ``sorted_by`` are the columns that it may be sorted by, where not by each: those that the store has an index of.
    """

    name: str
    columns: tuple[Column, ...]
    filters: tuple[Filter, ...] = ()
    sort: str = ""
    others: tuple[str, ...] = ()
    sorted_by: tuple[str, ...] = ()

    def sorts(self, column: Column) -> bool:
        """Whether it may be sorted by a column."""
        return bool(self.sort) and column.kind != "words" and (not self.sorted_by or column.name in self.sorted_by)


@dataclass(frozen=True)
class Wanted:
    """What is asked of a list: its whole state, as the address has it."""

    table: Table
    filters: Mapping[str, str] = field(default_factory=dict)
    sort: str = ""
    page: int = 1
    kept: Mapping[str, str] = field(default_factory=dict)
    """Other arguments of the address, which stay as they are."""

    def query(self, **changes: Any) -> str:
        """Return the address's query, "" where nothing is asked for; a changed filter or order begins at page 1."""
        state: dict[str, Any] = {**self.kept, **self.filters, "sort": self.sort, "page": self.page}
        if changes and "page" not in changes:
            state["page"] = 1
        state |= changes
        unsaid = {"sort": self.table.sort, "page": 1}
        said = {name: value for name, value in state.items() if value != "" and value != unsaid.get(name)}
        return f"?{urlencode(said)}" if said else ""

    def by(self, column: Column) -> str:
        """Return the query that sorts by a column: the other way round where it is sorted by that already."""
        first = f"-{column.name}" if column.is_number or column.kind in {"seconds", "time"} else column.name
        other = column.name if first.startswith("-") else f"-{column.name}"
        return self.query(sort=other if self.sort == first else first)

    def direction(self, column: Column) -> str:
        """Return how a column is sorted, as ARIA has it; "" where it is not."""
        if self.sort.removeprefix("-") != column.name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"


@dataclass(frozen=True)
class Listing:
    """One page of a list. ``found`` rows are let through by the filters, of ``total``."""

    wanted: Wanted
    rows: tuple[Row, ...]
    found: int
    total: int

    @property
    def pages(self) -> int:
        """How many pages there are: at least one."""
        return max(1, min(MOST_PAGES, -(-self.found // PAGE_ROWS)))

    @property
    def first(self) -> int:
        """The number of the first row shown; 0 where there is none."""
        return (self.wanted.page - 1) * PAGE_ROWS + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The number of the last row shown."""
        return (self.wanted.page - 1) * PAGE_ROWS + len(self.rows)


def read_wanted(table: Table, arguments: Mapping[str, Sequence[str]]) -> Wanted:
    """Read the state of a list from the arguments of an address; of each the last counts.

    Raises:
        RequestRefused: an argument that does not exist, or a value that it can't have.
    """
    last = {name: values[-1].strip() for name, values in arguments.items() if values}
    known = {one.name: one for one in table.filters}
    for name in last:
        if name not in {*known, *table.others, "sort", "page"}:
            allowed = ", ".join([*known, *table.others, "sort", "page"])
            raise RequestRefused(quoted(name), "an argument that does not exist", allowed, "Leave it out.")
    filters = {name: _filter(one, last[name]) for name, one in known.items() if last.get(name)}
    kept = {name: last[name] for name in table.others if last.get(name)}
    return Wanted(table, filters, _sort(table, last.get("sort", "")), _page(last.get("page", "")), kept)


def _filter(one: Filter, text: str) -> str:
    if len(text) > LONGEST_FILTER or not text.isprintable():
        raise RequestRefused(
            one.name, quoted(text), f"up to {LONGEST_FILTER} letters", "Write a part of what you seek."
        )
    choices = dict(one.choices)
    if choices and text not in choices:
        raise RequestRefused(one.name, quoted(text), ", ".join(choices), "Choose one of them.")
    return one.reads(text) if one.reads else text


def _sort(table: Table, text: str) -> str:
    names = [column.name for column in table.columns if table.sorts(column)]
    if text and text.removeprefix("-") not in names:
        limit, remedy = ", ".join(names), "Choose one; - before it sorts from high to low."
        raise RequestRefused("sort", quoted(text), limit or "one order alone", remedy if names else "Leave it out.")
    return text or table.sort


def _page(text: str) -> int:
    if not text:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_PAGES)) and 1 <= int(text) <= MOST_PAGES):
        raise RequestRefused("page", quoted(text), f"1 to {MOST_PAGES}", "Write a whole number.")
    return int(text)


def chosen(rows: Iterable[Row], wanted: Wanted) -> list[Row]:
    """Return the rows that the filters let through, in the order asked for; what is not known comes last."""
    filters = [(one, wanted.filters[one.name]) for one in wanted.table.filters if one.name in wanted.filters]
    found = [row for row in rows if all(one.lets(row, text) for one, text in filters)]
    if wanted.sort:
        name, falls = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
        known = sorted(
            (row for row in found if row[name] is not None), key=lambda row: _order(row[name]), reverse=falls
        )
        found = [*known, *(row for row in found if row[name] is None)]
    return found


def _order(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def listed(rows: Sequence[Row], wanted: Wanted) -> Listing:
    """Return the page that is asked for; a page beyond the last is empty."""
    found = chosen(rows, wanted)
    begin = (wanted.page - 1) * PAGE_ROWS
    return Listing(wanted, tuple(found[begin : begin + PAGE_ROWS]), len(found), len(rows))
