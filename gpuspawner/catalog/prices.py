"""Prices of GPUs: those that are valid on a day, and in words with the catalog's currency."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from gpuspawner.catalog.models import Catalog
from gpuspawner.core.units import show_money


def with_prices_of(catalog: Catalog, day: date) -> Catalog:
    """Return a catalog with the prices of a day, or the catalog itself if it has them."""
    gpus = {name: replace(kind, price_per_hour=kind.price_on(day)) for name, kind in catalog.gpus.items()}
    return catalog if gpus == catalog.gpus else replace(catalog, gpus=gpus)


def price_words(catalog: Catalog, kind: str) -> str:
    """Return the price of one GPU, ``CHF 2.10 per hour``, or "" for a kind without a price."""
    found = catalog.gpus.get(kind)
    price = None if found is None else found.price_per_hour
    return "" if price is None else f"{show_money(price, catalog.rules.currency)} per hour"


def prices(catalog: Catalog, asked: str, given: str) -> str:
    """Return the price of one kind instead of the price of another, or "" if both are equal or not known."""
    before, after = (catalog.gpus[kind].price_per_hour if kind in catalog.gpus else None for kind in (asked, given))
    if after is None or before == after:
        return ""
    if before is None:
        return price_words(catalog, given)
    return f"{show_money(after, catalog.rules.currency)} instead of {before:.2f} per hour"
