"""Which entries differ between two catalogs, in words for the audit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from gpuspawner.catalog.models import Catalog

NAMES_SHOWN = 8
"""So many names are told of one section. Arbitrary: what a line of the audit holds."""


def changes_words(before: Catalog, after: Catalog) -> str:
    """Return what differs: ``policies: changed default; templates: added pytorch, removed old``."""
    return "; ".join(_sections(before, after)) or "nothing that is judged by"


def _sections(before: Catalog, after: Catalog) -> Iterator[str]:
    for field in fields(Catalog):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differing = {
                "added": [name for name in new if name not in old],
                "changed": [name for name in new if name in old and new[name] != old[name]],
                "removed": [name for name in old if name not in new],
            }
            yield f"{field.name}: " + ", ".join(f"{how} {_named(names)}" for how, names in differing.items() if names)
        else:
            yield f"{field.name} changed"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:NAMES_SHOWN]) + more
