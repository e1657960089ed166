"""The page of the command line: what `gpuspawner COMMAND --help` prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import click

from gpuspawner.cli.main import gpuspawner

HEAD = """\
# Command line

The pages below are printed by `gpuspawner --help` and `gpuspawner COMMAND --help`. The package that the service offers
is enough for the commands of users and `gpuspawner admin`. The groups `server` and `kube` need the extra `hub`, and
`kube` also the extra `kubernetes`.
"""
WIDTH = 100


def commands() -> str:
    """Return the page. It does not depend on this process's variables and terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSPAWNER_", "JUPYTERHUB_"))}
    with mock.patch.dict(os.environ, kept, clear=True):
        return HEAD + "".join(_sections(gpuspawner, "gpuspawner", None))


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    level = 2 if parent is None or parent.parent is None else 3
    yield f"\n{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _sections(found, below, context)
