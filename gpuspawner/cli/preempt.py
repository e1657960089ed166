"""``gpuspawner preempt``: stronger claims by the REST API, for administrators and their scripts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from gpuspawner.cli.asking import INVALID, REFUSED, AwayError, RefusedError, call, token_of, told
from gpuspawner.cli.remote import ID_LETTERS, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import BadValue, parse_duration, show_time


def take(arguments: argparse.Namespace) -> int:
    """Claim GPUs that others use, or say whom that would end."""
    now = time.time()
    body: dict[str, Any] = {
        "kind": arguments.kind,
        "count": arguments.count,
        "one_node": not arguments.any_node,
        "dry_run": arguments.dry_run,
        **{name: getattr(arguments, name) for name in ("user", "team", "external") if getattr(arguments, name)},
    }
    if arguments.key:
        body["key"] = arguments.key
    try:
        for name, text in (("by", arguments.by), ("hold_until", arguments.hold)):
            if text:
                body[name] = now + parse_duration(text)
    except BadValue as error:
        print(error, file=sys.stderr)
        return INVALID
    return _told_one(arguments, "/preemptions", "POST", body)


def list_claims(arguments: argparse.Namespace) -> int:
    """Print the last claims as a table, the newest first."""
    try:
        answer = _ask(arguments, "/preemptions")
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(answer, indent=1))
        return 0
    if not answer["preemptions"]:
        print("No claims were made.")
        return 0
    rows: list[tuple[str, ...]] = [("ID", "GPUS", "FOR", "BY", "MADE", "STATE")]
    for one in answer["preemptions"]:
        gpus, made = f"{one['count']} {one['title']}", show_time(one["made_at"], one["now"])
        rows.append((one["id"][:ID_LETTERS], gpus, _whom(one), one["by"], made, one["words"]))
    print_table(rows)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print a claim, with whom it ends."""
    return _of_one(arguments, "", "GET")


def give_up(arguments: argparse.Namespace) -> int:
    """Give a claim up: who is under notice for it goes on."""
    return _of_one(arguments, "", "DELETE")


def claimed(arguments: argparse.Namespace) -> int:
    """Say that the claimant has the GPUs."""
    return _of_one(arguments, "/claimed", "POST")


def _of_one(arguments: argparse.Namespace, action: str, method: str) -> int:
    try:
        listed = _ask(arguments, "/preemptions")["preemptions"]
    except (RefusedError, AwayError) as error:
        return told(error)
    found = [one for one in listed if arguments.id and one["id"].startswith(arguments.id)]
    if len(found) != 1:
        count = "No claim" if not found else f"{len(found)} claims"
        print(f"{count} with an id that begins {arguments.id!r}. See gpuspawner preempt list.", file=sys.stderr)
        return REFUSED
    return _told_one(arguments, f"/preemptions/{found[0]['id']}{action}", method)


def _told_one(arguments: argparse.Namespace, path: str, method: str, body: dict[str, Any] | None = None) -> int:
    try:
        one = _ask(arguments, path, method, body)
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(one, indent=1))
        return 0
    name = f" (claim {one['id'][:ID_LETTERS]})" if one["id"] else ""
    print(shown(f"{one['count']} {one['title']} for {_whom(one)}{name}: {one['words']}"))
    rows: list[tuple[str, ...]] = [("USER", "SERVER", "GPUS", "ENDS", "WHAT IS LOST")]
    for victim in one["victims"]:
        ends_at = victim["ends_at"] or one["ends_at"]
        ends = "" if ends_at is None else show_time(ends_at, one["now"])
        rows.append((victim["user"], victim["server"] or "-", str(len(victim["gpus"])), ends, victim["loses"]))
    if len(rows) > 1:
        print_table(rows)
    if one["note"]:
        print(one["note"])
    return 0


def _ask(
    arguments: argparse.Namespace, path: str, method: str = "GET", body: dict[str, Any] | None = None
) -> dict[str, Any]:
    return call(f"{arguments.url.rstrip('/')}/api/v1{path}", token_of(), method, body)


def _whom(one: dict[str, Any]) -> str:
    ((what, name),) = one["for"].items()
    return str(name) if what == "external" else f"{what} {name}"
