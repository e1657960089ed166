"""``gpuspawner admin announce``: send users an announcement, list announcements, withdraw one."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, find_by_id
from gpuspawner.cli.output import Column, counted, say, short_id, show_end, show_time

TEXT_LETTERS = 60
"""How much of a text the table shows. JSON has all of it."""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LETTERS else f"{line[: TEXT_LETTERS - 1]}…"


COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("TO", ("to",)),
    Column("BY", ("by",)),
    Column("SENT", ("made_at", "now"), show_time),
    Column("UNTIL", ("until", "now"), show_end),
    Column("STATE", ("state",)),
    Column("TEXT", ("text",), _one_line),
)


@click.group("announce")
def announce() -> None:
    """Send users an announcement, list announcements, or withdraw one.

    An announcement is shown on the hub's pages, the service's pages and in JupyterLab, until its end or until its
    reader has read it, and sent by mail if mail is set up. The announcement to a group reaches the users who
    are in the group when it is sent.
    """


@announce.command(
    "send",
    cls=base.Command,
    examples="""\
gpuspawner admin announce send --to all --until Friday "Maintenance on Friday, 18:00: workspaces end at 17:50."
gpuspawner admin announce send --to group:vision --until 2h "node-7 gets new GPUs." --dry-run""",
)
@click.argument("text")
@click.option("--to", metavar="USERS", required=True, help="all, user:NAME or group:NAME.")
@click.option("--until", metavar="TIME", required=True, help="End, for example Friday, 2h or 2026-12-24 18:00.")
@click.option("--dry-run", is_flag=True, help="Say how many users it reaches, and send nothing.")
@base.session_options
def send(session: Session, text: str, to: str, until: str, *, dry_run: bool) -> None:
    """Send an announcement.

    TEXT is plain text of at most 500 characters. With - it is read from standard input.
    """
    text = sys.stdin.read() if text == "-" else text
    body = {"to": to, "text": text, "until": until, "dry_run": dry_run}
    session.show(session.ask("/messages", "POST", body), _print_sent)


@announce.command("list", cls=base.Command, examples="gpuspawner admin announce list --past")
@click.option("--past", is_flag=True, help="All of the last 30 days.")
@base.session_options
def list_announcements(session: Session, *, past: bool) -> None:
    """List the announcements that are shown now."""
    empty = "No announcement was sent in the last 30 days." if past else "No announcement is shown now."
    session.show_list(session.ask(f"/messages?past={str(past).lower()}"), "messages", COLUMNS, empty)


@announce.command("withdraw", cls=base.Command, examples="gpuspawner admin announce withdraw 3f2a")
@click.argument("announcement_id", metavar="ID")
@base.session_options
def withdraw(session: Session, announcement_id: str) -> None:
    """Withdraw an announcement from all pages and inboxes."""
    listed = session.ask("/messages?past=true")["messages"]
    one = find_by_id(listed, announcement_id, "announcement", "gpuspawner admin announce list")
    answer = session.ask(f"/messages/{one['id']}", "DELETE")
    session.show(answer, lambda told: say(f"Withdrawn: to {told['to_words']}: {told['text']}"))


def _print_sent(one: dict[str, Any]) -> None:
    people = f"{counted(one['reaches'], 'person', 'people')} ({one['to_words']})"
    by_mail = "also by mail" if one["mailed"] else "mail is not set up"
    what = "It would reach" if one["dry_run"] else f"Sent ({short_id(one['id'])}): it reaches"
    say(f"{what} {people} until {one['until_words']}; {by_mail}.")
