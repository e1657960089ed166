"""``gpuspawner list``, ``explain`` and ``stop``: the same REST API that the pages use."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gpuspawner.cli.asking import REFUSED, AwayError, RefusedError, call, token_of, told
from gpuspawner.core.units import show_duration, show_time

LAST_ENDED = 200
"""Among so many that ended one is looked for. Arbitrary: more than anybody asks for by hand."""
ID_LETTERS = 8
"""How much of an id is shown, and must be written of somebody else's."""


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
        print(f"No workspaces{whose}. Start one on the hub's page Home.")
        return 0
    rows: list[tuple[str, ...]] = [("ID", "USER", "SERVER", "STATE", "ENDS", "IDLE")]
    rows += [tuple(map(shown, _row(workspace))) for workspace in workspaces]
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
    left = "" if ends is None else "in " + show_duration(max(0, round(ends - workspace["now"])))
    if workspace["end"]:
        ended_at = workspace["end"]["at"]
        left = "now" if ended_at is None else show_time(ended_at, workspace["now"])
    idle = workspace["idle"]["words"] if workspace["idle"] else ""
    return workspace["id"][:ID_LETTERS], workspace["user"], workspace["server"] or "-", state, left, idle


def explain(arguments: argparse.Namespace) -> int:
    """Print what the workspace's page says of it. Without a name, of the only one, else of the one that ended last."""
    name = arguments.name
    try:
        found, everybody = _meant(arguments, name)
    except (RefusedError, AwayError) as error:
        return told(error)
    if len(found) != 1:
        wanted = f"called {name!r}, or with an id that begins so" if name else "now"
        return _not_one(found, wanted, everybody=everybody)
    (one,) = found
    if arguments.json:
        print(json.dumps(one, indent=1))
        return 0
    print(f"{_title(one)}. {one['words']}.")
    print("\n".join(map(shown, one["explained"])))
    return 0


def _meant(arguments: argparse.Namespace, name: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the workspaces that a name means, and whether everybody's were looked through for it.

    The first of these that are any:

    1. One's own that live and are called so; without a name, all of them.
    2. One's own that live, by the beginning of their id.
    3. One's own that ended last and was called so.
    4. One's own that ended, by the beginning of their id.
    5. For administrators, everybody's: those of 1, 2 and 4.
    """
    for everybody in (False, True):
        if everybody and not _ask(arguments, "/")["admin"]:
            return [], False
        live = _listed(arguments, everybody=everybody)
        if found := [one for one in live if _is_called(one, name)] or [one for one in live if _begins(one, name)]:
            return found, everybody
        ended = [one for one in _listed(arguments, everybody=everybody, ended=LAST_ENDED) if one["end"]]
        last = [] if everybody else [one for one in ended if _is_called(one, name)][:1]
        if found := last or [one for one in ended if name and _begins(one, name)]:
            return found, everybody
    return [], True


def _is_called(one: dict[str, Any], name: str) -> bool:
    return not name or (one["server"] or "-") == name


def _begins(one: dict[str, Any], beginning: str) -> bool:
    is_begun: bool = one["id"].startswith(beginning)
    return is_begun


def stop(arguments: argparse.Namespace) -> int:
    """Stop the one workspace that a name means, as for ``explain``. Of somebody else's it takes the name or the ID."""
    name = arguments.name
    if not name:  # it begins every id: a script whose variable is empty means none
        print("An empty name stops nothing. Name the workspace as gpuspawner list shows it.", file=sys.stderr)
        return REFUSED
    try:
        found, everybody = _meant(arguments, name)
        if len(found) != 1:
            return _not_one(found, f"called {name!r}, or with an id that begins so", everybody=everybody)
        (one,) = found
        if one["end"]:
            print(f"{_title(one)} has ended already. {one['end']['why']}", file=sys.stderr)
            return REFUSED
        if everybody and not _is_called(one, name) and len(name) < ID_LETTERS:
            print(f"{_title(one)} is not yours. Write its ID, as gpuspawner list --all shows it.", file=sys.stderr)
            return REFUSED
        answer = _ask(arguments, f"/workspaces/{one['id']}/stop", "POST")
    except (RefusedError, AwayError) as error:
        return told(error)
    print(json.dumps(answer, indent=1) if arguments.json else f"{_title(one)}: {answer['words']}. Its files stay.")
    return 0


def _title(one: dict[str, Any]) -> str:
    return shown(f"{one['user']}: {one['server'] or 'default workspace'} ({one['id'][:ID_LETTERS]})")


def shown(text: str) -> str:
    """Return a text for a terminal: names are people's own, and may hold what moves its cursor."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _listed(arguments: argparse.Namespace, *, everybody: bool, ended: int = 0) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = _ask(arguments, f"/workspaces?all={everybody:d}&ended={ended}")["workspaces"]
    return listed


def _not_one(found: list[dict[str, Any]], wanted: str, *, everybody: bool) -> int:
    count = "No workspace" if not found else f"{len(found)} workspaces"
    print(f"{count} {wanted}. See gpuspawner list{' --all' if everybody else ''}.", file=sys.stderr)
    return REFUSED
