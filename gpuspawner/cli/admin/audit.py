"""``gpuspawner admin audit`` and ``roles``: what people did, and what they may do."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import ask_admin
from gpuspawner.cli.client import Session, query_of
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import Column, escape, or_dash, print_json, print_table, say, short_id, show_iso, show_time

MOST_AT_ONCE = 1000
"""Lines of one answer of the API."""
CSV_COLUMNS = ("at", "actor", "where", "what", "user", "target", "outcome", "why")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Spreadsheets calculate a text that begins so."""
COLUMNS = (
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
    if session.as_json:
        print_json({"audit": lines, "now": now})
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(CSV_COLUMNS)
        writer.writerows([_cell({**line, "at": show_iso(line["at"])}[name]) for name in CSV_COLUMNS] for line in lines)
    elif not lines:
        say("The audit has no such entry.")
    else:
        print_table(COLUMNS, [{**line, "now": now} for line in lines])


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
    found = ask_admin(session, "/roles")
    if session.as_json:
        print_json(found)
    else:
        print_table(ROLE_COLUMNS, found["roles"])


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
