"""``gpuspawner move`` and ``extend``, and ``stop`` with a reason: workspaces of anybody, several at once."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.administering.asking import ask, ids_of, print_done, print_json
from gpuspawner.cli.asking import AwayError, RefusedError, told


def act(arguments: argparse.Namespace) -> int:
    """Do it to all of the workspaces named, or say what it would do."""
    body: dict[str, Any] = {"reason": arguments.reason, "dry_run": arguments.dry_run}
    if arguments.command == "extend":
        body["until"] = arguments.until
    else:
        body["now"] = arguments.now
    try:
        answer = ask(arguments, f"/workspaces/{arguments.command}", "POST", {**body, "ids": ids_of(arguments)})
    except (RefusedError, AwayError) as error:
        return told(error)
    (print_json if arguments.json else print_done)(answer)
    return 0
