"""``gpuspawner queue``, ``offers``, ``quota`` and ``usage``: what waits, is available, is left and was used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, query_of
from gpuspawner.cli.output import Column, or_dash, plain, print_table, say, short_id, show_time
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
        print_table(QUEUE_COLUMNS, [{**one, "now": answer["now"]} for one in named])
        for one in named:
            say(f"{short_id(one['id'])}: {_reason(one)}")
    else:
        say("You are not waiting for a GPU.")
    others = Counter(one["asked"] for one in answer["queue"] if not one["id"])
    for asked, count in others.items():
        say(f"{count} other {'request waits' if count == 1 else 'requests wait'} for {asked}.")


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
    from gpuspawner.core.gpus.fleet import SHARED_MEMORY_NOTE  # noqa: PLC0415 - 10 ms that only this table needs

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
    if answer["offers"]:
        print_table(OFFER_COLUMNS, [{**one, "currency": answer["currency"]} for one in answer["offers"]])
    else:
        say("No GPU kind is offered to you.")
    for line in answer["quota"]:
        say(line["words"])


@base.command("quota", examples="gpuspawner quota\ngpuspawner quota --user alice")
@click.option("--user", metavar="NAME", default="", help="Quota of this user (administrators).")
@base.session_options
def quota(session: Session, user: str) -> None:
    """Show your quota: used, reserved, left, and when it renews."""
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
COST_COLUMN = Column("COST", ("cost",), "{:.2f}".format)


@base.command(
    "usage",
    examples="gpuspawner usage --by kind\ngpuspawner usage --since 2026-11-01 --until 2026-11-30 --json",
)
@click.option(
    "--by",
    type=click.Choice(("user", "team", "kind", "day")),
    default="day",
    show_default=True,
    help="One row for each of these.",
)
@click.option("--since", metavar="DAY", help="The first day, for example 2026-11-01. Default: of this month.")
@click.option("--until", metavar="DAY", help="The last day. Default: today.")
@click.option("--all", "all_users", is_flag=True, help="Usage of all users (administrators).")
@base.session_options
def usage(session: Session, by: str, since: str | None, until: str | None, *, all_users: bool) -> None:
    """Show GPU hours and cost by day, user, team or kind."""
    query = query_of(by=by, since=since, until=until, all="1" if all_users else "")
    session.show(session.ask(f"/usage{query}"), _print_usage)


def _print_usage(answer: dict[str, Any]) -> None:
    since, until = answer["since"], answer["until"]
    if not answer["rows"]:
        say(f"No GPU was used from {since} to {until}.")
        return
    columns = (Column(answer["by"].upper(), ("name",), plain), *USAGE_COLUMNS)
    say(f"GPU hours from {since} to {until}, {answer['timezone']}. Running workspaces count up to now.")
    rows = [*answer["rows"], {**answer, "name": "all"}]
    print_table(columns if answer["cost"] is None else (*columns, COST_COLUMN), rows)
