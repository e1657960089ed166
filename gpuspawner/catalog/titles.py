"""Kinds of GPU and requests in the words that people read."""

from __future__ import annotations

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.prices import prices
from gpuspawner.core.leases.request import Request


def gpu_title(name: str, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return a kind of GPU as people read it: ``simulated A100 80 GB``; its name where the catalog has it no more."""
    kind = catalog.gpus.get(name)
    return ("simulated " if simulated else "") + (kind.title if kind else name)


def gpus_asked(request: Request, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return ``2 A100 80 GB``, ``2 simulated A100 80 GB`` or ``no GPU``."""
    if request.gpu is None:
        return "no GPU"
    return f"{request.count} {gpu_title(request.gpu, catalog, simulated=simulated)}"


def given_instead(catalog: Catalog, asked: str, given: str, *, simulated: bool = False) -> str:
    """Return that another kind was given than was asked for, to be read after what was given."""
    price = prices(catalog, asked, given)
    cost = f": {price}" if price else ""
    return f" instead of {gpu_title(asked, catalog, simulated=simulated)}, as you allowed{cost}"
