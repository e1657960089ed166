"""``gpuspawner request`` and ``gpuspawner admin requests``: ask for more quota, and answer such requests."""

from __future__ import annotations

from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, find_by_id
from gpuspawner.cli.output import Column, print_table, say, short_id, show_time

COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("USER", ("user",)),
    Column("WHAT", ("words",)),
    Column("STATE", ("state",)),
    Column("SENT", ("made_at", "now"), show_time),
    Column("WHY", ("why",)),
    Column("ANSWER", ("answered_by", "answer"), lambda by, answer: ": ".join(filter(None, (by, answer)))),
)
PATH = "/quota-requests"


@base.command(
    "request",
    examples="""\
gpuspawner request "20 GPU h" --until Friday --reason "two more seeds of each ablation"
gpuspawner request "2 GPUs" --team vision --since Monday --until 2026-12-24 --reason "deadline"
gpuspawner request
gpuspawner request --withdraw 3f2a""",
)
@click.argument("amount", required=False)
@click.option("--team", metavar="TEAM", default="", help="The team whose quota it is about.")
@click.option("--whole-team", is_flag=True, help="For the whole team, not only for you.")
@click.option("--since", metavar="TIME", help="Begin, for example Monday. Default: with the answer.")
@click.option("--until", metavar="TIME", help="End, for example Friday, 2026-12-24, this month or 3d.")
@click.option("--reason", "why", metavar="TEXT", help="The reason, for the people who answer.")
@click.option("--withdraw", metavar="ID", help="Withdraw the request whose ID begins so.")
@base.session_options
def request(session: Session, amount: str | None, withdraw: str | None, **more: Any) -> None:
    """Ask for more quota for a time, or list your requests.

    AMOUNT is, for example, "20 GPU h", "2 GPUs" or "1 h100". A lead of your team or an administrator answers.
    """
    if withdraw:
        one = _find(session, withdraw, "")
        session.show(session.ask(f"{PATH}/{one['id']}", "DELETE"), _print_request)
    elif amount is None:
        session.show(session.ask_all(PATH, "requests"), _print_requests)
    else:
        body = {name: value for name, value in {"what": amount, **more}.items() if value}
        session.show(session.ask(PATH, "POST", body), _print_request)


@base.command(
    "requests",
    examples="""\
gpuspawner admin requests
gpuspawner admin requests approve 3f2a
gpuspawner admin requests approve 3f2a --amount "10 GPU h" --reason "more next week"
gpuspawner admin requests decline 3f2a --reason "save checkpoints, and extend it while it runs\"""",
)
@click.argument("act", type=click.Choice(("list", "approve", "decline")), default="list")
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--amount", "what", metavar="AMOUNT", help="Approve another amount.")
@click.option("--since", metavar="TIME", help="Approve another beginning.")
@click.option("--until", metavar="TIME", help="Approve another end.")
@click.option("--reason", "why", metavar="TEXT", help="The sentence that the user reads.")
@click.option("--all", "closed_too", is_flag=True, help="List answered requests, too.")
@base.session_options
def requests(session: Session, act: str, request_id: str | None, *, closed_too: bool, **more: Any) -> None:
    """List requests for more quota, and approve or decline them.

    It is for team leads and administrators. An approval may change the amount and the times. Then it needs a reason.
    """
    if act == "list":
        query = "?all=1" if closed_too else "?all=1&open=1"
        session.show(session.ask_all(f"{PATH}{query}", "requests"), _print_requests)
        return
    if not request_id:
        raise click.UsageError(f"Name the request: gpuspawner admin requests {act} ID.")
    one = _find(session, request_id, "?all=1&open=1")
    body = {name: value for name, value in more.items() if value}
    session.show(session.ask(f"{PATH}/{one['id']}/{act}", "POST", body), _print_request)


def _find(session: Session, begins: str, query: str) -> dict[str, Any]:
    found = session.ask_all(f"{PATH}{query}", "requests")["requests"]
    where = "gpuspawner admin requests" if query else "gpuspawner request"
    return find_by_id(found, begins, "request", where)


def _print_requests(answer: dict[str, Any]) -> None:
    if answer["requests"]:
        print_table(COLUMNS, answer["requests"])
    else:
        say("There are no requests.")


def _print_request(one: dict[str, Any]) -> None:
    given = f" {one['grant']['words']}." if one["grant"] else ""
    say(f"{one['words']} (request {short_id(one['id'])}): {one['state']}.{given}")
    if one["state"] == "open":
        say("A lead of your team or an administrator answers. gpuspawner request shows where it stands.")
