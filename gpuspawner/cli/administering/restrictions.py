"""``gpuspawner drain``, ``quarantine``, ``pause``, ``reserve`` and ``exempt``: made, listed and lifted."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpuspawner.cli.administering.asking import ask_admin, code_of, confirm, ids_of, print_done
from gpuspawner.cli.asking import ID_LETTERS
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table

TARGETS = {"drain": "node", "quarantine": "gpu", "pause": "kind", "reserve": "kind"}


def restrict(arguments: argparse.Namespace) -> int:
    """Make a restriction, say what it would do, lift it, or list those in force; return the exit code."""
    if arguments.list:
        show(arguments, {**ask_admin(arguments, "/restrictions"), "restrictions": _live(arguments)}, _print_list)
    elif arguments.lift:
        show(arguments, _lift(arguments), lambda lifted: print(shown(f"Lifted: {lifted['title']}.")))
    else:
        body = _body(arguments)
        if arguments.command == "reserve" and not (arguments.dry_run or arguments.yes) and sys.stdin.isatty():
            confirm(shown(ask_admin(arguments, "/restrictions", "POST", {**body, "dry_run": True})["words"]))
        made = ask_admin(arguments, "/restrictions", "POST", body)
        show(arguments, made, print_done)
        return code_of(made)
    return 0


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    what = arguments.command
    body: dict[str, Any] = {"what": what, "reason": arguments.reason, "dry_run": arguments.dry_run}
    if what in TARGETS and arguments.target:
        body[TARGETS[what]] = arguments.target
    if what == "reserve":
        body |= {"count": arguments.count, "team": arguments.team}
    if what in {"reserve", "exempt"}:
        body["user"] = arguments.user
    if what == "exempt" and arguments.names:
        body["ids"] = ids_of(arguments)
    if arguments.until:
        body["until"] = arguments.until
    if arguments.begins:
        body["begins"] = arguments.begins
    return {name: value for name, value in body.items() if value is not None and value != ""}


def _live(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    listed = ask_admin(arguments, "/restrictions")["restrictions"]
    return [one for one in listed if one["what"] == arguments.command]


def _lift(arguments: argparse.Namespace) -> dict[str, Any]:
    live, wanted = _live(arguments), arguments.lift
    if wanted is True:  # by what it is on
        found = [one for one in live if arguments.target in {one["target"], one["for"] or one["target"]}]
        called = f"on {arguments.target!r}" if arguments.target else "of everything"
    else:
        found = [one for one in live if one["id"].startswith(wanted) or wanted in _names(one)]
        called = f"called {wanted!r}, or with an id that begins so,"
    if not found:
        raise RefusedError(f"None {called} to lift. See gpuspawner {arguments.command} --list.")
    if len(found) > 1:
        choices = "".join(f"\n  {one['id'][:ID_LETTERS]}  {shown(one['title'])}" for one in found)
        raise RefusedError(f"{len(found)} {called} to lift. Nothing was done; name one by its ID:{choices}")
    return ask_admin(arguments, f"/restrictions/{found[0]['id']}", "DELETE", {"reason": arguments.reason})


def _names(one: dict[str, Any]) -> set[str]:
    """Return what people call a restriction: what it is on, for whom, a workspace as USER/SERVER, or all its title."""
    user, of, server = one["for"].partition(": ")
    workspace = f"{user}/{'-' if server == 'default workspace' else server}" if of else ""
    return {one["target"], one["for"], workspace, one["title"]} - {""}


def _print_list(answer: dict[str, Any]) -> None:
    if not answer["restrictions"]:
        print("None is in force.")
        return
    rows: list[tuple[str, ...]] = [("ID", "WHAT", "STATE", "BY", "MADE", "REASON")]
    for one in answer["restrictions"]:
        since = show_time(one["since"], answer["now"])
        rows.append((one["id"][:ID_LETTERS], one["title"], one["state"], one["by"], since, one["reason"]))
    print_table(rows)
