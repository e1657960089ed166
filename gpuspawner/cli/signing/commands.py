"""``gpuspawner login``, ``logout`` and ``tokens``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import webbrowser
from typing import Any
from urllib.parse import urlencode

from gpuspawner.cli.asking import ID_LETTERS, ask, call, one_begins
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.signing.credentials import file_of_tokens, keep_token, kept_token
from gpuspawner.cli.table import print_table


def login(arguments: argparse.Namespace) -> None:
    """Begin a login, show its code, and wait until its user allows it."""
    query = urlencode({"device": socket.gethostname()[:80], "admin": int(arguments.admin)})
    api = f"{arguments.url.rstrip('/')}/api/v1"
    begun = call(f"{api}/login?{query}", "", "POST")
    told = f"Open {begun['page']}\ncompare this code, and press Allow:  {begun['code']}"
    print(shown_lines(told), file=sys.stderr, flush=True)
    if not arguments.no_browser and _has_browser():
        webbrowser.open(begun["page"])
    until = time.monotonic() + begun["seconds"]
    while time.monotonic() < until:
        time.sleep(begun["ask_every_seconds"])
        came = call(f"{api}/login/token", begun["secret"], "POST", scheme="login")
        if came["token"]:
            keep_token(arguments.url, {"token": came["token"], "id": came["about"]["id"], "user": came["user"]})
            show(arguments, {"user": came["user"], **came["about"]}, _print_login)
            if os.environ.get("GPUSPAWNER_TOKEN"):
                print("GPUSPAWNER_TOKEN is set, and goes before it: unset it to use this login.", file=sys.stderr)
            return
    raise RefusedError("Nobody pressed Allow within five minutes. Run gpuspawner login again.")


def logout(arguments: argparse.Namespace) -> None:
    """End the token of this machine, at the service and here."""
    kept = kept_token(arguments.url)
    if kept is None:
        raise RefusedError(f"This machine is not signed in to {arguments.url}.")
    try:
        call(f"{arguments.url.rstrip('/')}/api/v1/tokens/this", kept["token"], "DELETE")
    except RefusedError as error:
        if not error.status:
            raise
        print("It was over already.", file=sys.stderr)
    keep_token(arguments.url, None)
    show(arguments, {"id": kept["id"], "user": kept["user"]}, lambda _: print("Signed out."))


def tokens(arguments: argparse.Namespace) -> None:
    """List one's tokens, or end one."""
    answer = ask(arguments, "/tokens")
    if arguments.revoke:
        one = one_begins(answer["tokens"], arguments.revoke, "token", "gpuspawner tokens")
        answer = ask(arguments, f"/tokens/{one['id']}", "DELETE")
    show(arguments, answer, _print_tokens)


def shown_lines(text: str) -> str:
    """Return lines for a terminal, each as :func:`shown`."""
    return "\n".join(map(shown, text.splitlines()))


def _has_browser() -> bool:
    """Whether a browser of this machine's is one that its user sees."""
    seen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(seen) and not os.environ.get("SSH_CONNECTION")


def _print_login(one: dict[str, Any]) -> None:
    admin = (
        "" if one["admin_until"] is None else f", as an administrator until {show_time(one['admin_until'], one['now'])}"
    )
    print(shown(f"Signed in as {one['user']} until {show_time(one['until'], one['now'])}{admin}."))
    print(f"The token is in {file_of_tokens()}. gpuspawner logout ends it.")


def _print_tokens(answer: dict[str, Any]) -> None:
    if not answer["tokens"]:
        print("No machine may act for you.")
        return
    rows: list[tuple[str, ...]] = [("ID", "MACHINE", "ALLOWED", "UNTIL", "ADMINISTRATOR")]
    for one in answer["tokens"]:
        times = [show_time(one[name], one["now"]) for name in ("made_at", "until")]
        admin = "no" if one["admin_until"] is None else f"until {show_time(one['admin_until'], one['now'])}"
        rows.append((one["id"][:ID_LETTERS], one["device"], *times, admin))
    print_table(rows)
