"""Your account: sign-in, tokens, secrets, and what is stored of a person."""

from __future__ import annotations

import os
import socket
import sys
import time
import webbrowser
from typing import Any
from urllib.parse import quote

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import dry_run_option, why_option
from gpuspawner.cli.client import Session, call, find_by_id, query_of, without_empty
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.logins import logins_file, save_login, saved_login
from gpuspawner.cli.output import Column, print_json, print_outcome, say, say_progress, short_id, show_time

DEVICE_LETTERS = 80
LONGEST_VALUE = 8193
"""Characters that are read of a secret: one more than the service takes, so that it refuses a longer one."""
SECRET_COLUMNS = (
    Column("NAME", ("name",)),
    Column("CHANGED", ("changed_at",), lambda at: show_time(at, time.time())),
    Column("STATE", ("readable",), lambda readable: "" if readable else "can't be decrypted: save it again"),
)
TOKEN_COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("MACHINE", ("device",)),
    Column("ALLOWED", ("made_at", "now"), show_time),
    Column("UNTIL", ("until", "now"), show_time),
    Column(
        "ADMINISTRATOR",
        ("admin_until", "now"),
        lambda until, now: "no" if until is None else f"until {show_time(until, now)}",
    ),
)


@base.command(
    "login",
    examples="""\
gpuspawner login --url https://hub.example.org/services/gpu
gpuspawner login --admin             also with an administrator's rights, for 12 hours""",
)
@click.option("--admin", is_flag=True, help="With an administrator's rights, for 12 hours.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@base.session_options
def login(session: Session, *, admin: bool, no_browser: bool) -> None:
    """Sign in with a code that you type on a page of the hub.

    The command prints an address and a code. Open the address where you are signed in to the hub, type the code, and
    press Continue, then Allow. This machine then gets a token for the GPU service alone, for 30 days. If
    GPUSPAWNER_TOKEN is set, it is used instead.
    """
    api = f"{session.url.rstrip('/')}/api/v1"
    begun = call(f"{api}/login{query_of(device=socket.gethostname()[:DEVICE_LETTERS], admin=int(admin))}", "", "POST")
    say_progress(f"Open {begun['page']}")
    say_progress(f"type this code there, press Continue, then Allow:  {begun['code']}")
    if not no_browser and _has_visible_browser():
        webbrowser.open(begun["page"])
    until = time.monotonic() + begun["seconds"]
    while time.monotonic() < until:
        time.sleep(begun["ask_every_seconds"])
        answer = call(f"{api}/login/token", begun["secret"], "POST", scheme="login")
        if answer["token"]:
            saved = {"token": answer["token"], "id": answer["about"]["id"], "user": answer["user"]}
            save_login(session.url, saved)
            session.show({"user": answer["user"], **answer["about"]}, _print_login)
            if os.environ.get("GPUSPAWNER_TOKEN"):
                say_progress("GPUSPAWNER_TOKEN is set and is used instead. Unset it to use this login.")
            return
    raise RefusedError("The code was not allowed within five minutes. Run gpuspawner login again.")


@base.command("logout")
@base.session_options
def logout(session: Session) -> None:
    """Sign out: end the token of this machine."""
    saved = saved_login(session.url)
    if saved is None:
        raise RefusedError(f"This machine is not signed in to {session.url}.")
    try:
        call(f"{session.url.rstrip('/')}/api/v1/tokens/this", saved["token"], "DELETE")
    except RefusedError as error:
        if not error.status:
            raise
        say_progress("The token had ended already.")
    save_login(session.url, None)
    session.show({"id": saved["id"], "user": saved["user"]}, lambda _: say("Signed out."))


@base.command("tokens", examples="gpuspawner tokens\ngpuspawner tokens --revoke 3f2a")
@click.option("--revoke", metavar="ID", help="Sign out the machine whose ID begins so.")
@base.session_options
def tokens(session: Session, revoke: str | None) -> None:
    """List the machines that are signed in as you, or sign one out."""
    answer = session.ask("/tokens")
    if revoke:
        one = find_by_id(answer["tokens"], revoke, "token", "gpuspawner tokens")
        answer = session.ask(f"/tokens/{one['id']}", "DELETE")
    session.show_list(answer, "tokens", TOKEN_COLUMNS, "No machine is signed in as you.")


@base.command(
    "secrets", examples="gpuspawner secrets\ngpuspawner secrets --set HF_TOKEN\ngpuspawner secrets --delete HF_TOKEN"
)
@click.option("--set", "name", metavar="NAME", help="Save the secret NAME. Its value is asked for, or read from stdin.")
@click.option("--delete", "deleted", metavar="NAME", help="Delete the secret NAME.")
@base.session_options
def secrets(session: Session, name: str | None, deleted: str | None) -> None:
    """List your secrets, save one or delete one.

    A secret is a variable of your workspaces from their next start on. Nothing prints its value.
    """
    if name:
        value = (
            click.prompt(f"Value of {name}", hide_input=True) if sys.stdin.isatty() else sys.stdin.read(LONGEST_VALUE)
        )
        answer = session.ask("/secrets", "POST", {"name": name, "value": value.rstrip("\n")})
        session.show(answer, lambda told: say(f"{told['name']} is saved."))
    elif deleted:
        answer = session.ask(f"/secrets/{quote(deleted, safe='')}", "DELETE")
        session.show(answer, lambda told: say(f"{told['name']} is deleted."))
    else:
        empty = "You have no secrets. Save one with gpuspawner secrets --set NAME."
        session.show_list(session.ask("/secrets"), "secrets", SECRET_COLUMNS, empty)


def _has_visible_browser() -> bool:
    """Return whether the user sees a browser that this machine opens."""
    has_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(has_screen) and not os.environ.get("SSH_CONNECTION")


def _print_login(one: dict[str, Any]) -> None:
    admin_until, now = one["admin_until"], one["now"]
    admin = "" if admin_until is None else f", as an administrator until {show_time(admin_until, now)}"
    say(f"Signed in as {one['user']} until {show_time(one['until'], now)}{admin}.")
    say(f"The token is in {logins_file()}. To end it: gpuspawner logout.")


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
@dry_run_option
@why_option
@base.session_options
def forget(session: Session, user: str, created: str, why: str | None, *, delete: bool, dry_run: bool) -> None:
    """Put what is stored of a user under a pseudonym, or delete it. Sums of usage stay as they are.

    Presets, schedules, tokens and notices are deleted in either case. It cannot be undone.
    """
    given = {"user": user, "created": created, "why": why, "how": "delete" if delete else "", "dry_run": dry_run}
    answer = session.ask("/stored/forget", "POST", without_empty(given))
    session.show(answer, lambda told: print_outcome(told, f"{told['words']} as {told['pseudonym']}"))


def _print_stored(answer: dict[str, Any]) -> None:
    print_json({"user": answer["user"], "sections": answer["sections"], **answer})
