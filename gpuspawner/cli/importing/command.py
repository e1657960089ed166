"""``gpuspawner server import``: KubeSpawner's profiles, also as fancy-profiles has them, as a catalog."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slugify import slugify

from gpuspawner.cli.adopting.draft import render
from gpuspawner.cli.adopting.write import Refused, write_catalog
from gpuspawner.cli.errors import INVALID, REFUSED
from gpuspawner.cli.importing.profiles import LIFETIME, Imported, imported
from gpuspawner.cli.importing.sources import SourceError, read_source
from gpuspawner.core.errors import CatalogError

NO_PROFILE = "No profile of it can be read: nothing was written."


def import_profiles(arguments: argparse.Namespace) -> int:
    """Write a catalog of profiles; name everything that it could not turn over, one line each."""
    try:
        found = imported(read_source(Path(arguments.source)), slugify)
        if found.profiles:
            write_catalog(arguments.file, render(found.draft), force=arguments.force)
    except SourceError as error:
        print(error, file=sys.stderr)
        return INVALID
    except CatalogError as error:
        first = error.problems[0]
        print(
            f"What would be made of {arguments.source} is no good catalog, and nothing was written: {first.entry}: "
            f"{first.wrong}. Change that profile, or take it out and write its template by hand.",
            file=sys.stderr,
        )
        return INVALID
    except Refused as error:
        print(error, file=sys.stderr)
        return REFUSED
    for line in _report(found, arguments.source, arguments.file):
        print(line, file=sys.stderr if arguments.file == "-" or not found.profiles else sys.stdout)
    return 0 if found.profiles else INVALID


def _report(found: Imported, source: str, file: str) -> list[str]:
    lines = [f"Not turned over: {line}" for line in found.lost]
    if not found.profiles:
        return [*lines, NO_PROFILE]
    counts = f"{_count(found.profiles, 'profile')} of {source}: {_count(len(found.draft.templates), 'template')}, "
    lines = [f"{counts}{_count(len(found.draft.gpus), 'GPU kind')}.", *lines]
    lines += [f"Stays in profile_list: {line}" for line in found.stays]
    lines += [LIFETIME, *found.next_steps]
    if file != "-":
        lines.append(f"{file} is written. Next: gpuspawner server check {file}.")
    if found.draft.gpus:
        lines.append("Compare its gpus with those that the cluster has: gpuspawner server init - --kubernetes.")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
