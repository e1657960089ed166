"""Presents a change of a workspace's size that waits: its size, its queue position, and when it likely starts."""

from __future__ import annotations

from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.request import Request, SizeChange
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.units import show_bytes, show_cpu
from gpuspawner.schedulers.base import Preview
from gpuspawner.service.engine.allocation.size_changes import claim_of_change
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting.presenter import outage_words, preview_start, waits
from gpuspawner.service.waiting.reasons import kept_free_words
from gpuspawner.service.workspaces import models


def size_of(parts: Parts, request: Request) -> str:
    """Return ``2 A100 80 GB, 16 cores, 128 GiB memory``."""
    cores = f"{show_cpu(request.cpu_cores)} core{'' if request.cpu_cores == 1 else 's'}"
    return f"{gpus_asked(request, parts.catalog)}, {cores}, {show_bytes(request.memory_bytes)} memory"


def present_size_change(parts: Parts, lease: Lease) -> models.SizeChange | None:
    """Return the change of size that a running workspace waits for, None without one."""
    if lease.size_change is None or lease.phase not in UP:
        return None
    return present_size(parts, lease, lease.size_change, parts.allocator.size_changes.previews.get(lease.id))


def present_size(parts: Parts, lease: Lease, change: SizeChange, found: Preview | None) -> models.SizeChange:
    """Return a change of size. ``found`` is its last preview, None before the first one."""
    return models.SizeChange(
        size=size_of(parts, change.after.request),
        asked_at=change.asked_at,
        place=None if found is None or found.slots is not None else found.place.number,
        sentence=_sentence(parts, lease, change, found),
    )


def _sentence(parts: Parts, lease: Lease, change: SizeChange, found: Preview | None) -> str:
    request, now = change.after.request, parts.clock.now()
    if found is None:
        return "We look for its GPUs."
    if found.slots is not None:
        return "It can start now."
    return waits(
        found.place,
        request,
        parts.catalog,
        parts.queue.offer(request.gpu, hold_user_of(claim_of_change(lease, change))),
        "" if found.wait_reason is None else found.wait_reason.words,
        asked_for=lease.size_change is not None,
        shown=preview_start(parts, found.place),
        kept=kept_free_words(found.kept_free, request, parts.catalog, now),
        outage=outage_words(parts, request.gpu),
    )
