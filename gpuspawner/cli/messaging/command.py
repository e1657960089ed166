"""Sends, lists and withdraws messages by the REST API."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gpuspawner.cli.asking import REFUSED, AwayError, RefusedError, call, token_of, told
from gpuspawner.cli.remote import ID_LETTERS, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import show_time

TEXT_LETTERS = 60
"""How much of a text the list shows; --json has all of it."""


def send(arguments: argparse.Namespace) -> int:
    """Send a message, or say how many people it would reach."""
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    body = {"to": arguments.to, "text": text, "until": arguments.until, "dry_run": arguments.dry_run}
    try:
        one = _ask(arguments, "/messages", "POST", body)
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(one, indent=1))
        return 0
    people = f"{one['reaches']} {'person' if one['reaches'] == 1 else 'people'} ({one['to_words']})"
    by_mail = "by mail, too" if one["mailed"] else "no mail is set up"
    what = "Would reach" if one["dry_run"] else f"Sent ({one['id'][:ID_LETTERS]}): reaches"
    print(shown(f"{what} {people} until {one['until_words']}; {by_mail}."))
    return 0


def list_messages(arguments: argparse.Namespace) -> int:
    """Print the messages as a table, the newest first."""
    try:
        answer = _ask(arguments, f"/messages?past={arguments.past:d}")
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(answer, indent=1))
        return 0
    if not answer["messages"]:
        print("No message was sent in the last 30 days." if arguments.past else "No message is shown now.")
        return 0
    rows: list[tuple[str, ...]] = [("ID", "TO", "BY", "SENT", "UNTIL", "STATE", "TEXT")]
    for one in answer["messages"]:
        line = " ".join(one["text"].split())
        text = line if len(line) <= TEXT_LETTERS else f"{line[: TEXT_LETTERS - 1]}…"
        until, sent = (show_time(one[name], answer["now"]) for name in ("until", "made_at"))
        rows.append((one["id"][:ID_LETTERS], one["to"], one["by"], sent, until, one["state"], text))
    print_table(rows)
    return 0


def withdraw(arguments: argparse.Namespace) -> int:
    """Withdraw the one message whose id begins so."""
    try:
        listed = _ask(arguments, "/messages?past=1")["messages"]
        found = [one for one in listed if arguments.id and one["id"].startswith(arguments.id)]
        if len(found) != 1:
            count = "No message" if not found else f"{len(found)} messages"
            print(f"{count} with an id that begins {arguments.id!r}. See gpuspawner message list.", file=sys.stderr)
            return REFUSED
        one = _ask(arguments, f"/messages/{found[0]['id']}", "DELETE")
    except (RefusedError, AwayError) as error:
        return told(error)
    print(json.dumps(one, indent=1) if arguments.json else shown(f"Withdrawn: to {one['to_words']}: {one['text']}"))
    return 0


def _ask(arguments: argparse.Namespace, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    return call(f"{arguments.url.rstrip('/')}/api/v1{path}", token_of(), method, body)
