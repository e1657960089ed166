"""``gpuspawner drain``, ``quarantine``, ``pause``, ``hold`` and ``exempt``: made, listed and lifted."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.administering.asking import ask, ids_of, print_done, print_json
from gpuspawner.cli.asking import AwayError, RefusedError, told
from gpuspawner.cli.remote import ID_LETTERS, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import show_time

TARGETS = {"drain": "node", "quarantine": "gpu", "pause": "kind", "hold": "kind"}


def restrict(arguments: argparse.Namespace) -> int:
    """Make a restriction, say what it would do, lift it, or list those in force."""
    try:
        if arguments.list:
            _print_list(arguments, ask(arguments, "/restrictions"))
        elif arguments.lift:
            _lift(arguments)
        else:
            answer = ask(arguments, "/restrictions", "POST", _body(arguments))
            (print_json if arguments.json else print_done)(answer)
    except (RefusedError, AwayError) as error:
        return told(error)
    return 0


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    what = arguments.command
    body: dict[str, Any] = {"what": what, "reason": arguments.reason, "dry_run": arguments.dry_run}
    if what in TARGETS and arguments.target:
        body[TARGETS[what]] = arguments.target
    if what == "hold":
        body |= {"count": arguments.count, "team": arguments.team}
    if what in {"hold", "exempt"}:
        body["user"] = arguments.user
    if what == "exempt" and arguments.names:
        body["ids"] = ids_of(arguments)
    if arguments.until:
        body["until"] = arguments.until
    return {name: value for name, value in body.items() if value is not None and value != ""}


def _lift(arguments: argparse.Namespace) -> None:
    live = [one for one in ask(arguments, "/restrictions")["restrictions"] if one["what"] == arguments.command]
    if arguments.lift is True:  # by what it is on
        found = [one for one in live if one["target"] == arguments.target]
        called = f"on {arguments.target!r}" if arguments.target else "of everything"
    else:
        found = [one for one in live if one["id"].startswith(arguments.lift)]
        called = f"with an id that begins {arguments.lift!r}"
    if len(found) != 1:
        count = "None" if not found else str(len(found))
        raise RefusedError(f"{count} {called} to lift. See gpuspawner {arguments.command} --list.")
    lifted = ask(arguments, f"/restrictions/{found[0]['id']}", "DELETE", {"reason": arguments.reason})
    if arguments.json:
        print_json(lifted)
    else:
        print(shown(f"Lifted: {lifted['title']}."))


def _print_list(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    live = [one for one in answer["restrictions"] if one["what"] == arguments.command]
    if arguments.json:
        print_json({**answer, "restrictions": live})
    elif not live:
        print("None is in force.")
    else:
        rows: list[tuple[str, ...]] = [("ID", "WHAT", "BY", "SINCE", "REASON")]
        since = ((one, show_time(one["since"], answer["now"])) for one in live)
        print_table([*rows, *((x["id"][:ID_LETTERS], x["title"], x["by"], at, x["reason"]) for x, at in since)])
