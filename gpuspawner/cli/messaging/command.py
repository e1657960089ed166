"""Sends, lists and withdraws messages by the REST API."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpuspawner.cli.asking import ID_LETTERS, ask, one_begins
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table

TEXT_LETTERS = 60
"""How much of a text the list shows; --json has all of it."""


def send(arguments: argparse.Namespace) -> None:
    """Send a message, or say how many people it would reach."""
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    body = {"to": arguments.to, "text": text, "until": arguments.until, "dry_run": arguments.dry_run}
    show(arguments, ask(arguments, "/messages", "POST", body), _print_sent)


def _print_sent(one: dict[str, Any]) -> None:
    people = f"{one['reaches']} {'person' if one['reaches'] == 1 else 'people'} ({one['to_words']})"
    by_mail = "by mail, too" if one["mailed"] else "no mail is set up"
    what = "Would reach" if one["dry_run"] else f"Sent ({one['id'][:ID_LETTERS]}): reaches"
    print(shown(f"{what} {people} until {one['until_words']}; {by_mail}."))


def list_messages(arguments: argparse.Namespace) -> None:
    """Print the messages as a table, the newest first."""
    answer = ask(arguments, f"/messages?past={str(arguments.past).lower()}")
    show(arguments, answer, _print_past if arguments.past else _print_shown)


def _print_shown(answer: dict[str, Any]) -> None:
    _print_messages(answer, "No message is shown now.")


def _print_past(answer: dict[str, Any]) -> None:
    _print_messages(answer, "No message was sent in the last 30 days.")


def _print_messages(answer: dict[str, Any], none: str) -> None:
    if not answer["messages"]:
        print(none)
        return
    rows: list[tuple[str, ...]] = [("ID", "TO", "BY", "SENT", "UNTIL", "STATE", "TEXT")]
    for one in answer["messages"]:
        line = " ".join(one["text"].split())
        text = line if len(line) <= TEXT_LETTERS else f"{line[: TEXT_LETTERS - 1]}…"
        until, sent = (show_time(one[name], answer["now"]) for name in ("until", "made_at"))
        rows.append((one["id"][:ID_LETTERS], one["to"], one["by"], sent, until, one["state"], text))
    print_table(rows)


def withdraw(arguments: argparse.Namespace) -> None:
    """Withdraw the one message whose id begins so."""
    listed = ask(arguments, "/messages?past=true")["messages"]
    one = one_begins(listed, arguments.id, "message", "gpuspawner message list")
    show(arguments, ask(arguments, f"/messages/{one['id']}", "DELETE"), _print_withdrawn)


def _print_withdrawn(one: dict[str, Any]) -> None:
    print(shown(f"Withdrawn: to {one['to_words']}: {one['text']}"))
