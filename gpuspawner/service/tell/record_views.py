"""Readings, audit lines and offers as JSON."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.core.leases.stored_events import fields_of
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine, ReadingRow


def reading_view(row: ReadingRow) -> dict[str, Any]:
    """Return a stored reading as JSON."""
    return {
        "at": row.at,
        "seconds": row.seconds,
        "gpu": row.gpu,
        "utilization_percent": row.utilization_percent,
        "memory_used_bytes": row.memory_used_bytes,
        "memory_total_bytes": row.memory_total_bytes,
        "kind": row.kind,
        "because": row.because,
        "cpu_cores": row.cpu_cores,
        "soft": row.soft,
    }


def audit_view(line: AuditLine) -> dict[str, Any]:
    """Return an audit line as JSON."""
    event = line.event
    told = {"at": line.at, "user": line.user, "actor": line.actor, "action": event.action, "why": event.why}
    return {**told, "fields": fields_of(event)}


def offer_view(offer: Offer, parts: Parts) -> dict[str, Any]:
    """Return an offer as JSON: null is unknown, never 0 for that."""
    kind = parts.catalog.gpus[offer.kind]
    return {
        "kind": offer.kind,
        "title": kind.title,
        "memory_bytes": kind.memory_bytes,
        "memory_enforced": bool(kind.own_memory_bytes),
        "price_per_hour": kind.price_per_hour,
        "spot": kind.spot,
        "free": offer.free,
        "total": offer.total,
        "waiting": offer.waiting,
        "simulated": offer.simulated,
        "note": offer.note,
        "measured": measurement_note(counting_resource(kind, parts.scheduler.fleet)),
    }
