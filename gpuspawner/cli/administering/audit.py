"""``gpuspawner audit``: who did what, the newest first, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

from gpuspawner.cli.administering.asking import ask, print_json, query_of
from gpuspawner.cli.asking import INVALID, AwayError, RefusedError, told
from gpuspawner.cli.remote import ID_LETTERS
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import show_time

AT_ONCE = 1000
"""So many lines the API answers at once, at most."""
COLUMNS = ("at", "actor", "where", "what", "user", "target", "outcome", "why")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A text that begins so is calculated by spreadsheets."""


def show(arguments: argparse.Namespace) -> int:
    """Print as many lines as are wanted, or all that there are."""
    if arguments.limit < 1:
        print(f"--limit {arguments.limit}: write 1 or more.", file=sys.stderr)
        return INVALID
    try:
        lines, now = _lines(arguments)
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print_json({"audit": lines, "now": now})
    elif arguments.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(COLUMNS)
        writer.writerows([_cell(line[name]) for name in COLUMNS] for line in lines)
    elif not lines:
        print("Nothing matches.")
    else:
        print_table([("WHEN", "WHO", "FROM", "WHAT", "WHOSE", "TO WHAT", "WHY"), *(_row(line, now) for line in lines)])
    return 0


def _lines(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], float]:
    names = ("by", "who", "what", "user", "target", "since", "until")
    wanted = {name: getattr(arguments, name) for name in names}
    lines: list[dict[str, Any]] = []
    following = ""
    while True:
        limit = min(AT_ONCE, arguments.limit - len(lines))
        answer = ask(arguments, f"/audit{query_of(**wanted, limit=limit, before=following)}")
        lines += answer["audit"]
        following = answer["next"]
        if following is None or len(lines) >= arguments.limit:
            return lines, answer["now"]


def _row(line: dict[str, Any], now: float) -> tuple[str, ...]:
    what = line["what"] + (" (refused)" if line["outcome"] == "refused" else "")
    target = line["target"] if line["target"] in {"", line["user"]} or not line["page"] else line["target"][:ID_LETTERS]
    return (
        show_time(line["at"], now),
        line["actor"],
        line["where"] or "-",
        what,
        line["user"] or "-",
        target,
        line["why"],
    )


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
