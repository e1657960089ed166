"""What a form can say by itself, while the service does not answer: what its choices mean, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog import Catalog, resolve_all, what_is_wrong
from gpuspawner.spawner.web.live import Live


def judged(catalog: Catalog, chosen: Mapping[str, Any], user: str, otherwise: str) -> Live:
    """Return what the catalog alone says of the choices; ``otherwise`` is the sentence where nothing is wrong."""
    found = resolve_all(catalog, chosen, user)
    return Live(
        {},
        what_is_wrong(found.refused) if found.refused else otherwise,
        refused=bool(found.refused),
        wrong={one.field: one.details for one in found.refused},
        understood=found.understood,
    )
