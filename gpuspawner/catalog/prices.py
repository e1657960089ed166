"""What one kind of GPU costs instead of another, in words."""

from __future__ import annotations

from gpuspawner.catalog.values import Catalog


def prices(catalog: Catalog, asked: str, given: str) -> str:
    """Return what one costs instead of the other; "" where they cost the same, or nothing is known of it."""
    before, after = (catalog.gpus[kind].price_per_hour if kind in catalog.gpus else None for kind in (asked, given))
    if after is None or before == after:
        return ""
    return f"{after:.2f} an hour" if before is None else f"{after:.2f} instead of {before:.2f} an hour"
