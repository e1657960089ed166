"""``gpuspawner report``: the view of the console's page Use, as a table, JSON or CSV."""

from __future__ import annotations

import argparse
import calendar
import json
import re
from typing import Any
from urllib.parse import urlencode

from gpuspawner.cli.asking import call, token_of
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import shown
from gpuspawner.cli.table import print_table
from gpuspawner.service.tell.console.exports import csv_text
from gpuspawner.service.tell.console.listing import Column
from gpuspawner.service.tell.console.use import table_of

MONTH = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")


def report(arguments: argparse.Namespace) -> None:
    """Print what was used."""
    query = urlencode({"by": arguments.by, **_days(arguments)})
    answer = call(f"{arguments.url.rstrip('/')}/console/use.json?{query}", token_of(url=arguments.url))
    columns = table_of(answer["by"], priced="cost" in answer["total"]).columns
    if arguments.json:
        print(json.dumps(answer, indent=1))
    elif arguments.csv:
        print(csv_text(columns, answer["rows"]), end="")
    else:
        _print(answer, columns)


def _days(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the days to ask for. Raises InvalidError for what is no month."""
    if arguments.month is None:
        named = {"since": arguments.since, "until": arguments.until}
        return {name: value for name, value in named.items() if value}
    found = MONTH.fullmatch(arguments.month)
    if found is None or arguments.since or arguments.until:
        raise InvalidError(f"{arguments.month!r} is no month: write one like 2026-11, without --since and --until.")
    last = calendar.monthrange(int(found[1]), int(found[2]))[1]
    return {"since": f"{arguments.month}-01", "until": f"{arguments.month}-{last:02}"}


def _print(answer: dict[str, Any], columns: tuple[Column, ...]) -> None:
    since, until, total = answer["since"], answer["until"], answer["total"]
    if not answer["rows"]:
        print(f"Nothing was used from {since} to {until}.")
        return
    money = f" Cost in {answer['currency']}." if answer["currency"] and "cost" in total else ""
    print(shown(f"From {since} to {until}, {answer['timezone']}; what runs, up to now.{money}"))
    rows: list[tuple[str, ...]] = [tuple(column.title.upper() for column in columns)]
    rows += [tuple(_cell(column, row) for column in columns) for row in (*answer["rows"], {**total, "name": "all"})]
    print_table(rows)
    waits, stops = answer["waits"], total["reclaims"]
    if total["measured_percent"] is not None:
        print(f"{total['measured_percent']:.0f} % of it was measured.")
    why = "as idle, or because nobody came"
    print(f"{stops} reclaimed {why}; {answer['called_wrong']} called wrong. {waits['count']} starts were waited for.")


def _cell(column: Column, row: dict[str, Any]) -> str:
    value = row[column.name]
    if value is None:
        return "-"
    forms = {"hours": "{:.1f}", "money": "{:.2f}", "percent": "{:.0f} %"}
    return forms.get(column.kind, "{}").format(value)
