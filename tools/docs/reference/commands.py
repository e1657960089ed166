"""The command line, from its parser: what `gpuspawner COMMAND --help` prints."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from unittest import mock

from gpuspawner.cli.main import parser_of_all

HEAD = """\
# Command line

What `gpuspawner --help` and `gpuspawner COMMAND --help` print. The package that the service offers is enough for those
that ask a hub's service. The others need the extra `hub`.
"""
COLUMNS = "100"


def commands() -> str:
    """Return the page: the same whichever variables and terminal this process has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSPAWNER_")}
    with mock.patch.dict(os.environ, {**kept, "COLUMNS": COLUMNS}, clear=True):
        return HEAD + "".join(_told(parser_of_all(), 2))


def _told(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
    for one in below(parser).values():
        yield from _told(one, min(3, level + 1) if level > 2 else level)  # noqa: PLR2004 - the commands' own headings


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, by name."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - no other way
    return dict(groups[0].choices) if groups else {}
