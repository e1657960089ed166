"""Restrictions: drain, quarantine, pause, reserve and exempt. Each is made, listed and lifted."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import (
    UNTIL_FORMS,
    ask_admin,
    confirm,
    dry_run_option,
    exit_code_of,
    find_ids,
    print_done,
    reason_option,
    yes_option,
)
from gpuspawner.cli.client import Session
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import Column, counted, escape, say, short_id, show_time

LIFT_ID = "Lift the one with this ID, or of this user, team, GPU kind or USER/SERVER."
NOUNS = {"reserve": "reservation", "exempt": "exemption"} | {x: x for x in ("drain", "quarantine", "pause")}
COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("WHAT", ("title",)),
    Column("STATE", ("state",)),
    Column("BY", ("by",)),
    Column("MADE", ("since", "now"), show_time),
    Column("REASON", ("reason",)),
)


_shared_options = base.join_options(
    click.option(
        "--from",
        "begins",
        metavar="TIME",
        default="",
        help='Begin, for example tomorrow, "2026-12-24 18:00" or 2h. Default: now.',
    ),
    click.option("--until", metavar="TIME", default="", help=f"End, {UNTIL_FORMS}."),
    reason_option,
    dry_run_option,
    click.option("--list", "listed", is_flag=True, help="List those in force."),
    base.session_options,
)


every_option = click.option(
    "--every",
    metavar="TIMES",
    default="",
    help='Only in this part of each week between --from and --until, for example "Thu 09:00-11:00".',
)
lift_flag = click.option("--lift", is_flag=True, help="Lift the one in force.")


@base.command(
    "drain",
    examples="""\
gpuspawner admin drain node-7 --until "2026-12-24 18:00" --reason "a new driver" --dry-run
gpuspawner admin drain node-7 --from "2026-12-24 06:00" --until "2026-12-24 10:00" --reason "new firmware"
gpuspawner admin drain node-7 --lift --reason "the driver is installed\"""",
)
@click.argument("node", required=False, default="")
@every_option
@lift_flag
@_shared_options
def drain(session: Session, node: str, *, lift: bool, **options: Any) -> int:
    """Drain a node, now or for a maintenance to come: nothing new starts on it.

    NODE is the name that the console shows. Before a maintenance to come, workspaces that start there end in time.
    """
    return _run(session, "drain", {"node": node, "every": options.pop("every")}, node if lift else None, options)


@base.command(
    "quarantine",
    examples="""\
gpuspawner admin quarantine node-7/3 --reason "ECC errors"
gpuspawner admin quarantine node-7/3 --lift --reason "replaced\"""",
)
@click.argument("gpu", required=False, default="")
@lift_flag
@_shared_options
def quarantine(session: Session, gpu: str, *, lift: bool, **options: Any) -> int:
    """Quarantine a GPU: no new workspace gets it.

    GPU is its ID, or NODE/INDEX, as the console shows it.
    """
    return _run(session, "quarantine", {"gpu": gpu}, gpu if lift else None, options)


@base.command(
    "pause",
    examples="""\
gpuspawner admin pause a100 --until 2h --reason "the network is repaired"
gpuspawner admin pause --reason "the storage is away"
gpuspawner admin pause --lift --reason "it is back\"""",
)
@click.argument("kind", required=False, default="")
@lift_flag
@_shared_options
def pause(session: Session, kind: str, *, lift: bool, **options: Any) -> int:
    """Pause grants of a GPU kind, or of everything.

    KIND is the name of the catalog. Without it, no workspace gets a GPU.
    """
    return _run(session, "pause", {"kind": kind}, kind if lift else None, options)


@base.command(
    "reserve",
    examples="""\
gpuspawner admin reserve a100 4 --team vision --from tomorrow --until Friday --reason "a demonstration" --dry-run
gpuspawner admin reserve a100 4 --group cs231 --every "Thu 09:00-11:00" --until 2026-12-18 --reason "a lab course"
gpuspawner admin reserve --list
gpuspawner admin reserve --lift vision --reason "done\"""",
)
@click.argument("kind", required=False, default="")
@click.argument("count", required=False, type=int)
@click.option("--user", metavar="NAME", default="", help="Reserve for this user.")
@click.option("--team", metavar="NAME", default="", help="Reserve for this team of the catalog.")
@click.option("--group", metavar="NAME", default="", help="Reserve for this group of the hub, for example a class.")
@click.option("--node", metavar="NAME", default="", help="Reserve GPUs of this node only.")
@every_option
@click.option("--lift", metavar="NAME", default="", help=LIFT_ID)
@yes_option
@_shared_options
def reserve(session: Session, kind: str, count: int | None, *, yes: bool, lift: str, **options: Any) -> int:
    """Reserve GPUs for a user, a team or a group of the hub.

    KIND is the name of the catalog and COUNT the number of GPUs. Conflicts are shown before you confirm.
    """
    whom = {name: options.pop(name) for name in ("user", "team", "group")}
    if list(map(bool, whom.values())).count(True) > 1:
        raise click.UsageError("Write either --user, --team or --group.")
    target = {"kind": kind, "count": count, **whom, "node": options.pop("node"), "every": options.pop("every")}
    return _run(session, "reserve", target, lift or None, options, confirmed=yes)


@base.command(
    "exempt",
    examples="""\
gpuspawner admin exempt alice/train --until Friday --reason "a long download first"
gpuspawner admin exempt --user alice --until 3d --reason "a demonstration"
gpuspawner admin exempt --lift alice --reason "it is over\"""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--user", metavar="NAME", default="", help="Exempt all workspaces of this user.")
@click.option("--lift", metavar="NAME", default="", help=LIFT_ID)
@_shared_options
def exempt(session: Session, names: tuple[str, ...], *, user: str, lift: str, **options: Any) -> int:
    """Exempt workspaces from the idle check for a time.

    A NAME is an ID as gpuspawner list --all shows it, or USER/SERVER (USER/- for the one without a name).
    """
    making = names and not lift and not options["listed"]
    ids = {"ids": find_ids(session, names)} if making else {}
    return _run(session, "exempt", {"user": user, **ids}, lift or None, options)


def _run(
    session: Session,
    what: str,
    target: dict[str, Any],
    lift: str | None,
    options: dict[str, Any],
    *,
    confirmed: bool = True,
) -> int:
    """List, lift or make a restriction. Return the exit code."""
    if options["listed"]:
        answer = ask_admin(session, "/restrictions")
        found = [one for one in answer["restrictions"] if one["what"] == what]
        empty = "There are no restrictions of this kind."
        session.show_list({**answer, "restrictions": found}, "restrictions", COLUMNS, empty)
        return 0
    if lift is not None:
        lifted = _lift(session, what, lift, options["reason"], by_target="user" not in target)
        session.show(lifted, lambda one: say(f"Ended the {NOUNS[what]} of {one['on']}."))
        return 0
    given = {"what": what, **target, **{name: options[name] for name in ("reason", "until", "begins")}}
    body = {name: value for name, value in given.items() if value is not None and value != ""}
    body |= {"reason": options["reason"], "dry_run": options["dry_run"]}
    if not (confirmed or options["dry_run"]) and sys.stdin.isatty():
        would = ask_admin(session, "/restrictions", "POST", {**body, "dry_run": True})
        confirm([would["words"], *conflict_lines(would)])
    made = ask_admin(session, "/restrictions", "POST", body)
    session.show(made, _print_made)
    return exit_code_of(made)


def conflict_lines(answer: dict[str, Any]) -> list[str]:
    """Return the conflicts of a reservation, and what fits instead, as lines."""
    conflicts, choices = answer["conflicts"], answer["choices"]
    title = [f"{counted(len(conflicts), 'conflict')}:"] if conflicts else []
    fits = ["These fit instead:", *(f"  {one['words']}" for one in choices)] if choices else []
    return [*title, *(f"  {one['words']}" for one in conflicts), *fits]


def _print_made(answer: dict[str, Any]) -> None:
    print_done(answer)
    for line in conflict_lines(answer):
        say(line)


def _lift(session: Session, what: str, wanted: str, reason: str, *, by_target: bool) -> dict[str, Any]:
    """Lift the one restriction that is meant. Raises RefusedError for no restriction and for several."""
    live = [one for one in ask_admin(session, "/restrictions")["restrictions"] if one["what"] == what]
    if by_target:
        found = [one for one in live if wanted in {one["target"], one["for"] or one["target"]}]
        which = f"on {wanted!r}" if wanted else "on everything"
    else:
        found = [one for one in live if one["id"].startswith(wanted) or wanted in _names_of(one)]
        which = f"called {wanted!r}, or with an ID that begins so"
    if not found:
        raise RefusedError(f"There is no {what} {which}. See gpuspawner admin {what} --list.")
    if len(found) > 1:
        choices = "".join(f"\n  {short_id(one['id'])}  {escape(one['title'])}" for one in found)
        raise RefusedError(f"There are {len(found)} {which}. Nothing was done. Write one of these IDs:{choices}")
    return ask_admin(session, f"/restrictions/{found[0]['id']}", "DELETE", {"reason": reason})


def _names_of(one: dict[str, Any]) -> set[str]:
    """Return the names of a restriction: its target, its user or team, a workspace as USER/SERVER, its title."""
    user, slash, server = one["for"].partition(" / ")
    workspace = f"{user}/{'-' if server == 'default workspace' else server}" if slash else ""
    return {one["target"], one["for"], workspace, one["title"]} - {""}
