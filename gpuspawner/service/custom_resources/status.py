"""The status of a custom resource: the state of its workspace as pages and API show it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpuspawner.backends.custom_resources.base import ENDED, LIFETIME, REFUSED, SCHEDULED, Resource
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.service.parts import Parts
from gpuspawner.service.start.schedules import Ready
from gpuspawner.service.workspaces.presenter import present_workspace

PHASES = {
    Phase.QUEUED: "Queued",
    Phase.PARKED: "Queued",
    Phase.RESERVED: "Starting",
    Phase.STARTING: "Starting",
    Phase.RUNNING: "Running",
    Phase.RECLAIMING: "Reclaiming",
    Phase.STOPPING: "Stopping",
    Phase.ENDED: ENDED,
}
PREEMPTING = "Preempting"
"""The phase of a workspace that was told to end for a request with priority."""
MOVING_SECONDS = 60.0
"""The least time between two writes of values that change all the time."""
LONGEST_MESSAGE_BYTES = 1000
"""A status repeats the message three times, and has 8 KiB at most."""
LONGEST_REASON = 60
"""Letters in the column REASON of `kubectl get`."""
MOST_GPUS = 32
LONGEST_KIND, LONGEST_NODE, LONGEST_GPU = 63, 253, 100
"""The limits of the schema. A longer status is refused as a whole. Names of nodes and GPUs differ at their ends."""
_FORM = "%Y-%m-%dT%H:%M:%SZ"


def short(text: str) -> str:
    """Return a text shortened for a status."""
    return text.encode(errors="replace")[:LONGEST_MESSAGE_BYTES].decode(errors="ignore")


def headline(text: str) -> str:
    """Return the first sentence of a message, shortened for the column REASON, with its "Allowed:"."""
    first = re.split(r"(?<=[.!?])\s(?!Allowed: )", short(text), maxsplit=1)[0]
    if len(first) <= LONGEST_REASON:
        return first
    words = first[:LONGEST_REASON].rsplit(" ", 1)[0].rstrip(" ,;:(") if " " in first[:LONGEST_REASON] else first
    return f"{words[: LONGEST_REASON - 1]}…"


def explained(why: str) -> dict[str, str]:
    """Return the keys of a status with the reason: ``reason`` for lists, ``message`` in full."""
    return {"reason": headline(why), "message": short(why)}


def written_at(at: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(at, timezone.utc).strftime(_FORM)


def is_due(parts: Parts, resource: Resource, lease: Lease) -> bool:
    """Return whether a status must be written: a steady value changed, or the others are old."""
    told = resource.status
    if any(told.get(key) != value for key, value in steady(parts, resource, lease).items()):
        return True
    return is_old(parts, resource)


def is_old(parts: Parts, resource: Resource) -> bool:
    """Return whether the values that change all the time are old."""
    told = resource.status
    try:
        since = datetime.strptime(str(told.get("measuredAt")), _FORM).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return True
    return not 0 <= parts.clock.now() - since < MOVING_SECONDS


def phase_of(lease: Lease) -> str:
    """Return the phase of a workspace as its resource has it."""
    return PREEMPTING if lease.phase in UP and lease.notice and lease.notice.preemption else PHASES[lease.phase]


def steady(parts: Parts, resource: Resource, lease: Lease) -> dict[str, Any]:
    """Return the values that are written as soon as they change."""
    found = {
        "observedGeneration": resource.generation,
        "phase": phase_of(lease),
        "lease": lease.id,
        "allocation": _allocation(parts, lease),
        "endsAt": None if lease.deadline_at is None else written_at(lease.deadline_at),
    }
    return {key: value or None for key, value in found.items()}


def _allocation(parts: Parts, lease: Lease) -> dict[str, Any]:
    kind = lease.kind
    if not lease.slots or kind is None:
        return {}
    gpus = [slot.gpu for slot in lease.slots]
    return {
        "summary": f"{len(gpus)} x {kind[:LONGEST_KIND]}",
        "kind": kind[:LONGEST_KIND],
        "count": len(gpus),
        "node": parts.scheduler.fleet.node_of(gpus[0])[-LONGEST_NODE:],
        "gpus": [gpu[-LONGEST_GPU:] for gpu in gpus[:MOST_GPUS]],
    }


def status_of(parts: Parts, resource: Resource, lease: Lease) -> dict[str, Any]:
    """Return the whole status of a request with a workspace, also after its end."""
    shown, now = present_workspace(parts, lease), parts.clock.now()
    queue, warning, end, idle = shown.queue, shown.warning, shown.end, shown.idle
    why = end.why if end else queue.sentence if queue else warning.text if warning else shown.words
    used = [one.utilization_percent for one in shown.gpus if one.utilization_percent is not None]
    told = {
        **steady(parts, resource, lease),
        **explained(why),
        "page": f"{parts.page_url}/workspaces/{lease.id}" if parts.page_url else None,
        "position": queue.place if queue else None,
        "utilizationPercent": round(max(used)) if used else None,
        "idleSeconds": round(idle.idle_seconds) if idle else None,
        "measuredAt": written_at(now),
    }
    conditions = [
        condition(resource, "Accepted", now, so=True, reason="Asked", message="A workspace was asked for."),
        condition(resource, "Ready", now, so=lease.phase in UP, reason=phase_of(lease), message=why),
        *([dict(said)] if (said := resource.condition(LIFETIME)) else []),
    ]
    return {key: value for key, value in {**told, "conditions": conditions}.items() if value is not None}


def status_without(
    resource: Resource, phase: str, why: str, conditions: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """Return a status that no present workspace decides. ``more`` are further keys. Keys with None are left out."""
    told = {"observedGeneration": resource.generation, "phase": phase, **explained(why), **more}
    return {key: value for key, value in {**told, "conditions": conditions}.items() if value is not None}


def scheduled(resource: Resource, one: Ready, now: float) -> dict[str, Any]:
    """Return the status of a scheduled request without a workspace now."""
    ready_at = None if one.next_at is None else written_at(one.next_at)
    conditions = [
        condition(resource, "Accepted", now, so=True, reason=SCHEDULED, message=f"Ready {one.words}."),
        condition(resource, "Ready", now, so=False, reason=SCHEDULED, message=one.sentence),
    ]
    return status_without(resource, SCHEDULED, one.sentence, conditions, readyAt=ready_at, measuredAt=written_at(now))


def refused(resource: Resource, why: str, now: float, phase: str = REFUSED) -> dict[str, Any]:
    """Return the status of a request that is refused, or waits until it is accepted."""
    accepted = condition(resource, "Accepted", now, so=False, reason=phase, message=why)
    return status_without(resource, phase, why, [accepted])


def forgotten(resource: Resource, now: float, why: str = "It has ended, and is not kept any more.") -> dict[str, Any]:
    """Return the status of a request whose workspace ended so long ago that its lease is deleted."""
    ready = condition(resource, "Ready", now, so=False, reason=ENDED, message=why)
    return status_without(resource, ENDED, why, [ready], lease=resource.told_lease)


def condition(resource: Resource, name: str, now: float, *, so: bool, reason: str, message: str) -> dict[str, Any]:
    """Return a condition. Its transition time stays if its status is the same as before."""
    before: Mapping[str, Any] = resource.condition(name)
    status = "True" if so else "False"
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": name,
        "status": status,
        "observedGeneration": resource.generation,
        "lastTransitionTime": since or written_at(now),
        "reason": reason,
        "message": short(message),
    }
