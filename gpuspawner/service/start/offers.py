"""Presents the kinds of GPU that a user could get now."""

from __future__ import annotations

from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.parts import Parts
from gpuspawner.service.start import models


def present_offer(offer: Offer, state: Parts) -> models.Offer:
    """Return an offer. Null is unknown, and never 0 for that."""
    kind = state.catalog.gpus[offer.kind]
    return models.Offer(
        kind=offer.kind,
        title=kind.title,
        memory_bytes=kind.memory_bytes,
        memory_enforced=bool(kind.own_memory_bytes),
        price_per_hour=kind.price_per_hour,
        spot=kind.spot,
        free=offer.free,
        total=offer.total,
        waiting=offer.waiting,
        simulated=offer.simulated,
        note=offer.note,
        measured=measurement_note(counting_resource(kind, state.scheduler.fleet)),
    )
