"""``gpuspawner audit``: who did what, the newest first, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any

from gpuspawner.cli.administering.asking import ask_admin, query_of
from gpuspawner.cli.asking import ID_LETTERS
from gpuspawner.cli.clock import show_iso, show_time
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.table import print_table

AT_ONCE = 1000
"""So many lines the API answers at once, at most."""
COLUMNS = ("at", "actor", "where", "what", "user", "target", "outcome", "why")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A text that begins so is calculated by spreadsheets."""


def show(arguments: argparse.Namespace) -> None:
    """Print as many lines as are wanted, or all that there are."""
    if arguments.limit < 1:
        raise InvalidError(f"--limit {arguments.limit}: write 1 or more.")
    lines, now = _lines(arguments)
    if arguments.json:
        print(json.dumps({"audit": lines, "now": now}, indent=1))
    elif arguments.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(COLUMNS)
        writer.writerows([_cell({**line, "at": show_iso(line["at"])}[name]) for name in COLUMNS] for line in lines)
    elif not lines:
        print("Nothing matches.")
    else:
        print_table([("WHEN", "WHO", "FROM", "WHAT", "WHOSE", "TO WHAT", "WHY"), *(_row(line, now) for line in lines)])


def _lines(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], float]:
    names = ("by", "who", "what", "user", "target", "since", "until")
    wanted = {name: getattr(arguments, name) for name in names}
    lines: list[dict[str, Any]] = []
    following = ""
    while True:
        limit = min(AT_ONCE, arguments.limit - len(lines))
        answer = ask_admin(arguments, f"/audit{query_of(**wanted, limit=limit, before=following)}")
        lines += answer["audit"]
        following = answer["next"]
        if following is None or len(lines) >= arguments.limit:
            return lines, answer["now"]


def _row(line: dict[str, Any], now: float) -> tuple[str, ...]:
    target = line["target"][:ID_LETTERS] if line["page"] else line["target"]
    at, where, user = show_time(line["at"], now), line["where"] or "-", line["user"] or "-"
    return at, line["actor"], where, line["what"], user, target or "-", line["why"]


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
