"""``gpuspawner admin grant`` and ``correct``: more quota for a time, and corrections of the usage that is charged."""

from __future__ import annotations

from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, find_by_id
from gpuspawner.cli.output import Column, print_table, say, short_id, show_time

COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("WHAT", ("words",)),
    Column("STATE", ("state",)),
    Column("BY", ("by",)),
    Column("MADE", ("made_at", "now"), show_time),
    Column("WHY", ("why",)),
)
reason_option = click.option("--reason", "why", metavar="TEXT", help="The reason, which is stored.")


@base.command(
    "grant",
    examples="""\
gpuspawner admin grant alice "4 GPUs" --until Friday --reason "deadline of the paper"
gpuspawner admin grant --team vision "+20 GPU h" --until "this month" --reason "lost a node on Monday"
gpuspawner admin grant --take-back 3f2a --reason "no longer needed\"""",
)
@click.argument("user", required=False, default="")
@click.argument("amount", required=False)
@click.option("--team", metavar="TEAM", default="", help="For this team, or for USER in it.")
@click.option("--everybody", is_flag=True, help="For all users together.")
@click.option("--since", metavar="TIME", help="Begin, for example tomorrow. Default: now.")
@click.option("--until", metavar="TIME", help="End, for example Friday, 2026-12-24, this month or 3d.")
@click.option("--take-back", metavar="ID", help="Take back the grant whose ID begins so.")
@click.option("--list", "listed", is_flag=True, help="List the grants, the newest first.")
@reason_option
@base.session_options
def grant(
    session: Session,
    user: str,
    amount: str | None,
    take_back: str | None,
    why: str | None,
    *,
    listed: bool,
    **more: Any,
) -> None:
    """Add to a quota or a budget for a time.

    AMOUNT is, for example, "4 GPUs", "+20 GPU h" or "2 h100". GPU hours and cost are added to each day, week or month
    in which the grant is in force. A grant that is taken back ends no workspace: nothing starts or is extended by it
    any more.
    """
    reason = {"why": why} if why else {}
    if listed:
        session.show(session.ask_all("/quota-grants", "grants"), _print_grants)
        return
    if take_back:
        grants = session.ask_all("/quota-grants", "grants")["grants"]
        one = find_by_id(grants, take_back, "grant", "gpuspawner admin grant --list")
        session.show(session.ask(f"/quota-grants/{one['id']}", "DELETE", reason), _print_grant)
        return
    if amount is None:  # for a team or for all users, the amount is the only argument
        user, amount = "", user
    body = {name: value for name, value in {"user": user, "what": amount, **more}.items() if value}
    session.show(session.ask("/quota-grants", "POST", {**reason, **body}), _print_grant)


@base.command(
    "correct",
    examples="""\
gpuspawner admin correct alice "-3 GPU h" --reason "node-7 was away on Monday" --dry-run
gpuspawner admin correct alice "-3 GPU h" --reason "node-7 was away on Monday" --month 2026-10""",
    context_settings={"ignore_unknown_options": True},  # an amount begins with -
)
@click.argument("user")
@click.argument("amount")
@click.option("--team", metavar="TEAM", default="", help="The team that is charged.")
@click.option("--month", metavar="MONTH", default="", help="The month that it corrects. Default: this month.")
@click.option("--dry-run", is_flag=True, help="Print the outcome, and do nothing.")
@reason_option
@base.session_options
def correct(session: Session, user: str, amount: str, why: str | None, **more: Any) -> None:
    """Correct the usage that a user is charged.

    AMOUNT is, for example, "-3 GPU h", which credits the user, or "+10 cost". A correction of a closed month counts in
    the present one.
    """
    given = {"user": user, "amount": amount, "why": why, **more}
    body = {name: value for name, value in given.items() if value}
    session.show(session.ask("/usage/corrections", "POST", body), _print_correction)


def _print_grants(answer: dict[str, Any]) -> None:
    if answer["grants"]:
        print_table(COLUMNS, answer["grants"])
    else:
        say("There are no grants.")


def _print_grant(one: dict[str, Any]) -> None:
    say(f"{one['words']} (grant {short_id(one['id'])}): {one['state']}.")
    if one["note"]:
        say(one["note"])


def _print_correction(one: dict[str, Any]) -> None:
    say(f"{one['words']}.{' Nothing was done yet.' if one['dry_run'] else ''}")
    for side in one["sides"]:
        say(f"  {side['words']}.")
    if one["note"]:
        say(one["note"])
