"""``gpuspawner admin catalog``: show, compare and change the catalog, or go back to an earlier version."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import ask_admin, confirm, dry_run_option, reason_option, yes_option
from gpuspawner.cli.client import Session, query_of
from gpuspawner.cli.errors import InvalidError, RefusedError
from gpuspawner.cli.output import Column, escape, or_dash, say, show_time
from gpuspawner.core.errors import LARGEST_REQUEST_BYTES

COLUMNS = (
    Column("VERSION", ("number", "in_force"), lambda number, is_now: f"{number} (in force)" if is_now else str(number)),
    Column("SAVED", ("saved_at", "now"), show_time),
    Column("BY", ("by",), or_dash),
    Column("REASON", ("reason",), or_dash),
    Column("CHANGES", ("changes",)),
)
MARKS = {"good": "✓", "warn": "!", "bad": "✗", "info": "·"}


@click.group("catalog")
def catalog() -> None:
    """Show, compare and change the catalog, or go back to an earlier version.

    A change is checked first, and its effect is shown. It is written as a new version to the catalog's file, or to the
    cluster if the entry is a custom resource.
    """


@catalog.command("show", cls=base.Command, examples="gpuspawner admin catalog show > catalog.yaml")
@click.option("--version", metavar="N", default="newest", help="Show this version. Default: the newest.")
@base.session_options
def show(session: Session, version: str) -> None:
    """Print the catalog as YAML."""
    session.show(ask_admin(session, f"/catalog/versions/{version}"), lambda one: click.echo(one["text"], nl=False))


@catalog.command("versions", cls=base.Command, examples="gpuspawner admin catalog versions")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 100), default=20, show_default=True, help="Print at most N."
)
@base.session_options
def versions(session: Session, limit: int) -> None:
    """List the versions of the catalog, the newest first."""
    answer = ask_admin(session, f"/catalog/versions{query_of(limit=limit)}")
    session.show_list(answer, "versions", COLUMNS, "No version is stored yet.")


@catalog.command(
    "diff",
    cls=base.Command,
    examples="gpuspawner admin catalog diff 12\ngpuspawner admin catalog diff 12 --against 9",
)
@click.argument("version", default="newest")
@click.option("--against", metavar="N", type=int, help="Compare with this version. Default: the version before.")
@base.session_options
def diff(session: Session, version: str, against: int | None) -> None:
    """Compare a version with the version before it, or with another one."""
    session.show(ask_admin(session, f"/catalog/versions/{version}{query_of(against=against)}"), _print_comparison)


@catalog.command(
    "save",
    cls=base.Command,
    examples="""\
gpuspawner admin catalog save catalog.yaml --base 11 --reason "PyTorch 2.9" --dry-run
gpuspawner admin catalog save small.yaml --entry templates.small --base 11 --reason "for the class\"""",
)
@click.argument("file")
@click.option("--base", "base_version", metavar="N", type=int, required=True, help="The version that you changed.")
@click.option("--entry", metavar="NAME", default="", help="FILE is only this entry, for example templates.small.")
@yes_option
@reason_option
@dry_run_option
@base.session_options
def save(session: Session, file: str, base_version: int, entry: str, reason: str, *, yes: bool, dry_run: bool) -> None:
    """Save a changed catalog as a new version.

    FILE is YAML. With - it is read from standard input. For an entry that is a custom resource, N is its newest
    version, and 0 for a new one.
    """
    change = {"base": base_version, "entry": entry, "text": _read(file)}
    _save(session, change, reason, confirmed=yes, dry_run=dry_run)


@catalog.command("edit", cls=base.Command, examples='gpuspawner admin catalog edit --reason "more GPUs for vision"')
@yes_option
@reason_option
@dry_run_option
@base.session_options
def edit(session: Session, reason: str, *, yes: bool, dry_run: bool) -> None:
    """Edit the catalog in your editor ($EDITOR), and save it as a new version."""
    now = ask_admin(session, "/catalog")
    if not now["editable"]:
        raise RefusedError(escape(now["why_not"]))
    text = click.edit(now["text"], extension=".yaml")
    if text is None:
        say("Nothing was changed.")
        return
    _save(session, {"base": now["version"]["number"], "text": text}, reason, confirmed=yes, dry_run=dry_run)


@catalog.command("restore", cls=base.Command, examples='gpuspawner admin catalog restore 9 --reason "a wrong limit"')
@click.argument("version", type=int)
@yes_option
@reason_option
@dry_run_option
@base.session_options
def restore(session: Session, version: int, reason: str, *, yes: bool, dry_run: bool) -> None:
    """Go back to an earlier version. It is saved again as the newest."""
    newest = ask_admin(session, f"/catalog/versions/{version}")["version"]["newest"]
    change = {"base": newest, "version": version}
    _save(session, change, reason, confirmed=yes, dry_run=dry_run)


def _read(path: str) -> str:
    """Return the text of a file, or of standard input for "-"."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            text: str = file.read(LARGEST_REQUEST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InvalidError(f"{path} can't be read: {why}.") from error
    return text


def _save(session: Session, change: dict[str, Any], reason: str, *, confirmed: bool, dry_run: bool) -> None:
    preview = ask_admin(session, "/catalog/preview", "POST", change)
    if preview["problems"]:
        problems = "\n".join(f"  {_problem(one)}" for one in preview["problems"])
        raise RefusedError(escape(f"The catalog can't be used. Nothing was saved.\n{problems}"))
    if dry_run:
        session.show(preview, _print_preview)
        return
    if not confirmed and sys.stdin.isatty():
        confirm([f"Version {preview['number']}: {preview['changes']}", *(one["words"] for one in preview["effects"])])
    saved = ask_admin(session, "/catalog", "POST", {**change, "reason": reason})
    session.show(
        saved, lambda one: say(f"Saved version {one['number']}: {one['changes']}. It is in force within seconds.")
    )


def _problem(one: dict[str, Any]) -> str:
    place = "" if one["line"] is None else f"line {one['line']}, "
    return f"{place}{one['entry']}: {one['wrong']}. {one['right']}"


def _print_preview(preview: dict[str, Any]) -> None:
    say(f"It would be version {preview['number']}: {preview['changes'] or 'nothing differs'}.")
    for one in preview["effects"]:
        say(f"{MARKS[one['kind']]} {one['words']}")
    _print_diff(preview["diff"])


def _print_comparison(answer: dict[str, Any]) -> None:
    number = answer["version"]["number"]
    if answer["against"] is None:
        say(f"No version before {number} is kept.")
    elif not answer["diff"]:
        say(f"Versions {answer['against']} and {number} have the same text.")
    else:
        say(f"Version {number} compared with {answer['against']}:")
        _print_diff(answer["diff"])


def _print_diff(lines: list[dict[str, str]]) -> None:
    for line in lines:
        say(f"{line['sign'] or ' '} {line['text']}")
