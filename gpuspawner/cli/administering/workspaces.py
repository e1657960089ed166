"""``gpuspawner move``, and ``stop`` and ``extend`` with a reason: what administrators do to workspaces of anybody."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpuspawner.cli.administering.asking import ask_admin, code_of, confirm, ids_of, print_done, typed
from gpuspawner.cli.asking import ask
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.meant import title
from gpuspawner.cli.output import show, shown

ENDING = frozenset({"stop", "move"})
"""What ends work, and is confirmed on a terminal."""


def move(arguments: argparse.Namespace) -> int:
    """Move all of the workspaces named, or say what that would do."""
    body = {"ids": ids_of(arguments), "now": arguments.now}
    return act(arguments, "move", body)


def act(arguments: argparse.Namespace, action: str, body: dict[str, Any]) -> int:
    """Do it with the reason given, or say what it would do; return the exit code.

    Raises:
        RefusedError: the person at the terminal does not confirm it.
    """
    path, asked = f"/workspaces/{action}", {**body, "reason": arguments.reason}
    if action in ENDING and not arguments.dry_run and not arguments.yes and sys.stdin.isatty():
        would = ask_admin(arguments, path, "POST", {**asked, "dry_run": True})
        confirm("\n".join(shown(f"{title(one)}: {one['words']}") for one in would["affected"]))
    answer = ask_admin(arguments, path, "POST", {**asked, "dry_run": arguments.dry_run})
    show(arguments, answer, print_done)
    return code_of(answer)


def ask_reason_to_stop(arguments: argparse.Namespace, one: dict[str, Any]) -> None:
    """Have a reason where somebody else's workspace is stopped: at a terminal it is asked for.

    Raises:
        InvalidError: there is none.
    """
    if arguments.reason or one["user"] == ask(arguments, "/")["user"]:
        return
    if sys.stdin.isatty():
        arguments.reason = typed(f"Why do you stop {title(one)}? Its user reads it: ")
    if not arguments.reason:
        words = f"{title(one)} is not yours. Say why you stop it, which its user reads: --reason TEXT."
        raise InvalidError(shown(words))


def is_administrators(arguments: argparse.Namespace, *needing: str) -> bool:
    """Whether it is done as an administrator, who says why.

    Raises:
        InvalidError: an argument that only they have, and no reason.
    """
    said = [name for name in needing if getattr(arguments, name)]
    if said and not arguments.reason:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in said)
        raise InvalidError(f"Administrators say why: {names} needs --reason.")
    return bool(arguments.reason)
