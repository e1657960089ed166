"""Queue, offers, quota and usage, requests for more quota, and what administrators grant or correct."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import dry_run_option, why_option
from gpuspawner.cli.client import Session, find_by_id, query_of, without_empty
from gpuspawner.cli.output import (
    Column,
    counted,
    or_dash,
    plain,
    print_list,
    print_outcome,
    print_table,
    say,
    short_id,
    show_time,
)
from gpuspawner.core.units import show_bytes, show_money, show_wait


def _starts_in(form: str, likely_seconds: float | None) -> str:
    """Return in how long a request starts, as precisely as it is known; "" for a range or without an estimate."""
    if likely_seconds is not None:
        return f"about {show_wait(likely_seconds)}"
    return form if form in {"within the hour", "more than 3 hours"} else ""


QUEUE_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("USER", ("user",)),
    Column("SERVER", ("server",), or_dash),
    Column("TEAM", ("team",), or_dash),
    Column("FOR", ("asked",)),
    Column("PLACE", ("place", "of"), "{} of {}".format),
    Column("SINCE", ("asked_at", "now"), show_time),
    Column("STARTS IN", ("form", "likely_seconds"), _starts_in),
)


@base.command("queue", examples="gpuspawner queue\ngpuspawner queue --json")
@base.session_options
def queue(session: Session) -> None:
    """Show the queue: requests for GPUs with their positions and reasons.

    You see your own requests, and how many others wait for what. Administrators see all requests.
    """
    session.show(session.ask("/queue"), _print_queue)


def _print_queue(answer: dict[str, Any]) -> None:
    named = [one for one in answer["queue"] if one["id"]]
    if not answer["queue"]:
        say("The queue is empty.")
        return
    if named:
        print_table(QUEUE_COLUMNS, [{**answer, **one} for one in named])
        for one in named:
            say(f"{short_id(one['id'])}: {_reason(one)}")
    else:
        say("You are not waiting for a GPU.")
    others = Counter(one["asked"] for one in answer["queue"] if not one["id"])
    for asked, count in others.items():
        say(f"{counted(count, 'other request waits', 'other requests wait')} for {asked}.")


def _reason(one: dict[str, Any]) -> str:
    """Return the reason for the wait: the sentence, the rule, requests that go first, and changes of the position."""
    sentences = [one["sentence"]]
    if held := one["wait_reason"]:
        sentences += [held["words"]] if held["words"] not in one["sentence"] else []
        sentences.append(f"Held back by the rule {held['rule']}.")
    return " ".join(filter(None, [*sentences, one["precedence"], one["changed"]]))


def _memory(memory_bytes: int | None, memory_enforced: bool) -> str:
    size = "" if memory_bytes is None else show_bytes(memory_bytes)
    return f"{size}, not enforced" if size and not memory_enforced else size


def _note(note: str, spot: bool, memory_enforced: bool, measured: str) -> str:
    from gpuspawner.core.gpus.placement import SHARED_MEMORY_NOTE  # noqa: PLC0415 - 10 ms that only this table needs

    reclaim = "spot: the cloud may take it back at any time" if spot else ""
    return "; ".join(filter(None, (note, reclaim, "" if memory_enforced else SHARED_MEMORY_NOTE, measured)))


OFFER_COLUMNS = (
    Column("KIND", ("kind",)),
    Column("TITLE", ("title", "simulated"), lambda title, simulated: f"{title} (simulated)" if simulated else title),
    Column("MEMORY", ("memory_bytes", "memory_enforced"), _memory),
    Column("FREE", ("free", "total"), lambda free, total: "unknown" if free is None else f"{free} of {total}"),
    Column("WAITING", ("waiting",)),
    Column(
        "PRICE",
        ("price_per_hour", "currency"),
        lambda price, currency: "" if price is None else f"{show_money(price, currency)} / h",
    ),
    Column("NOTE", ("note", "spot", "memory_enforced", "measured"), _note),
)


@base.command("offers", examples="gpuspawner offers\ngpuspawner offers --json")
@base.session_options
def offers(session: Session) -> None:
    """Show the GPUs that are available now, and your limits."""
    session.show(session.ask("/offers"), _print_offers)


def _print_offers(answer: dict[str, Any]) -> None:
    print_list(answer, "offers", OFFER_COLUMNS, "No GPU kind is offered to you.")
    for line in answer["quota"]:
        say(line["words"])


@base.command("quota", examples="gpuspawner quota\ngpuspawner quota --user alice")
@click.option("--user", metavar="NAME", default="", help="Quota of this user (administrators).")
@base.session_options
def quota(session: Session, user: str) -> None:
    """Show your quota: used, reserved, left, and when it resets."""
    session.show(session.ask(f"/quota{query_of(user=user)}"), _print_quota)


def _print_quota(answer: dict[str, Any]) -> None:
    lines = [line["words"] for line in (*answer["limits"], *answer["budgets"])]
    lines += [f"Granted: {one['words']} ({one['by']}: {one['why']})" for one in answer["grants"]]
    for line in lines or ["You have no limits."]:
        say(line)


USAGE_COLUMNS = (
    Column("CHARGED", ("charged_gpu_hours",), "{:.1f}".format),
    Column("CREDITED", ("credited_gpu_hours",), "{:.1f}".format),
)
MEASURED_COLUMNS = (
    Column("ACTIVE", ("active_gpu_hours",), "{:.1f}".format),
    Column("IDLE", ("idle_gpu_hours",), "{:.1f}".format),
)
COST_COLUMN = Column("COST", ("cost",), "{:.2f}".format)


@base.command(
    "usage",
    examples="gpuspawner usage --by kind\ngpuspawner usage --since 2026-11-01 --until 2026-11-30 --json",
)
@click.option(
    "--by",
    type=click.Choice(("user", "team", "kind", "day", "workspace")),
    default="day",
    show_default=True,
    help="One row for each of these.",
)
@click.option("--since", metavar="DAY", help="The first day, for example 2026-11-01. Default: of this month.")
@click.option("--until", metavar="DAY", help="The last day. Default: today.")
@click.option("--all", "all_users", is_flag=True, help="Usage of all users (administrators).")
@base.session_options
def usage(session: Session, by: str, since: str | None, until: str | None, *, all_users: bool) -> None:
    """Show GPU hours and cost by day, workspace, user, team or kind."""
    query = query_of(by=by, since=since, until=until, all="1" if all_users else "")
    session.show(session.ask(f"/usage{query}"), _print_usage)


def _print_usage(answer: dict[str, Any]) -> None:
    since, until = answer["since"], answer["until"]
    if not answer["rows"]:
        say(f"No GPU was used from {since} to {until}.")
        return
    measured = {key: [row[key] for row in answer["rows"]] for key in ("active_gpu_hours", "idle_gpu_hours")}
    are_known = all(None not in hours for hours in measured.values())
    more: tuple[Column, ...] = MEASURED_COLUMNS if are_known else ()
    columns = (Column(answer["by"].upper(), ("name",), plain), *more, *USAGE_COLUMNS)
    say(f"GPU hours from {since} to {until}, {answer['timezone']}. Running workspaces count up to now.")
    sums = {key: sum(hours) for key, hours in measured.items()} if are_known else {}
    rows = [*answer["rows"], {**answer, **sums, "name": "all"}]
    print_table(columns if answer["cost"] is None else (*columns, COST_COLUMN), rows)


REQUEST_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("USER", ("user",)),
    Column("WHAT", ("words",)),
    Column("STATE", ("state",)),
    Column("GIVEN", ("given",)),
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
        _list(session, "", "You have sent no requests.")
    else:
        session.show(session.ask(PATH, "POST", without_empty({"what": amount, **more})), _print_request)


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
@dry_run_option
@click.option("--all", "closed_too", is_flag=True, help="List answered requests, too.")
@base.session_options
def requests(session: Session, act: str, request_id: str | None, *, closed_too: bool, **more: Any) -> None:
    """List requests for more quota, and approve or decline them.

    Team leads and administrators use it. An approval may change the amount and the times. Then it needs a reason.
    """
    if act == "list":
        if closed_too:
            _list(session, "?all=1", "There are no requests.")
        else:
            _list(session, "?all=1&open=1", "No request is open. --all also lists those that were answered.")
        return
    if not request_id:
        raise click.UsageError(f"Name the request: gpuspawner admin requests {act} ID.")
    if act == "decline" and more.pop("dry_run"):
        raise click.UsageError("Only an approval has a preview.")
    one = _find(session, request_id, "?all=1&open=1", "?all=1")
    session.show(session.ask(f"{PATH}/{one['id']}/{act}", "POST", without_empty(more)), _print_request)


def _list(session: Session, query: str, empty: str) -> None:
    answer = session.ask_all(f"{PATH}{query}", "requests")
    session.show_list(answer, "requests", REQUEST_COLUMNS, empty)


def _find(session: Session, begins: str, *queries: str) -> dict[str, Any]:
    """Return the request whose ID begins so, from the first of the lists that has one."""
    found: list[dict[str, Any]] = []
    for query in queries:
        found = session.ask_all(f"{PATH}{query}", "requests")["requests"]
        if any(one["id"].startswith(begins) for one in found):
            break
    where = "gpuspawner admin requests" if any(queries) else "gpuspawner request"
    return find_by_id(found, begins, "request", where)


def _print_effects(one: dict[str, Any], words: str) -> None:
    """Print a preview of extra quota."""
    say(f"{words}. Nothing was changed.")
    for effect in one["effects"]:
        say(f"- {effect['words']}")


def _print_request(one: dict[str, Any]) -> None:
    if one.get("dry_run"):
        _print_effects(one, f"{one['grant']['words']} (request {short_id(one['id'])})")
        return
    given = f" {one['grant']['words']}." if one["grant"] and one["grant"]["words"] != one["words"] else ""
    say(f"{one['words']} (request {short_id(one['id'])}): {one['state']}.{given}")
    if one["state"] == "open":
        say("A lead of your team or an administrator answers. gpuspawner request shows where it stands.")


GRANT_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("WHAT", ("words",)),
    Column("STATE", ("state",)),
    Column("BY", ("by",)),
    Column("MADE", ("made_at", "now"), show_time),
    Column("WHY", ("why",)),
)


@base.command(
    "grant",
    examples="""\
gpuspawner admin grant alice "4 GPUs" --until Friday --reason "deadline of the paper"
gpuspawner admin grant --team vision "+20 GPU h" --until "this month" --reason "lost a node on Monday"
gpuspawner admin grant bob "20 GPU h" --from alice --team vision --reason "alice is on holiday"
gpuspawner admin grant --take-back 3f2a --reason "no longer needed\"""",
)
@click.argument("user", required=False, default="")
@click.argument("amount", required=False)
@click.option("--team", metavar="TEAM", default="", help="For this team, or for USER in it.")
@click.option("--everybody", is_flag=True, help="For all users together.")
@click.option("--as-limit", is_flag=True, help="AMOUNT is the whole limit until then, also if it is lower than now.")
@click.option("--from", "source", metavar="USER", default="", help="Move it from this member, who has less then.")
@click.option("--since", metavar="TIME", help="Begin, for example tomorrow. Default: now.")
@click.option("--until", metavar="TIME", help="End, for example Friday, 2026-12-24, this month or 3d.")
@click.option("--take-back", metavar="ID", help="Take back the grant whose ID begins so.")
@click.option("--list", "listed", is_flag=True, help="List the grants, the newest first.")
@dry_run_option
@why_option
@base.session_options
def grant(
    session: Session,
    user: str,
    amount: str | None,
    take_back: str | None,
    why: str | None,
    *,
    source: str,
    listed: bool,
    **more: Any,
) -> None:
    """Add to a quota or a budget for a time.

    AMOUNT is, for example, "4 GPUs", "+20 GPU h" or "2 h100". GPU hours and cost are added to each day, week or month
    in which the grant is in force. With --from they come from the budget of another member of the team. A grant that is
    taken back ends no workspace: nothing starts or is extended by it any more.
    """
    if take_back and more["dry_run"]:
        raise click.UsageError("Only new extra quota has a preview.")
    if listed or take_back:
        answer = session.ask_all("/quota-grants", "grants")
    if listed:
        session.show_list(answer, "grants", GRANT_COLUMNS, "There are no grants.")
        return
    if take_back:
        one = find_by_id(answer["grants"], take_back, "grant", "gpuspawner admin grant --list")
        answer = session.ask(f"/quota-grants/{one['id']}", "DELETE", without_empty({"why": why}))
    else:
        if amount is None:  # for a team or for all users, the amount is the only argument
            user, amount = "", user
        path = "/quota-moves" if source else "/quota-grants"
        body = without_empty({"why": why, "source": source, "user": user, "what": amount, **more})
        answer = session.ask(path, "POST", body)
    session.show(answer, _print_grant)


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
@dry_run_option
@why_option
@base.session_options
def correct(session: Session, user: str, amount: str, why: str | None, **more: Any) -> None:
    """Correct the usage that a user is charged.

    AMOUNT is, for example, "-3 GPU h", which credits the user, or "+10 cost". A correction of a closed month counts in
    the present one.
    """
    body = without_empty({"user": user, "amount": amount, "why": why, **more})
    answer = session.ask("/usage/corrections", "POST", body)
    session.show(answer, lambda told: print_outcome(told, told["words"]))


def _print_grant(one: dict[str, Any]) -> None:
    if one.get("dry_run"):
        _print_effects(one, one["words"])
        return
    if "more" in one:
        say(f"{one['words']} (grant {short_id(one['more']['id'])}).")
        return
    say(f"{one['words']} (grant {short_id(one['id'])}): {one['state']}.")
    if one["note"]:
        say(one["note"])
