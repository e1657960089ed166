"""KubeSpawner's profiles as a catalog: by ``gpuspawner server import``, or by ``use_profiles(c)`` for a hub."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from slugify import slugify

from gpuspawner.adoption.draft import render, write_catalog
from gpuspawner.adoption.profiles.overrides import read_override
from gpuspawner.adoption.profiles.sources import SETTING, Source, SourceError, read_source, settings_of_all
from gpuspawner.adoption.profiles.templates import LIFETIME, ImportResult, convert_profiles
from gpuspawner.cli import base
from gpuspawner.cli.errors import INVALID, InvalidError
from gpuspawner.cli.output import counted, say_lines
from gpuspawner.core.errors import CatalogError
from gpuspawner.spawner.hub.service import configured_value

NO_PROFILE = "No profile can be read. Nothing was written."


@base.command(
    "import",
    examples="""\
gpuspawner server import values.yaml                     into catalog.yaml
gpuspawner server import jupyterhub_config.py -          printed""",
)
@click.argument("source", metavar="FILE")
@click.argument("file", metavar="[CATALOG]", required=False, default="catalog.yaml")
@click.option("--force", is_flag=True, help="Replace CATALOG if it exists.")
def import_profiles(source: str, file: str, *, force: bool) -> int:
    """Make a catalog of KubeSpawner's profiles.

    FILE is the values of a Zero to JupyterHub release (singleuser.profileList), a jupyterhub_config.py with
    c.KubeSpawner.profile_list, which is read and not run, or a JSON file with the result of your function. Profiles
    with choices, also those of jupyterhub-fancy-profiles, become templates with images and sizes. Everything that
    cannot be converted is named. CATALOG is catalog.yaml by default; - prints the catalog.
    """
    try:
        found = convert_profiles(read_source(Path(source)), slugify)
        if found.profiles:
            write_catalog(file, render(found.draft), force=force)
    except SourceError as error:
        raise InvalidError(str(error)) from error
    except CatalogError as error:
        first = error.problems[0]
        raise InvalidError(
            f"The profiles of {source} do not make a good catalog, and nothing was written: {first.entry}: "
            f"{first.wrong}. Change that profile, or remove it and write its template by hand."
        ) from error
    for line in _report(found, source, file):
        say_lines(line, to_stderr=file == "-" or not found.profiles)
    return 0 if found.profiles else INVALID


def _report(found: ImportResult, source: str, file: str) -> list[str]:
    lines = [f"Not converted: {line}" for line in found.lost]
    if not found.profiles:
        return [*lines, NO_PROFILE]
    counts = f"{counted(found.profiles, 'profile')} of {source}: {counted(len(found.draft.templates), 'template')}, "
    lines = [f"{counts}{counted(len(found.draft.gpus), 'GPU kind')}.", *lines]
    lines += [f"Stays in profile_list: {line}" for line in found.stays]
    lines += [LIFETIME, *found.next_steps]
    if file != "-":
        lines.append(f"{file} is written. Next: gpuspawner server check {file}.")
    if found.draft.gpus:
        lines.append("Compare its gpus with those that the cluster has: gpuspawner server init - --kubernetes.")
    return lines


WHERE = f"c.KubeSpawner.{SETTING}"


def use_profiles(c: Any) -> dict[str, Any]:
    """Return a catalog in which each profile of ``c.KubeSpawner.profile_list`` is a template.

    The profiles keep only the settings that a catalog does not have. The hub does not start with others and a catalog.
    Everything that was lost is printed. The list is read again at each start of the hub.

    Args:
        c: The configuration object of ``jupyterhub_config.py``. Its profiles change.

    Raises:
        SystemExit: There are no profiles that can be read.
    """
    profiles = configured_value(c.KubeSpawner, SETTING, [])
    if not isinstance(profiles, (list, tuple, Mapping)) or not profiles:
        given = "a function" if callable(profiles) else repr(profiles)[:80]
        raise SystemExit(
            f"gpuspawner: use_profiles(c) needs {WHERE} as a list or a dict with profiles, not {given}. Set it above "
            "this call, or write a catalog: gpuspawner server init catalog.yaml --kubernetes"
        )
    # KubeSpawner takes the values of a dict in the order of their keys.
    listed = [profiles[key] for key in sorted(profiles)] if isinstance(profiles, Mapping) else profiles
    base = settings_of_all({name: configured_value(c.KubeSpawner, name, None) for name in c.KubeSpawner})
    found = convert_profiles(Source(tuple(listed), WHERE, base), slugify)
    lost = [f"gpuspawner: not converted: {line}" for line in found.lost]
    if not found.profiles:
        raise SystemExit("\n".join(lost))
    for line in lost:
        print(line, file=sys.stderr)  # noqa: T201 - the hub has no log yet
    kept = read_override(base).stays
    for name in base:
        c.KubeSpawner[name] = kept.get(name)
    c.KubeSpawner[SETTING] = list(found.kept)
    catalog: dict[str, Any] = yaml.safe_load(render(found.draft))
    return catalog
