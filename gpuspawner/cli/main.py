"""Arguments, and which command they call. Exit codes: 0 done, 1 invalid, 2 refused, 3 service away."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import NoReturn

from gpuspawner import __version__
from gpuspawner.cli.arguments import add_parsers
from gpuspawner.cli.errors import INVALID, CommandError
from gpuspawner.core.errors import quoted

CLOCK = "gpuspawner.cli.clock"
STDOUT = 1
INTERRUPTED = 130
"""As shells have it: 128 and the number of the signal that Ctrl-C sends."""


class MissingError(CommandError):
    """A command needs an extra of the package; says which."""


class Parser(argparse.ArgumentParser):
    """Ends by what the exit codes say: arguments that cannot be are invalid, and nothing was refused."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong with it; exit 1."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: {message}\n")


def parser_of_all() -> Parser:
    """Return the parser of every command."""
    parser = Parser(
        prog="gpuspawner",
        description="GPU workspaces for JupyterHub.",
        epilog="Exit codes: 0 done, 1 invalid, 2 refused, 3 service away.",
    )
    parser.add_argument("--version", action="version", version=f"gpuspawner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_parsers(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = parser_of_all()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        import argcomplete  # noqa: PLC0415 - no command needs it

        argcomplete.autocomplete(parser)
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors="backslashreplace")  # names are in any script, and some terminals in one
    code = _run(parsed)
    if not (getattr(parsed, "json", False) or getattr(parsed, "csv", False)):
        _name_zone()
    return code


def _run(parsed: argparse.Namespace) -> int:
    """Run the command; what ends it is told here, in one place."""
    try:
        module, _, function = parsed.run.partition(":")
        code = int(getattr(_import(module), function)(parsed) or 0)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # the interpreter's own flush at the end would tell again
        if isinstance(error, BrokenPipeError):  # `| head` has read enough
            return 0
        words = f"{error.filename}: {error.strerror}." if error.filename else f"{error}"
        print(f"gpuspawner: {words}", file=sys.stderr)
        return INVALID
    except CommandError as error:
        if clock := sys.modules.get(CLOCK):
            clock.note_time(str(error))
        print(error, file=sys.stderr)
        return error.code
    except UnicodeEncodeError as error:  # bytes of a terminal with another encoding, in what was to be sent
        print(f"gpuspawner: {quoted(error.object)} is no text in UTF-8. Write it anew.", file=sys.stderr)
        return INVALID
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _name_zone() -> None:
    """Say once which zone the times were in; a command that asked nothing has shown none, and needs no such module."""
    if (clock := sys.modules.get(CLOCK)) and (words := clock.zone_words(time.time())):
        print(words, file=sys.stderr)


def _import(module: str) -> ModuleType:
    """Import a command's module without looking for garbage meanwhile: that took a quarter of the time."""
    gc.disable()
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "gpuspawner"}:
            raise
        raise MissingError(f"{error.name} is not installed: pip install 'gpuspawner[hub]'.") from error
    finally:
        gc.freeze()
        gc.enable()
