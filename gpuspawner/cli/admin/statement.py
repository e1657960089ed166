"""``gpuspawner admin statement``: usage and cost of a team in a month, and the statements of all teams."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import urlencode

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, fetch, query_of, read_token
from gpuspawner.cli.output import Column, plain, print_table, say, say_lines
from gpuspawner.core.units import show_money

AMOUNTS = ("allocated", "active", "idle", "not_measured", "reclaimed", "credited", "charged")
COLUMNS = tuple(Column(name.replace("_", " ").upper(), (name,), "{:.1f}".format) for name in AMOUNTS)
COST_COLUMN = Column("COST", ("cost",), "{:.2f}".format)


@base.command(
    "statement",
    examples="""\
gpuspawner admin statement                                    all teams, last month
gpuspawner admin statement --team vision --month 2026-10      one team, by member
gpuspawner admin statement --team vision --month 2026-10 --csv > 2026-10-vision.csv""",
)
@click.option("--team", metavar="TEAM", help="The team. Default: what the statements of all teams come to.")
@click.option("--month", metavar="MONTH", default="", help="Such as 2026-10. Default: last month.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the statement of the team as CSV.")
@base.session_options
def statement(session: Session, team: str | None, month: str, *, as_csv: bool) -> None:
    """Show the statement of a team for a month: GPU hours and cost by member.

    A month closes on the third day of the next one. The statement of a closed month never changes.
    """
    if as_csv and (session.as_json or team is None):
        raise click.UsageError("--csv needs --team, and goes without --json.")
    if as_csv:
        page = f"{session.url.rstrip('/')}/console/statements.csv?{urlencode({'team': team, 'month': month})}"
        say_lines(fetch(page, read_token(url=session.url)).decode(errors="replace").replace("\r\n", "\n"))
    elif team is None:
        session.show(session.ask(f"/statements{query_of(month=month)}"), _print_all)
    else:
        session.show(session.ask(f"/statement{query_of(team=team, month=month)}"), _print_one)


def _print_all(answer: dict[str, Any]) -> None:
    rows = [{**one, **one["total"]} for one in answer["statements"]]
    if not rows:
        say("There are no teams.")
        return
    names = (Column("TEAM", ("title",), plain), Column("MONTH", ("month",)), Column("STATE", ("state",)))
    print_table(_with_cost((*names, *COLUMNS), rows[0]), rows)


def _print_one(answer: dict[str, Any]) -> None:
    total = answer["total"]
    members: dict[str, dict[str, Any]] = defaultdict(dict)
    for line in answer["lines"]:
        member = members[line["user"]]
        for name in (*AMOUNTS, "cost"):
            member[name] = (member.get(name) or 0.0) + (line[name] or 0.0)
        member["name"] = line["member"]
    rows = [*sorted(members.values(), key=lambda one: -one["charged"]), {**total, "name": "all"}]
    cost = "" if total["cost"] is None else f" Cost: {show_money(total['cost'], answer['currency'])}."
    say(f"Statement {answer['number']} of {answer['title']}, {answer['state']}. Times in {answer['timezone']}.{cost}")
    print_table(_with_cost((Column("MEMBER", ("name",), plain), *COLUMNS), total), rows)
    for one in answer["credits"]:
        whom = one["members"][0] if len(one["members"]) == 1 else f"{len(one['members'])} members"
        money = "" if one["money"] is None else f", {show_money(one['money'], answer['currency'])}"
        say(f"Credit on {one['day']} for {whom}: {one['gpu_hours']:.1f} GPU h{money}. {one['why']} ({one['by']})")


def _with_cost(columns: tuple[Column, ...], row: dict[str, Any]) -> tuple[Column, ...]:
    return columns if row["cost"] is None else (*columns, COST_COLUMN)
