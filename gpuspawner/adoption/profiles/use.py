"""``use_profiles(c)``: the catalog of a hub that has only a ``profile_list``, for its configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import yaml
from slugify import slugify

from gpuspawner.adoption.draft import render
from gpuspawner.adoption.profiles.overrides import read_override
from gpuspawner.adoption.profiles.sources import SETTING, Source, settings_of_all
from gpuspawner.adoption.profiles.templates import imported
from gpuspawner.spawner.hub.service import written_in

WHERE = f"c.KubeSpawner.{SETTING}"


def use_profiles(c: Any) -> dict[str, Any]:
    """Return a catalog in which each profile of ``c.KubeSpawner.profile_list`` is a template.

    The profiles keep only the settings that a catalog does not have, because the hub refuses others beside a lease.
    Everything that was lost is printed. The list is read again at each start of the hub.

    Args:
        c: The configuration object of ``jupyterhub_config.py``. Its profiles change.

    Raises:
        SystemExit: There are no profiles that can be read.
    """
    profiles = written_in(c.KubeSpawner, SETTING, [])
    if not isinstance(profiles, (list, tuple, Mapping)) or not profiles:
        given = "a function" if callable(profiles) else repr(profiles)[:80]
        raise SystemExit(
            f"gpuspawner: use_profiles(c) needs {WHERE} as a list or a dict with profiles, not {given}. Set it above "
            "this call, or write a catalog: gpuspawner server init catalog.yaml --kubernetes"
        )
    # KubeSpawner takes the values of a dict in the order of their keys.
    listed = [profiles[key] for key in sorted(profiles)] if isinstance(profiles, Mapping) else profiles
    base = settings_of_all({name: written_in(c.KubeSpawner, name, None) for name in c.KubeSpawner})
    found = imported(Source(tuple(listed), WHERE, base), slugify)
    lost = [f"gpuspawner: not turned over: {line}" for line in found.lost]
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
