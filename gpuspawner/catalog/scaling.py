"""A catalog with shorter times, so that an hour can be watched in two minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import Catalog

T = TypeVar("T")

MOST_FACTOR = 3600
"""By a larger factor an hour is less than a second."""


def scaled(catalog: Catalog, factor: float) -> Catalog:
    """Return the catalog with every time divided by ``factor``.

    Percentages, counts, budgets of usage and hours of the day stay. So do times that a real program needs. Lifetimes
    stay whole seconds, at least one.

    Raises:
        ValueError: the factor is not from 1 to 3600.
    """
    if not 1 <= factor <= MOST_FACTOR:
        raise ValueError(f"times can be shortened by a factor from 1 to {MOST_FACTOR}, not {factor}")
    policies = {name: _shorten(one, factor).with_name(name) for name, one in catalog.policies.items()}
    return replace(
        catalog,
        policies=policies,
        templates=_shorten_each(catalog.templates, factor),
        clusters=_shorten_each(catalog.clusters, factor),
        rules=replace(catalog.rules, make_room=_shorten(catalog.rules.make_room, factor)),
        scheduler=_shorten(catalog.scheduler, factor),
        fast=factor * (catalog.fast or 1.0),
    )


def _shorten_each(section: Mapping[str, T], factor: float) -> Mapping[str, T]:
    return {name: _shorten(one, factor) for name, one in section.items()}


def _shorten(value: T, factor: float) -> T:
    """Return a section with each time in it, and in the sections below it, divided by ``factor``."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for key in keys_of(type(value)).values():
        now = getattr(value, key.field)
        if key.reader is not None and key.reader.is_time:
            changed[key.field] = _divide(now, factor)
        elif key.section is not None and not key.container:
            changed[key.field] = _shorten(now, factor)
    return replace(value, **changed)


def _divide(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_divide(one, factor) for one in value)
    if isinstance(value, int):
        return max(1, round(value / factor))
    return None if value is None else value / factor
