"""Output of commands: JSON for programs, and tables, times and safe text for people.

Every command prints through this module, which escapes the control characters of terminals. Lint forbids ``print``
elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuspawner.core import units

ID_LETTERS = 8
"""How much of an ID is shown. Users write as much of the ID of another user's workspace."""
ZONE_HEADER = "Gpuspawner-Timezone"
UNLIMITED_WIDTH = 100_000
"""Columns of a pipe or a file: nothing is wrapped there."""
_TIME = re.compile(r"\b[0-2][0-9]:[0-5][0-9]\b")


class _Printed:
    """The service's time zone, and whether a time was printed. A process runs one command."""

    zone: ZoneInfo | None = None
    has_time = False


def print_json(answer: Any) -> None:
    """Print an answer for programs."""
    print(json.dumps(answer, indent=1))


def escape(text: str) -> str:
    """Return a text for a terminal. Users choose names, and a name may hold characters that move the cursor."""
    note_times(text)
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def note_times(text: str) -> None:
    """Remember that a text with a time was printed."""
    _Printed.has_time = _Printed.has_time or bool(_TIME.search(text))


def say(text: str) -> None:
    """Print a line of the answer for people."""
    say_lines(escape(text))


def say_lines(text: str, *, to_stderr: bool = False) -> None:
    """Print a text of several lines."""
    for line in text.removesuffix("\n").split("\n"):
        print(escape(line), file=sys.stderr if to_stderr else sys.stdout)


def say_progress(text: str) -> None:
    """Print progress to stderr, so that pipes and ``--json`` get the answer alone."""
    say_lines(escape(text), to_stderr=True)


def counted(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun: ``1 stop`` or ``2 stops``. ``several`` is the plural if it is no -s."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def plain(value: Any) -> str:
    """Return a cell of the value itself; null is empty."""
    return "" if value is None else str(value)


def or_dash(value: Any) -> str:
    """Return a cell of the value, or ``-`` if it is null or empty."""
    return str(value or "-")


def short_id(value: str) -> str:
    """Return as much of an ID as commands show."""
    return value[:ID_LETTERS]


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, the fields of a row that it shows, and how it shows their values."""

    title: str
    fields: tuple[str, ...]
    show: Callable[..., str] = plain


def print_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of an answer in columns."""
    print(format_table(columns, rows))


def print_list(answer: Mapping[str, Any], name: str, columns: Sequence[Column], empty: str) -> None:
    """Print a list of an answer as a table, or ``empty`` if it has no entry. Columns may show fields of the answer."""
    if answer[name]:
        print_table(columns, [{**answer, **row} for row in answer[name]])
    else:
        say(empty)


def print_outcome(answer: Mapping[str, Any], words: str) -> None:
    """Print a change that was made, or with ``--dry-run`` would be made, and its effects."""
    say(f"{words}.{' Nothing was done yet.' if answer['dry_run'] else ''}")
    for side in answer["sides"]:
        say(f"  {side['words']}.")
    if answer["note"]:
        say(answer["note"])


def format_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows in columns. For a terminal long cells are wrapped; a pipe or a file gets one line for each row."""
    from rich.console import Console  # noqa: PLC0415 - 35 ms that commands without a table do not need
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(width=None if is_terminal else UNLIMITED_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(column.title), overflow="fold", no_wrap=column.title == "ID")
    for row in rows:
        cells = (column.show(*(row[name] for name in column.fields)) for column in columns)
        table.add_row(*(Text(escape(cell)) for cell in cells))
    with console.capture() as printed:
        console.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def note_zone(headers: Mapping[str, str]) -> None:
    """Show times in the zone that an answer names. A service that names no zone leaves it unchanged."""
    try:
        _Printed.zone = ZoneInfo(headers.get(ZONE_HEADER) or "")
    except (OSError, ValueError, ZoneInfoNotFoundError):  # no zone, or a name that this machine does not know
        return


def show_time(at: float, now: float) -> str:
    """Return a time as the service's sentences have it: ``18:30``, with the date if it is not today."""
    return units.show_time(at, now, _Printed.zone)


def show_end(at: float, now: float) -> str:
    """Return an end as the service's sentences have it: midnight is the end of a day, ``Sun 29 Nov 24:00``."""
    return units.show_end(at, now, _Printed.zone)


def show_iso(at: float) -> str:
    """Return a time for programs: ISO 8601 with its offset."""
    return units.show_iso(at, _Printed.zone)


def name_zone(now: float) -> None:
    """Print the zone of the times that the command printed, if it printed any. The next command starts afresh."""
    if _Printed.zone is not None and _Printed.has_time:
        say_progress(f"Times are in {_Printed.zone.key} ({datetime.fromtimestamp(now, _Printed.zone):%H:%M} now).")
    _Printed.zone, _Printed.has_time = None, False
