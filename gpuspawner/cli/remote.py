"""``gpuspawner list``, ``explain`` and ``stop``: the same REST API that the pages use."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from gpuspawner.cli.asking import REFUSED, AwayError, RefusedError, call, token_of, told
from gpuspawner.core.units import show_duration


def _ask(arguments: argparse.Namespace, path: str, method: str = "GET") -> dict[str, Any]:
    return call(f"{arguments.url.rstrip('/')}/api/v1{path}", token_of(), method)


def list_workspaces(arguments: argparse.Namespace) -> int:
    """Print the workspaces as a table."""
    path = f"/workspaces?all={int(arguments.all)}&ended={max(0, arguments.ended)}"
    if arguments.disputed:
        path = f"/disputes?all={int(arguments.all)}"
    try:
        answer = _ask(arguments, path)
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(answer, indent=1))
        return 0
    workspaces = answer["workspaces"]
    if not workspaces and arguments.disputed:
        print("No end was called wrong that is not answered.")
        return 0
    if not workspaces:
        whose = "" if arguments.all else " of yours; --all shows everybody's, to administrators"
        print(f"No workspaces{whose}. Start one on the hub's page /hub/spawn.")
        return 0
    rows: list[tuple[str, ...]] = [("ID", "USER", "SERVER", "STATE", "ENDS", "IDLE")]
    rows += [_row(workspace) for workspace in workspaces]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(workspace: dict[str, Any]) -> tuple[str, ...]:
    state = workspace["words"]
    if workspace["queue"]:
        state += f" (place {workspace['queue']['place']} of {workspace['queue']['of']})"
    if workspace["end"]:
        state = f"{workspace['end']['words']} ({workspace['end']['by']})"
        if dispute := workspace["end"]["dispute"]:
            state += "; called wrong, answered" if dispute["answer"] else "; called wrong, not answered"
    ends = workspace["ends_at"]
    left = "" if ends is None or workspace["end"] else "in " + show_duration(max(0, round(ends - time.time())))
    idle = workspace["idle"]["words"] if workspace["idle"] else ""
    return workspace["id"][:8], workspace["user"], workspace["server"] or "-", state, left, idle


def explain(arguments: argparse.Namespace) -> int:
    """Print what the workspace's page says of it. Without a name, of the only one."""
    name = arguments.name
    try:
        of_name = _listed(arguments, "", lambda one: (one["server"] or "-") == name)
        live = _listed(arguments, "", lambda one: one["id"].startswith(name))
        found = (of_name if name else []) or live
        if name and not found:
            found = _listed(arguments, "ended=200", lambda one: one["id"].startswith(name))
    except (RefusedError, AwayError) as error:
        return told(error)
    if len(found) != 1:
        return _not_one(found, f"called {name!r}, or with an id that begins so" if name else "now")
    (one,) = found
    if arguments.json:
        print(json.dumps(one, indent=1))
        return 0
    print(f"{one['user']}: {one['server'] or 'default workspace'} ({one['id'][:8]}). {one['words']}.")
    print("\n".join(one["explained"]))
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Stop the one workspace whose id begins as given."""
    try:
        found = _listed(arguments, "", lambda one: one["id"].startswith(arguments.id))
        if not found and arguments.id:
            ended = _listed(arguments, "ended=200", lambda one: one["id"].startswith(arguments.id))
            if len(ended) == 1:
                print(f"It has ended already. {ended[0]['end']['why']}", file=sys.stderr)
                return REFUSED
        if len(found) != 1:
            return _not_one(found, f"with an id that begins with {arguments.id!r}")
        if not arguments.id:  # it begins every id: a script whose variable is empty means none
            print("An empty ID stops nothing. Name the workspace as gpuspawner list shows it.", file=sys.stderr)
            return REFUSED
        answer = _ask(arguments, f"/workspaces/{found[0]['id']}/stop", "POST")
    except (RefusedError, AwayError) as error:
        return told(error)
    print(json.dumps(answer, indent=1) if arguments.json else f"{answer['words']}. Its files stay.")
    return 0


def _listed(
    arguments: argparse.Namespace, query: str, wanted: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the workspaces that are wanted: of one's own, for administrators of all."""
    everybody = int(_ask(arguments, "/")["admin"])
    return [one for one in _ask(arguments, f"/workspaces?all={everybody}&{query}")["workspaces"] if wanted(one)]


def _not_one(found: list[dict[str, Any]], wanted: str) -> int:
    count = "no workspace" if not found else f"{len(found)} workspaces"
    print(f"{count} {wanted}. See gpuspawner list.", file=sys.stderr)
    return REFUSED
