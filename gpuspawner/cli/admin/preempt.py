"""``gpuspawner admin preempt``: claims of GPUs that are in use, for administrators and their scripts."""

from __future__ import annotations

import time
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, find_by_id
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import Column, or_dash, print_table, say, short_id, show_time
from gpuspawner.core.units import BadValue, parse_duration


def _claimant(one: dict[str, Any]) -> str:
    ((kind, name),) = one.items()
    return str(name) if kind == "external" else f"{kind} {name}"


COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("GPUS", ("count", "title"), "{} {}".format),
    Column("FOR", ("for",), _claimant),
    Column("BY", ("by",)),
    Column("MADE", ("made_at", "now"), show_time),
    Column("STATE", ("words",)),
)
VICTIM_COLUMNS = (
    Column("USER", ("user",)),
    Column("SERVER", ("server",), or_dash),
    Column("GPUS", ("gpus",), lambda gpus: str(len(gpus))),
    Column("ENDS", ("ends_at", "now"), lambda at, now: "" if at is None else show_time(at, now)),
    Column("WHAT IS LOST", ("loses",)),
)


@click.group("preempt")
def preempt() -> None:
    """Claim GPUs in use for more important work.

    The users of the workspaces that end are warned before. Their requests return to the queue ahead of later ones. The
    freed GPUs are reserved until the claimant has them, the claim is cancelled, or its time is over.
    """


@preempt.command(
    "take",
    cls=base.Command,
    examples="""\
gpuspawner admin preempt take a100 2 --external train-77 --dry-run       the workspaces that would end
gpuspawner admin preempt take a100 2 --team vision --by 30m""",
)
@click.argument("kind")
@click.argument("count", type=int)
@click.option("--external", metavar="NAME", help="Claim for work outside the hub. Users read this name.")
@click.option("--team", metavar="NAME", help="Claim for a team of the catalog.")
@click.option("--user", metavar="NAME", help="Claim for a user of the hub.")
@click.option("--by", metavar="TIME", help="When the GPUs are needed, for example 20m. Default: the longest notice.")
@click.option("--hold", metavar="TIME", help="How long to reserve them from now. Default: 30m once all are free.")
@click.option("--any-node", is_flag=True, help="The GPUs may be on several nodes.")
@click.option("--key", metavar="TEXT", help="A repeated claim with the same key is the same claim.")
@click.option("--dry-run", is_flag=True, help="Say which workspaces would end, and do nothing.")
@base.session_options
def take(
    session: Session, kind: str, count: int, by: str | None, hold: str | None, *, any_node: bool, **more: Any
) -> None:
    """Make a claim.

    KIND is the GPU kind of the catalog and COUNT the number of GPUs. With --dry-run it says which workspaces would end.
    """
    if sum(bool(more[name]) for name in ("external", "team", "user")) != 1:
        raise click.UsageError("Write one of --external, --team and --user.")
    now = time.time()
    body = {name: value for name, value in more.items() if value is not None}
    body |= {"kind": kind, "count": count, "one_node": not any_node}
    try:
        for name, text in (("by", by), ("hold_until", hold)):
            if text:
                body[name] = now + parse_duration(text)
    except BadValue as error:
        raise InvalidError(str(error)) from error
    session.show(session.ask("/preemptions", "POST", body), _print_claim)


@preempt.command("list")
@base.session_options
def list_claims(session: Session) -> None:
    """List the last claims."""
    session.show_list(session.ask("/preemptions"), "preemptions", COLUMNS, "There are no claims.")


@preempt.command("show")
@click.argument("claim_id", metavar="ID")
@base.session_options
def show(session: Session, claim_id: str) -> None:
    """Show a claim and the workspaces that end for it."""
    _for_claim(session, claim_id, "", "GET")


@preempt.command("cancel")
@click.argument("claim_id", metavar="ID")
@base.session_options
def cancel(session: Session, claim_id: str) -> None:
    """Cancel a claim: workspaces that were warned keep running."""
    _for_claim(session, claim_id, "", "DELETE")


@preempt.command("claimed")
@click.argument("claim_id", metavar="ID")
@base.session_options
def claimed(session: Session, claim_id: str) -> None:
    """Report that the claimant has the GPUs in use."""
    _for_claim(session, claim_id, "/claimed", "POST")


def _for_claim(session: Session, claim_id: str, action: str, method: str) -> None:
    claims = session.ask("/preemptions")["preemptions"]
    one = find_by_id(claims, claim_id, "claim", "gpuspawner admin preempt list")
    session.show(session.ask(f"/preemptions/{one['id']}{action}", method), _print_claim)


def _print_claim(one: dict[str, Any]) -> None:
    name = f" (claim {short_id(one['id'])})" if one["id"] else ""
    say(f"{one['count']} {one['title']} for {_claimant(one['for'])}{name}: {one['words']}")
    if one["victims"]:
        shared = {"now": one["now"]}
        rows = [{**shared, **victim, "ends_at": victim["ends_at"] or one["ends_at"]} for victim in one["victims"]]
        print_table(VICTIM_COLUMNS, rows)
    if one["note"]:
        say(one["note"])
