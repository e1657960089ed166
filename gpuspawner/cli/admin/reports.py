"""Reports for administrators: the audit, roles, the health of GPUs, usage, and the statements of teams.

An administrator reads what people did and may do, temperature, power and errors of GPUs, and GPU hours with their cost.
"""

from __future__ import annotations

import calendar
import csv
import re
import sys
from collections import defaultdict
from typing import Any
from urllib.parse import urlencode

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import ask_admin
from gpuspawner.cli.client import Session, call, fetch, query_of
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.logins import read_token
from gpuspawner.cli.output import (
    Column,
    escape,
    or_dash,
    plain,
    print_table,
    say,
    say_lines,
    short_id,
    show_iso,
    show_time,
)
from gpuspawner.core.units import show_money

MOST_AT_ONCE = 1000
"""Lines of one answer of the API."""
CSV_COLUMNS = ("at", "actor", "where", "what", "user", "target", "outcome", "why")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Spreadsheets calculate a text that begins so."""
AUDIT_COLUMNS = (
    Column("WHEN", ("at", "now"), show_time),
    Column("WHO", ("actor",)),
    Column("FROM", ("where",), or_dash),
    Column("WHAT", ("what",)),
    Column("WHOSE", ("user",), or_dash),
    Column("TARGET", ("target", "page"), lambda target, page: or_dash(short_id(target) if page else target)),
    Column("WHY", ("why",)),
)


@base.command(
    "audit",
    examples="""\
gpuspawner admin audit --by people --since 2026-11-01
gpuspawner admin audit --target node-7 --csv > node-7.csv
gpuspawner admin audit --who admin --what drained --json""",
)
@click.option("--by", type=click.Choice(("people", "parts")), help="Only people, or only gpuspawner and the hub.")
@click.option("--who", metavar="NAME", help="The actor.")
@click.option("--what", metavar="ACTION", help="The action, for example stop, drained or extended.")
@click.option("--user", metavar="NAME", help="The user whose workspace or grant it was.")
@click.option("--target", metavar="NAME", help="The full ID of a workspace, a node, a GPU or a kind.")
@click.option("--since", metavar="DAY", help="The first day, for example 2026-11-01.")
@click.option("--until", metavar="DAY", help="The last day.")
@click.option("--limit", metavar="N", type=int, default=200, show_default=True, help="Print at most N lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV that no spreadsheet calculates.")
@base.session_options
def audit(session: Session, limit: int, *, as_csv: bool, **wanted: str | None) -> None:
    """Show the audit: actor, action, target, origin and reason."""
    if limit < 1:
        raise InvalidError(f"--limit {limit} is too small. Write 1 or more.")
    lines, now = _read_lines(session, limit, wanted)
    if as_csv and not session.as_json:
        writer = csv.writer(sys.stdout)
        writer.writerow(CSV_COLUMNS)
        writer.writerows([_cell({**line, "at": show_iso(line["at"])}[name]) for name in CSV_COLUMNS] for line in lines)
    else:
        session.show_list({"audit": lines, "now": now}, "audit", AUDIT_COLUMNS, "The audit has no such entry.")


ROLE_COLUMNS = (
    Column("ROLE", ("role",)),
    Column("SCOPE", ("scope",)),
    Column("PEOPLE", ("people",), lambda people: or_dash(", ".join(one["name"] for one in people))),
    Column("MAY", ("may",), lambda may: "; ".join(f"{act} ({reach})" for act, reach in may.items())),
)


@base.command("roles", examples="gpuspawner admin roles")
@base.session_options
def roles(session: Session) -> None:
    """Show the roles: scope, people and what each may do.

    People are those who used the role since the service started.
    """
    session.show(ask_admin(session, "/roles"), lambda told: print_table(ROLE_COLUMNS, told["roles"]))


def _read_lines(session: Session, limit: int, wanted: dict[str, str | None]) -> tuple[list[dict[str, Any]], float]:
    lines: list[dict[str, Any]] = []
    before = None
    while True:
        count = min(MOST_AT_ONCE, limit - len(lines))
        answer = ask_admin(session, f"/audit{query_of(**wanted, limit=count, before=before)}")
        lines += answer["audit"]
        before = answer["next"]
        if before is None or len(lines) >= limit:
            return lines, answer["now"]


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return escape(f"'{value}" if value.startswith(FORMULA) else value)


def _amount(unit: str) -> Any:
    return lambda value: "-" if value is None else f"{value:g}{unit}"


HEALTH_COLUMNS = (
    Column("GPU", ("node", "index"), lambda node, index: f"{node}/{index}"),
    Column("STATE", ("state",)),
    Column("TEMPERATURE", ("celsius",), _amount(" °C")),
    Column("POWER", ("watts",), _amount(" W")),
    Column("CLOCK", ("clock_mhz",), _amount(" MHz")),
    Column("CORRECTED", ("corrected_errors",), _amount("")),
    Column("UNCORRECTED", ("uncorrected_errors",), _amount("")),
    Column("XID", ("xid",), _amount("")),
    Column("FAULT", ("fault",), or_dash),
)


@base.command(
    "health",
    examples="""\
gpuspawner admin health
gpuspawner admin health --faulty""",
)
@click.option("--faulty", is_flag=True, help="Show only GPUs that are faulty or in quarantine.")
@base.session_options
def health(session: Session, *, faulty: bool) -> None:
    """Show the temperature, power and errors of each GPU.

    CORRECTED and UNCORRECTED count memory errors since the driver was loaded. To end a quarantine, use
    gpuspawner admin quarantine GPU --lift.
    """
    found = ask_admin(session, "/gpu-health")
    gpus = [one for one in found["gpus"] if not faulty or one["state"] in {"faulty", "quarantined"}]
    empty = "No GPU is faulty." if faulty else "No GPU has been seen yet."
    session.show_list({**found, "gpus": gpus}, "gpus", HEALTH_COLUMNS, empty)


MONTH = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")
BY = ("team", "user", "kind", "template", "node", "day", "week")


def _hours(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


REPORT_COLUMNS = (
    Column("ALLOCATED", ("allocated",), _hours),
    Column("ACTIVE", ("active",), _hours),
    Column("IDLE", ("idle",), _hours),
    Column("NOT MEASURED", ("not_measured",), _hours),
    Column("IDLE SHARE", ("idle_percent",), lambda value: "-" if value is None else f"{value:.0f} %"),
    Column("RECLAIMED", ("reclaimed",), _hours),
    Column("CHARGED", ("charged",), _hours),
    Column("CREDITED", ("credited",), _hours),
)
REPORT_COST = Column("COST", ("cost",), lambda value: "-" if value is None else f"{value:.2f}")


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
    query = query_of(by=by, since=first, until=last)
    if as_csv:
        _print_csv(session, f"usage.csv{query}")
    else:
        session.show(call(_console(session, f"usage.json{query}"), read_token(url=session.url)), _print_report)


def _console(session: Session, page: str) -> str:
    return f"{session.url.rstrip('/')}/console/{page}"


def _print_csv(session: Session, page: str) -> None:
    content = fetch(_console(session, page), read_token(url=session.url))
    say_lines(content.decode(errors="replace").replace("\r\n", "\n"))


def _days_of(month: str, day: str | None) -> tuple[str, str]:
    found = MONTH.fullmatch(month)
    if found is None or day:
        raise click.UsageError(f"{month!r} is not a month. Write one like 2026-11, without --since and --until.")
    last = calendar.monthrange(int(found[1]), int(found[2]))[1]
    return f"{month}-01", f"{month}-{last:02}"


def _print_report(answer: dict[str, Any]) -> None:
    since, until, total = answer["since"], answer["until"], answer["total"]
    if not answer["rows"]:
        say(f"No GPU was allocated from {since} to {until}.")
        return
    priced = "cost" in total
    money = f" Cost in {answer['currency']}." if answer["currency"] and priced else ""
    say(f"GPU hours from {since} to {until}, {answer['timezone']}. Running workspaces count up to now.{money}")
    columns = (Column(answer["by"].upper(), ("name",)), *REPORT_COLUMNS, *((REPORT_COST,) if priced else ()))
    print_table(columns, [*answer["rows"], {**total, "name": "all"}])
    if total["measured_percent"] is not None:
        say(f"{total['measured_percent']:.0f} % of the time was measured.")
    say(
        f"Workspaces reclaimed because they were idle or not opened: {total['reclaims']}. Reported as wrong: "
        f"{answer['called_wrong']}. Starts that waited: {answer['waits']['count']}."
    )


AMOUNTS = ("allocated", "active", "idle", "not_measured", "reclaimed", "credited", "charged")
STATEMENT_COLUMNS = tuple(Column(name.replace("_", " ").upper(), (name,), "{:.1f}".format) for name in AMOUNTS)
STATEMENT_COST = Column("COST", ("cost",), "{:.2f}".format)


@base.command(
    "statement",
    examples="""\
gpuspawner admin statement                                    all teams, last month
gpuspawner admin statement --team vision --month 2026-10      one team, by member
gpuspawner admin statement --team vision --month 2026-10 --csv > 2026-10-vision.csv""",
)
@click.option("--team", metavar="TEAM", help="The team. Default: the totals of all teams.")
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
        _print_csv(session, f"statements.csv?{urlencode({'team': team, 'month': month})}")
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
    print_table(_with_cost((*names, *STATEMENT_COLUMNS), rows[0]), rows)


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
    print_table(_with_cost((Column("MEMBER", ("name",), plain), *STATEMENT_COLUMNS), total), rows)
    for one in answer["credits"]:
        whom = one["members"][0] if len(one["members"]) == 1 else f"{len(one['members'])} members"
        money = "" if one["money"] is None else f", {show_money(one['money'], answer['currency'])}"
        say(f"Credit on {one['day']} for {whom}: {one['gpu_hours']:.1f} GPU h{money}. {one['why']} ({one['by']})")


def _with_cost(columns: tuple[Column, ...], row: dict[str, Any]) -> tuple[Column, ...]:
    return columns if row["cost"] is None else (*columns, STATEMENT_COST)
