"""``gpuspawner calendar`` and ``gpuspawner admin reservations``: coming reservations and maintenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, query_of
from gpuspawner.cli.output import Column, print_table, say, short_id, show_time

F = TypeVar("F", bound=Callable[..., Any])
COLUMNS = (
    Column("FROM", ("begins_at", "now"), show_time),
    Column("UNTIL", ("until", "now"), lambda until, now: "" if until is None else show_time(until, now)),
    Column("FOR", ("for",)),
    Column("GPUS", ("gpus",)),
    Column("REPEATS", ("repeats",)),
    Column("REASON", ("reason",)),
)
OF_ADMINISTRATORS = (Column("ID", ("id",), short_id), *COLUMNS, Column("BY", ("by",)))


def _shared_options(function: F) -> F:
    """Add --from, --days, --json and --url."""
    options: Any = function
    for option in (
        base.session_options,
        click.option("--days", type=click.IntRange(1, 28), default=7, show_default=True, help="How many days."),
        click.option("--from", "since", metavar="DAY", default="", help="The first day, for example 2026-12-24."),
    ):
        options = option(options)
    return options  # type: ignore[no-any-return] # the same function with options


@base.command("calendar", examples="gpuspawner calendar\ngpuspawner calendar --from 2026-12-24 --days 28")
@_shared_options
def calendar(session: Session, since: str, days: int) -> None:
    """Show the coming reservations and maintenance of GPUs."""
    _show(session, since, days, COLUMNS)


@base.command("reservations", examples="gpuspawner admin reservations\ngpuspawner admin reservations --days 28 --json")
@_shared_options
def reservations(session: Session, since: str, days: int) -> None:
    """List the coming reservations and maintenance of GPUs, with their IDs for gpuspawner admin reserve --lift."""
    _show(session, since, days, OF_ADMINISTRATORS)


def _show(session: Session, since: str, days: int, columns: Sequence[Column]) -> None:
    def show(answer: dict[str, Any]) -> None:
        if not answer["entries"]:
            say("Nothing is reserved, and no maintenance is planned, in these days.")
            return
        print_table(columns, [{**one, "now": answer["now"]} for one in answer["entries"]])

    session.show(session.ask(f"/calendar{query_of(since=since, days=str(days))}"), show)
