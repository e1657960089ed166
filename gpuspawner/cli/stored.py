"""``gpuspawner export-me``, ``admin export`` and ``admin forget``: what is stored of a person."""

from __future__ import annotations

from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, query_of
from gpuspawner.cli.output import print_json, say

created_option = click.option("--created", metavar="TIME", default="", help="Which user, if several had the name.")


@base.command("export-me", examples="gpuspawner export-me > stored.json")
@base.session_options
def export_me(session: Session) -> None:
    """Print all that is stored of you as JSON.

    That is workspaces, measurements, charges, presets and more. Tokens and values of secrets are left out. Your files
    are not part of it.
    """
    _print_stored(session.ask("/stored"))


@base.command("export", examples="gpuspawner admin export alice > alice.json")
@click.argument("user")
@created_option
@base.session_options
def export(session: Session, user: str, created: str) -> None:
    """Print all that is stored of a user as JSON, also of one who has left."""
    _print_stored(session.ask(f"/stored{query_of(user=user, created=created)}"))


@base.command(
    "forget",
    examples="""\
gpuspawner admin forget alice --reason "left on 30 Nov" --dry-run
gpuspawner admin forget alice --reason "left on 30 Nov"
gpuspawner admin forget alice --reason "asked for it" --delete""",
)
@click.argument("user")
@click.option("--delete", is_flag=True, help="Delete workspaces and their history, instead of a pseudonym.")
@created_option
@click.option("--dry-run", is_flag=True, help="Print the outcome, and do nothing.")
@click.option("--reason", "why", metavar="TEXT", help="The reason, which is stored.")
@base.session_options
def forget(session: Session, user: str, created: str, why: str | None, *, delete: bool, dry_run: bool) -> None:
    """Put what is stored of a user under a pseudonym, or delete it. Sums of usage stay as they are.

    Presets, schedules, tokens and notices are deleted in either case. It cannot be undone.
    """
    given = {"user": user, "created": created, "why": why, "how": "delete" if delete else "", "dry_run": dry_run}
    session.show(session.ask("/stored/forget", "POST", {name: x for name, x in given.items() if x}), _print_forgotten)


def _print_stored(answer: dict[str, Any]) -> None:
    print_json({"user": answer["user"], "sections": answer["sections"], **answer})


def _print_forgotten(answer: dict[str, Any]) -> None:
    say(f"{answer['words']} as {answer['pseudonym']}.{' Nothing was done yet.' if answer['dry_run'] else ''}")
    for side in answer["sides"]:
        say(f"  {side['words']}.")
    say(answer["note"])
