"""What ``gpuspawner login``, ``logout`` and ``tokens`` take."""

from __future__ import annotations

from typing import Any

from gpuspawner.cli.arguments_shared import add_command, options

LOGIN = """\
  gpuspawner login --url https://hub.example.org/services/gpu
  gpuspawner login --admin             for 12 hours with an administrator's rights, too
"""


def add_signing(commands: Any) -> None:
    """Add the commands."""
    begin = add_command(
        commands,
        "login",
        "sign in: shows a code, which you type on a page of the hub",
        LOGIN,
        description=(
            "Shows an address and a code. Open it where you are signed in to the hub, type the code, and "
            "press Allow. The token that this machine gets is for this service alone, for 30 days. $GPUSPAWNER_TOKEN, "
            "where it is set, goes before it."
        ),
    )
    begin.add_argument("--admin", action="store_true", help="with an administrator's rights, for 12 hours")
    begin.add_argument("--no-browser", action="store_true", help="only print the address")
    begin.set_defaults(run="gpuspawner.cli.signing.commands:login")
    end = commands.add_parser("logout", help="end this machine's token")
    end.set_defaults(run="gpuspawner.cli.signing.commands:logout")
    listing = add_command(
        commands, "tokens", "list the machines that may act for you, or end one", "  gpuspawner tokens --revoke 3f2a\n"
    )
    listing.add_argument("--revoke", metavar="ID", help="end this one, by its id or the beginning of it")
    listing.set_defaults(run="gpuspawner.cli.signing.commands:tokens")
    for parser in (begin, end, listing):
        options(parser)
