"""``gpuspawner without-gpu`` and ``with-gpu``: a workspace stops, and starts again so with the same home."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.asking import ask
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.meant import meant_to_change, title
from gpuspawner.cli.output import show, shown


def go_on(arguments: argparse.Namespace) -> None:
    """Do it, or with ``--dry-run`` say what it would do and wait for."""
    way = arguments.way
    one = meant_to_change(arguments, arguments.name, f"goes on {way.replace('-', ' ').replace('gpu', 'a GPU')}")
    path = f"/workspaces/{one['id']}"
    if arguments.dry_run:
        answer = ask(arguments, f"{path}/going-on")
        can = answer["going_on"]
        if can is None or can["action"] != way or can["why"]:
            why = can["why"] if can and can["action"] == way else ""
            raise RefusedError(f"{title(one)} can't go on so: {why or one['words']}")
        show(arguments, answer, _print_dry)
        return
    answer = ask(arguments, f"{path}/{way}", "POST")
    show(arguments, answer, lambda told: print(f"{title(one)}: {shown(told['end']['message'])}"))


def _print_dry(told: dict[str, Any]) -> None:
    print(shown(f"{told['going_on']['words']} {told['now']}"))
    print("Nothing was done.")
