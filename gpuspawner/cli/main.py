"""Arguments, and which command they call. Exit codes: 0 done, 1 invalid, 2 refused, 3 service away."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpuspawner import __version__
from gpuspawner.cli import remote, serve, simulate
from gpuspawner.cli.check import check


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
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
    simulate.add_parser(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))
