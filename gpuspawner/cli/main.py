"""Arguments, and which command they call. Exit codes: 0 done, 1 invalid, 2 refused, 3 service away."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from gpuspawner import __version__
from gpuspawner.cli import remote, serve, simulate, ssh
from gpuspawner.cli.check import check

INTERRUPTED = 130
"""As shells have it: 128 and the number of the signal that Ctrl-C sends."""


class Parser(argparse.ArgumentParser):
    """Ends by what the exit codes say: arguments that cannot be are invalid, and nothing was refused."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong with it; exit 1."""
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = Parser(
        prog="gpuspawner",
        description="GPU workspaces for JupyterHub.",
        epilog="Exit codes: 0 done, 1 invalid, 2 refused, 3 service away.",
    )
    parser.add_argument("--version", action="version", version=f"gpuspawner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checking = commands.add_parser("check", help="check a catalog: every error at once, with file, line and remedy")
    checking.add_argument("file", metavar="FILE", help="the catalog, YAML")
    checking.add_argument("--json", action="store_true", help="print the problems as JSON")
    checking.set_defaults(run=check)
    serve.add_parser(commands)
    remote.add_parsers(commands)
    ssh.add_parser(commands)
    simulate.add_parser(commands)
    parsed = parser.parse_args(arguments)
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough; the interpreter's own flush at the end would tell again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
