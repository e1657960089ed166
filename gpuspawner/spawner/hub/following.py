"""The hub's own view of the catalog: what its form offers follows the file, without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.file import LOOK_SECONDS, CatalogFile, InForce
from gpuspawner.core.errors import CatalogError, Problem


def following(in_force: InForce) -> Callable[[], Catalog]:
    """Return what gives the catalog in force, after a look at its file where the last one was a while ago.

    The hub asks wherever it needs the catalog: a loop of its own would begin before the hub's does.
    """
    looked_at = time.monotonic()

    def current() -> Catalog:
        nonlocal looked_at
        if isinstance(in_force, CatalogFile) and time.monotonic() - looked_at >= LOOK_SECONDS:
            looked_at = time.monotonic()
            in_force.look(time.time())
        return in_force.catalog

    return current


def refuse(file: str, sentences: Iterable[str]) -> None:
    """Raise CatalogError where there is a sentence: what contradicts the hub's configuration, and the remedy."""
    problems = []
    for sentence in sentences:
        wrong, _, right = sentence.rpartition(". ")
        problems.append(Problem(file, None, "catalog", wrong or sentence.rstrip("."), right))
    if problems:
        raise CatalogError(tuple(problems))
