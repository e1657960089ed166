"""``gpuspawner ready``: a workspace that is there at a time of some weekdays."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.asking import ID_LETTERS, ask, one_begins
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table
from gpuspawner.cli.using.start import asked_options


def ready(arguments: argparse.Namespace) -> None:
    """Have one made ready; change, pause, resume or remove one; or list them."""
    options = asked_options(arguments)
    if name := arguments.change or arguments.pause or arguments.resume or arguments.remove:
        listed = ask(arguments, "/ready")["ready"]
        path = f"/ready/{one_begins(listed, name, 'workspace to be ready', 'gpuspawner ready')['id']}"
        if arguments.remove:
            show(arguments, ask(arguments, path, "DELETE"), lambda told: print(f"{told['id'][:ID_LETTERS]}: removed."))
        else:
            show(arguments, ask(arguments, path, "POST", _change(arguments)), _print)
    elif arguments.at:
        body = {**options, "server": arguments.name, "at": arguments.at, "on": arguments.on or "weekdays"}
        show(arguments, ask(arguments, "/ready", "POST", body), _print)
    elif options or arguments.name:
        raise RefusedError("Say when it is to be ready, such as --at 8:00.")
    else:
        show(arguments, ask(arguments, "/ready"), _print_list)


def _change(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.change:
        return {"paused": bool(arguments.pause)}
    when = {name: value for name in ("at", "on") if (value := getattr(arguments, name))}
    if not when:
        raise RefusedError("Say what to change: --at 9:00, --on mon,wed, or both.")
    return when


def _print(one: dict[str, Any]) -> None:
    print(shown(f"{one['words']} ({one['id'][:ID_LETTERS]}): {one['sentence']}"))


def _print_list(told: dict[str, Any]) -> None:
    if not told["ready"]:
        print("Nothing is to be ready at a time. gpuspawner ready --at 8:00 --on weekdays has it so.")
        return
    rows: list[tuple[str, ...]] = [("ID", "WHEN", "NAME", "WHAT FOLLOWS")]
    rows += [(one["id"][:ID_LETTERS], one["words"], one["server"] or "-", one["sentence"]) for one in told["ready"]]
    print_table(rows)
