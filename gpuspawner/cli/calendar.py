"""Times to come: reservations and maintenance of GPUs, and your scheduled workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, find_by_id, query_of, without_empty
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import Column, or_dash, say, short_id, show_end, show_time
from gpuspawner.cli.start import request_options

CALENDAR_COLUMNS = (
    Column("FROM", ("begins_at", "now"), show_time),
    Column("UNTIL", ("until", "now"), lambda until, now: "" if until is None else show_end(until, now)),
    Column("FOR", ("for",)),
    Column("GPUS", ("gpus",)),
    Column("REPEATS", ("repeats",)),
    Column("REASON", ("reason",)),
)
OF_ADMINISTRATORS = (Column("ID", ("id",), short_id), *CALENDAR_COLUMNS, Column("BY", ("by",)))


_shared_options = base.join_options(
    click.option("--from", "since", metavar="DAY", default="", help="The first day, for example 2026-12-24."),
    click.option("--days", type=click.IntRange(1, 28), default=7, show_default=True, help="How many days."),
    base.session_options,
)


@base.command("calendar", examples="gpuspawner calendar\ngpuspawner calendar --from 2026-12-24 --days 28")
@_shared_options
def calendar(session: Session, since: str, days: int) -> None:
    """Show the coming reservations and maintenance of GPUs."""
    _show(session, since, days, CALENDAR_COLUMNS)


@base.command("reservations", examples="gpuspawner admin reservations\ngpuspawner admin reservations --days 28 --json")
@_shared_options
def reservations(session: Session, since: str, days: int) -> None:
    """List the coming reservations and maintenance of GPUs, with their IDs for gpuspawner admin reserve --lift."""
    _show(session, since, days, OF_ADMINISTRATORS)


def _show(session: Session, since: str, days: int, columns: Sequence[Column]) -> None:
    empty = "Nothing is reserved, and no maintenance is planned, in these days."
    session.show_list(session.ask(f"/calendar{query_of(since=since, days=str(days))}"), "entries", columns, empty)


SCHEDULE_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("WHEN", ("words",)),
    Column("NAME", ("server",), or_dash),
    Column("NEXT", ("sentence",)),
)
EXAMPLES = """\
gpuspawner schedule                                      your schedules
gpuspawner schedule pytorch --gpu a100 --at 8:00 --on weekdays
gpuspawner schedule --at 13:30 --on mon,wed --name train --lifetime 4h
gpuspawner schedule --change 3f2a --at 9:00
gpuspawner schedule --pause 3f2a
gpuspawner schedule --resume 3f2a
gpuspawner schedule --remove 3f2a"""


@base.command("schedule", examples=EXAMPLES)
@request_options
@click.option("--at", metavar="TIME", help="Time of day in the catalog's time zone, for example 8:00.")
@click.option("--on", metavar="DAYS", help="weekdays (the default), weekend, daily, or days, for example mon,wed.")
@click.option("--name", metavar="NAME", default="", help="Name of the workspace. Default: the one without a name.")
@click.option("--change", metavar="ID", help="Change --at, --on or both of the schedule whose ID begins so.")
@click.option("--pause", metavar="ID", help="Pause the schedule whose ID begins so.")
@click.option("--resume", metavar="ID", help="Resume a paused schedule.")
@click.option("--remove", metavar="ID", help="Remove the schedule whose ID begins so.")
@base.session_options
def schedule(
    session: Session, request: dict[str, Any], at: str | None, on: str | None, name: str, **actions: str | None
) -> None:
    """Schedule a workspace for a time of some weekdays, or list schedules.

    The workspace is requested early enough to run at the time. How early depends on the queue then. If you do not open
    it within the time that its policy gives, it is released. After three such days in a row the schedule pauses.
    """
    chosen = {action: one for action, one in actions.items() if one}
    if len(chosen) > 1:
        raise click.UsageError(f"Write one of {' and '.join(f'--{action}' for action in chosen)}.")
    if chosen:
        ((action, beginning),) = chosen.items()
        _change(session, action, beginning, without_empty({"at": at, "on": on}))
    elif at:
        body = {**request, "server": name, "at": at, "on": on or "weekdays"}
        session.show(session.ask("/ready", "POST", body), _print_one)
    elif request or name or on:
        raise InvalidError("The time is missing. Add it, for example --at 8:00.")
    else:
        empty = "You have no schedules. Make one with gpuspawner schedule --at 8:00 --on weekdays."
        session.show_list(session.ask("/ready"), "ready", SCHEDULE_COLUMNS, empty)


def _change(session: Session, action: str, beginning: str, when: dict[str, str]) -> None:
    """Change, pause, resume or remove a schedule."""
    listed = session.ask("/ready")["ready"]
    path = f"/ready/{find_by_id(listed, beginning, 'schedule', 'gpuspawner schedule')['id']}"
    if action == "remove":
        session.show(session.ask(path, "DELETE"), lambda one: say(f"{short_id(one['id'])}: removed."))
        return
    if action == "change" and not when:
        raise InvalidError("The change is missing. Add --at 9:00, --on mon,wed, or both.")
    body = when if action == "change" else {"paused": action == "pause"}
    session.show(session.ask(path, "POST", body), _print_one)


def _print_one(one: dict[str, Any]) -> None:
    say(f"{one['words']} ({short_id(one['id'])}): {one['sentence']}")
