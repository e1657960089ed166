"""``gpuspawner move``, and ``stop`` and ``extend`` with a reason: what administrators do to workspaces of anybody."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.administering.asking import ask_admin, ids_of, print_done
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import show


def move(arguments: argparse.Namespace) -> None:
    """Move all of the workspaces named, or say what that would do."""
    body = {"ids": ids_of(arguments), "now": arguments.now}
    act(arguments, "move", body)


def act(arguments: argparse.Namespace, action: str, body: dict[str, Any]) -> None:
    """Do it with the reason given, or say what it would do."""
    asked = {**body, "reason": arguments.reason, "dry_run": arguments.dry_run}
    show(arguments, ask_admin(arguments, f"/workspaces/{action}", "POST", asked), print_done)


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
