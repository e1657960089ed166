"""``gpuspawner admin report``: the console's page Usage as a table, JSON or CSV."""

from __future__ import annotations

import calendar
import re
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, call, fetch, query_of, read_token
from gpuspawner.cli.output import Column, print_json, print_table, say, say_lines

MONTH = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")
BY = ("team", "user", "kind", "template", "node", "day", "week")


def _hours(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


COLUMNS = (
    Column("ALLOCATED", ("allocated",), _hours),
    Column("ACTIVE", ("active",), _hours),
    Column("IDLE", ("idle",), _hours),
    Column("NOT MEASURED", ("not_measured",), _hours),
    Column("IDLE SHARE", ("idle_percent",), lambda value: "-" if value is None else f"{value:.0f} %"),
    Column("RECLAIMED", ("reclaimed",), _hours),
    Column("CHARGED", ("charged",), _hours),
    Column("CREDITED", ("credited",), _hours),
)
COST_COLUMN = Column("COST", ("cost",), lambda value: "-" if value is None else f"{value:.2f}")


@base.command(
    "report",
    examples="""\
gpuspawner admin report                                  this month, by team
gpuspawner admin report --by user --month 2026-11        usage of each user in November
gpuspawner admin report --by kind --since 2026-11-01 --until 2026-11-15 --csv > usage.csv""",
)
@click.option("--by", type=click.Choice(BY), default="team", show_default=True, help="One row for each of these.")
@click.option("--month", metavar="MONTH", help="Such as 2026-11. Default: this month, up to today.")
@click.option("--since", metavar="DAY", help="The first day, instead of a month.")
@click.option("--until", metavar="DAY", help="The last day. Default: today.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@base.session_options
def report(session: Session, by: str, month: str | None, since: str | None, until: str | None, *, as_csv: bool) -> None:
    """Report the GPU hours of a month: allocated, active, idle, reclaimed, and cost.

    The numbers are those of the console's page Usage. Time that was not sampled counts as not measured, never as idle.
    """
    if as_csv and session.as_json:
        raise click.UsageError("Write either --json or --csv.")
    first, last = (since, until) if month is None else _days_of(month, since or until)
    page, query = f"{session.url.rstrip('/')}/console/usage", query_of(by=by, since=first, until=last)
    token = read_token(url=session.url)
    if as_csv:
        say_lines(fetch(f"{page}.csv{query}", token).decode(errors="replace").replace("\r\n", "\n"))
        return
    answer = call(f"{page}.json{query}", token)
    if session.as_json:
        print_json(answer)
    else:
        _print(answer)


def _days_of(month: str, day: str | None) -> tuple[str, str]:
    found = MONTH.fullmatch(month)
    if found is None or day:
        raise click.UsageError(f"{month!r} is not a month. Write one like 2026-11, without --since and --until.")
    last = calendar.monthrange(int(found[1]), int(found[2]))[1]
    return f"{month}-01", f"{month}-{last:02}"


def _print(answer: dict[str, Any]) -> None:
    since, until, total = answer["since"], answer["until"], answer["total"]
    if not answer["rows"]:
        say(f"No GPU was allocated from {since} to {until}.")
        return
    priced = "cost" in total
    money = f" Cost in {answer['currency']}." if answer["currency"] and priced else ""
    say(f"GPU hours from {since} to {until}, {answer['timezone']}. Running workspaces count up to now.{money}")
    columns = (Column(answer["by"].upper(), ("name",)), *COLUMNS, *((COST_COLUMN,) if priced else ()))
    print_table(columns, [*answer["rows"], {**total, "name": "all"}])
    if total["measured_percent"] is not None:
        say(f"{total['measured_percent']:.0f} % of the time was measured.")
    say(
        f"Workspaces reclaimed because they were idle or not opened: {total['reclaims']}. Reported as wrong: "
        f"{answer['called_wrong']}. Starts that waited: {answer['waits']['count']}."
    )
