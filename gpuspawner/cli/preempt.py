"""``gpuspawner preempt``: stronger claims by the REST API, for administrators and their scripts."""

from __future__ import annotations

import argparse
import time
from typing import Any

from gpuspawner.cli.asking import ID_LETTERS, ask, one_begins
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import show as show_answer
from gpuspawner.cli.output import shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import BadValue, parse_duration


def take(arguments: argparse.Namespace) -> None:
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
        raise InvalidError(str(error)) from error
    _tell_one(arguments, "/preemptions", "POST", body)


def list_claims(arguments: argparse.Namespace) -> None:
    """Print the last claims as a table, the newest first."""
    show_answer(arguments, ask(arguments, "/preemptions"), _print_list)


def _print_list(answer: dict[str, Any]) -> None:
    if not answer["preemptions"]:
        print("No claims were made.")
        return
    rows: list[tuple[str, ...]] = [("ID", "GPUS", "FOR", "BY", "MADE", "STATE")]
    for one in answer["preemptions"]:
        gpus, made = f"{one['count']} {one['title']}", show_time(one["made_at"], one["now"])
        rows.append((one["id"][:ID_LETTERS], gpus, _whom(one), one["by"], made, one["words"]))
    print_table(rows)


def show(arguments: argparse.Namespace) -> None:
    """Print a claim, with whom it ends."""
    _of_one(arguments, "", "GET")


def give_up(arguments: argparse.Namespace) -> None:
    """Give a claim up: who is under notice for it goes on."""
    _of_one(arguments, "", "DELETE")


def claimed(arguments: argparse.Namespace) -> None:
    """Say that the claimant has the GPUs."""
    _of_one(arguments, "/claimed", "POST")


def _of_one(arguments: argparse.Namespace, action: str, method: str) -> None:
    listed = ask(arguments, "/preemptions")["preemptions"]
    one = one_begins(listed, arguments.id, "claim", "gpuspawner preempt list")
    _tell_one(arguments, f"/preemptions/{one['id']}{action}", method)


def _tell_one(arguments: argparse.Namespace, path: str, method: str, body: dict[str, Any] | None = None) -> None:
    show_answer(arguments, ask(arguments, path, method, body), _print_one)


def _print_one(one: dict[str, Any]) -> None:
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


def _whom(one: dict[str, Any]) -> str:
    ((what, name),) = one["for"].items()
    return str(name) if what == "external" else f"{what} {name}"
