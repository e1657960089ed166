"""What a form can say by itself, while the service does not answer: what its choices mean, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog import Catalog, resolve, tried, understood, what_is_wrong
from gpuspawner.core.leases.request import Request
from gpuspawner.spawner.web.live import Live


def judged(catalog: Catalog, chosen: Mapping[str, Any], user: str, otherwise: str) -> Live:
    """Return what the catalog alone says of the choices; ``otherwise`` is the sentence where nothing is wrong."""

    def resolved(options: Mapping[str, Any]) -> Request:
        return resolve(catalog, options, user)

    left, refused = tried(resolved, chosen)
    return Live(
        {},
        what_is_wrong(refused) if refused else otherwise,
        refused=bool(refused),
        wrong={one.field: one.beside for one in refused},
        understood=understood(resolved(left), left) if left else {},
    )
