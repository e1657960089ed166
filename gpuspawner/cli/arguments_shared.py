"""Arguments that many commands take alike."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.signing.credentials import default_url

NAME = "its server's name as list shows it, - for none, or the beginning of its id"


def add_url(parser: Any) -> None:
    """Add ``--url``."""
    parser.add_argument(
        "--url",
        default=default_url(),
        help="the service behind the hub (default: $GPUSPAWNER_URL, else where you signed in last, else %(default)s)",
    )


def options(parser: Any) -> None:
    """Add what every command takes that asks the service: ``--url`` and ``--json``."""
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


EXAMPLES = "examples:\n"


class _Help(argparse.HelpFormatter):
    """Wraps what is told, and leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)


def add_command(commands: Any, name: str, words: str, examples: str, *, description: str | None = None) -> Any:
    """Add a command, with lines of examples below its help, and return its parser."""
    return commands.add_parser(
        name, help=words, description=description, epilog=EXAMPLES + examples, formatter_class=_Help
    )


def add_name(parser: Any, *, needed: bool = True) -> None:
    """Add ``NAME``, a workspace; in shells its beginning is completed."""
    how: dict[str, Any] = {} if needed else {"nargs": "?", "default": ""}
    parser.add_argument("name", metavar="NAME", help=NAME, **how).completer = _names


def _names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names of one's workspaces; none where they can't be asked for."""
    from gpuspawner.cli.asking import ask  # noqa: PLC0415 - a command that is not completed needs none of it
    from gpuspawner.cli.errors import CommandError  # noqa: PLC0415

    try:
        return [one["server"] or "-" for one in ask(parsed_args, "/workspaces")["workspaces"]]
    except CommandError:
        return []
