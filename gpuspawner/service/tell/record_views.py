"""Readings and audit lines as JSON."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.leases.stored_events import fields_of
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
