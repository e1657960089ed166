"""How what administrators do is asked and told."""

from __future__ import annotations

import argparse
import sys
from typing import Any
from urllib.parse import quote

from gpuspawner.cli.asking import ID_LETTERS, ask, ask_all
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import REFUSED, RefusedError
from gpuspawner.cli.output import shown
from gpuspawner.cli.table import print_table

FORBIDDEN = 403
INSTEAD = (
    "An administrator signs in by gpuspawner login --admin. Your own workspaces you stop and extend without --reason."
)


def ask_admin(arguments: argparse.Namespace, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    """Return what the API answers below ``/admin``; to whom it is forbidden, what they can do is said."""
    try:
        return ask(arguments, f"/admin{path}", method, body)
    except RefusedError as error:
        if error.status != FORBIDDEN:
            raise
        raise RefusedError(f"{error} {INSTEAD}", error.status) from error


def ids_of(arguments: argparse.Namespace) -> list[str]:
    """Return the ids of the workspaces that the names mean, whoever's they are.

    Raises:
        RefusedError: a name means none, or several.
    """
    live = ask_all(arguments, "/workspaces?all=1", "workspaces")["workspaces"]
    return [_id_of(name, live) for name in arguments.names]


def _id_of(name: str, live: list[dict[str, Any]]) -> str:
    user, slash, server = name.rpartition("/")
    if slash:
        found = [one for one in live if (one["user"], one["server"] or "-") == (user, server)]
    else:
        found = [one for one in live if name and one["id"].startswith(name)]
    if len(found) != 1:
        count = "No workspace" if not found else f"{len(found)} workspaces"
        raise RefusedError(f"{count} called {name!r}. Name it by its ID or as USER/SERVER; see gpuspawner list --all.")
    return str(found[0]["id"])


def print_done(answer: dict[str, Any]) -> None:
    """Print what was done, or would be, and to whom."""
    print(shown(answer["words"]))
    rows: list[tuple[str, ...]] = [("ID", "USER", "SERVER", "ENDS", "WHAT")]
    for one in (*answer["affected"], *({**one, "words": f"No. {one['words']}"} for one in answer["refused"])):
        ends = "" if one["ends_at"] is None else show_time(one["ends_at"], answer["now"])
        rows.append((one["id"][:ID_LETTERS], one["user"], one["server"] or "-", ends, one["words"]))
    if len(rows) > 1:
        print_table(rows)


def confirm(would: str) -> None:
    """Ask at the terminal whether to do what is told. Raises RefusedError where the answer is not yes."""
    print(would, file=sys.stderr)
    if typed("Do it? [y/N] ").lower() not in {"y", "yes"}:
        raise RefusedError("Nothing was done.")


def typed(prompt: str) -> str:
    """Return a line that is typed at the terminal; "" where its input ends."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def code_of(answer: dict[str, Any]) -> int:
    """Return the exit code of what was done: refused where that is true of a part of it."""
    return REFUSED if answer["refused"] and not answer["dry_run"] else 0


def query_of(**values: object) -> str:
    """Return the query of an address; what is empty is left out."""
    said = [f"{name}={quote(str(value), safe='')}" for name, value in values.items() if value not in {"", None}]
    return f"?{'&'.join(said)}" if said else ""
