"""The form's tick boxes for GPUs that may be given in place of the one asked for: of every template and kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog import Catalog, Template, kinds_instead
from gpuspawner.catalog.prices import prices
from gpuspawner.spawner.web.live import Live


def offered(catalog: Catalog, template: Template) -> dict[str, dict[str, tuple[int, int]]]:
    """Return by kind what may be given in its place, each with the least and the most GPUs for which it may."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for kind, (least, most) in template.gpus.items():
        for count in range(least, most + 1):
            for other in kinds_instead(catalog, template, kind, count):
                first, _ = found.setdefault(kind, {}).get(other, (count, count))
                found[kind][other] = (first, count)
    return found


def rows(catalog: Catalog, template: Template, chosen: Mapping[str, Any], live: Live | None) -> list[dict[str, Any]]:
    """Return each pair of kinds that some template offers: what is asked, what else is taken, and what that brings.

    ``ticked`` is one that is asked for as the form is filled in, where its user consented, now or the last time.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for one in catalog.templates.values():
        for kind, others in offered(catalog, one).items():
            for other in others:
                found.setdefault((kind, other), []).append(one.title)
    asked = chosen.get("gpu") or template.default.gpu
    wanted, now = consented(template, chosen, live), live.substitutes if live else {}
    return [
        {
            "asked": kind,
            "given": other,
            "title": catalog.gpus[other].title,
            "instead_of": catalog.gpus[kind].title,
            "templates": ", ".join(titles),
            "words": (now.get(other, "") if kind == asked else "") or prices(catalog, kind, other),
            "ticked": kind == asked and other in wanted,
        }
        for (kind, other), titles in found.items()
    ]


def consented(template: Template, chosen: Mapping[str, Any], live: Live | None) -> set[str]:
    """Return what else is taken of a template: as the form is filled in, else as its user said the last time."""
    said = chosen.get("substitutes")
    if said is None:
        said = (live.consents if live else {}).get(template.name, ())
    return ticked(said)


def ticked(said: object) -> set[str]:
    """Return the names in a text with commas, as a refused form has it, or in a list."""
    names = said.split(",") if isinstance(said, str) else said
    return {name.strip() for name in names if isinstance(name, str)} if isinstance(names, (list, tuple)) else set()
