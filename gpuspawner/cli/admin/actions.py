"""Actions of administrators on workspaces of any user: move, and stop and extend with a reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, title_of
from gpuspawner.cli.errors import REFUSED, InvalidError, RefusedError
from gpuspawner.cli.output import Column, escape, or_dash, print_table, say, say_progress, short_id, show_time

ENDING = frozenset({"stop", "move"})
"""Actions that end work. At a terminal they need a confirmation."""
UNTIL_FORMS = 'for example Friday, "2026-12-24 18:00", 2h or 3d'
WORKSPACE = "A NAME is an ID as gpuspawner list --all shows it, or USER/SERVER (USER/- for the one without a name)."

dry_run_option = click.option("--dry-run", is_flag=True, help="Print the outcome, and do nothing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for a confirmation at a terminal.")
now_option = click.option("--now", is_flag=True, help="With a reason: at once, without the notice of the policy.")
until_option = click.option("--until", metavar="TIME", default="", help=f"With a reason: the new end, {UNTIL_FORMS}.")
why_option = click.option("--reason", "why", metavar="TEXT", help="The reason, which is stored.")
reason_option = click.option("--reason", metavar="TEXT", default="", help="The reason, which the user reads.")
admin_options = base.join_options(
    click.option("--reason", metavar="TEXT", default="", help="Act as an administrator; the user reads it."),
    click.option("--dry-run", is_flag=True, help="With a reason: print the outcome, and do nothing."),
)
"""The options of an administrator for a command that users have, too."""


@dataclass(frozen=True)
class AdminAction:
    """An action on workspaces with its reason. ``confirmed``: do not ask at the terminal."""

    name: str
    ids: Sequence[str]
    reason: str
    more: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    confirmed: bool = False


@base.command(
    "move",
    examples="""\
gpuspawner admin move 7c1d --reason "GPU 0 reports errors" --dry-run
gpuspawner admin move 7c1d 90ab --reason "node-7 is repaired" --now""",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="At once, without the notice of the policy.")
@yes_option
@reason_option
@dry_run_option
@base.session_options
def move(session: Session, names: tuple[str, ...], reason: str, *, now: bool, yes: bool, dry_run: bool) -> int:
    """Move workspaces: they end and start again elsewhere.

    A NAME is an ID as gpuspawner list --all shows it, or USER/SERVER (USER/- for the one without a name).
    """
    action = AdminAction("move", find_ids(session, names), reason, {"now": now}, dry_run=dry_run, confirmed=yes)
    return run_action(session, action)


@base.command(
    "reorder",
    examples="""\
gpuspawner admin reorder 90ab --place 1 --reason "the paper is due at 18:00" --dry-run
gpuspawner admin reorder alice/train --place 1 --reason "the paper is due at 18:00\"""",
)
@click.argument("name", metavar="NAME")
@click.option(
    "--place", type=int, required=True, help="The new place among the requests for the same GPUs. 1 is first."
)
@reason_option
@dry_run_option
@base.session_options
def reorder(session: Session, name: str, place: int, reason: str, *, dry_run: bool) -> int:
    """Move a waiting request up or down in the queue.

    Users of requests that are passed read the reason. No workspace ends for it. A NAME is an ID as gpuspawner list
    --all shows it, or USER/SERVER (USER/- for the one without a name).
    """
    action = AdminAction("reorder", find_ids(session, [name]), reason, {"place": place}, dry_run=dry_run)
    return run_action(session, action)


def run_action(session: Session, action: AdminAction) -> int:
    """Run an action, or say what it would do. Return the exit code.

    Raises:
        RefusedError: the service refuses it, or the person at the terminal does not confirm it.
    """
    path, body = f"/workspaces/{action.name}", {**action.more, "ids": list(action.ids), "reason": action.reason}
    if action.name in ENDING and not action.dry_run and not action.confirmed and sys.stdin.isatty():
        outlook = ask_admin(session, path, "POST", {**body, "dry_run": True})
        confirm([f"{title_of(one)}: {one['words']}" for one in outlook["affected"]])
    answer = ask_admin(session, path, "POST", {**body, "dry_run": action.dry_run})
    session.show(answer, print_done)
    return exit_code_of(answer)


def ask_reason_to_stop(session: Session, one: dict[str, Any], reason: str) -> str:
    """Return the reason. At a terminal, ask for it if the workspace is another user's.

    Raises:
        InvalidError: the workspace is another user's and there is no reason.
    """
    if reason or one["user"] == session.ask("/")["user"]:
        return reason
    if sys.stdin.isatty():
        reason = read_line(f"Why do you stop {title_of(one)}? Its user reads the reason: ")
    if not reason:
        raise InvalidError(escape(f"{title_of(one)} is not yours. Give a reason, which its user reads: --reason TEXT."))
    return reason


def has_reason(reason: str, needing: Mapping[str, object]) -> bool:
    """Return whether an administrator gives a reason.

    Args:
        reason: the reason, or "".
        needing: options that need a reason, with their values.

    Raises:
        InvalidError: an option is given without a reason.
    """
    given = [name for name, value in needing.items() if value]
    if given and not reason:
        raise InvalidError(f"{' and '.join(given)} is for administrators and needs a reason: --reason TEXT.")
    return bool(reason)


def ask_admin(session: Session, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    """Return the answer of the API below ``/admin``."""
    return session.ask(f"/admin{path}", method, body)


def find_ids(session: Session, names: Sequence[str]) -> list[str]:
    """Return the IDs of the workspaces that the names mean, of any user.

    Raises:
        RefusedError: no workspace fits a name, or several.
    """
    live = session.ask_all("/workspaces?all=1", "workspaces")["workspaces"]
    return [_find_id(name, live) for name in names]


def _find_id(name: str, live: list[dict[str, Any]]) -> str:
    user, slash, server = name.rpartition("/")
    if slash:
        found = [one for one in live if (one["user"], one["server"] or "-") == (user, server)]
    else:
        found = [one for one in live if name and one["id"].startswith(name)]
    if len(found) != 1:
        count = "No workspace is" if not found else f"{len(found)} workspaces are"
        raise RefusedError(f"{count} called {name!r}. Write an ID or USER/SERVER; see gpuspawner list --all.")
    return str(found[0]["id"])


DONE_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("USER", ("user",)),
    Column("SERVER", ("server",), or_dash),
    Column("ENDS", ("ends_at", "now"), lambda at, now: "" if at is None else show_time(at, now)),
    Column("WHAT", ("words",)),
)


def print_done(answer: dict[str, Any]) -> None:
    """Print what was done or would be done, and to which workspaces."""
    say(answer["words"])
    rows = [*answer["affected"], *({**one, "words": f"No. {one['words']}"} for one in answer["refused"])]
    if rows:
        print_table(DONE_COLUMNS, [{**row, "now": answer["now"]} for row in rows])


def confirm(lines: Sequence[str]) -> None:
    """Ask at the terminal whether to go on. Raises RefusedError for any answer but yes."""
    for line in lines:
        say_progress(line)
    if read_line("Continue? [y/N] ").lower() not in {"y", "yes"}:
        raise RefusedError("Nothing was done.")


def read_line(prompt: str) -> str:
    """Return a line that is typed at the terminal, or "" at the end of the input."""
    print(escape(prompt), end="", file=sys.stderr, flush=True)  # noqa: T201 - the answer is typed behind it
    return sys.stdin.readline().strip()


def exit_code_of(answer: dict[str, Any]) -> int:
    """Return the exit code of what was done: refused if a part of it was refused."""
    return REFUSED if answer["refused"] and not answer["dry_run"] else 0
