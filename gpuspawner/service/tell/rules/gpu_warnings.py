"""What a user is told of the GPUs under a workspace: that one failed, or is taken out of service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.parts import Parts


def _unhealthy(parts: Parts, lease: Lease) -> dict[str, Any]:
    """Return what is to be told of a GPU that failed under a workspace: moving is its user's to choose."""
    gone = parts.allocator.offered_no_more(lease)
    bad, all_of_it = len(lease.unhealthy), len(lease.slots)
    few = f"{bad} of its {all_of_it} GPUs {'is' if bad == 1 else 'are'}" if all_of_it > 1 else "its GPU is"
    mend = (
        f"Save, and stop it: it can't be moved, as it would not start again. {gone} Ask anew on the form. Running "
        "kernels are lost then; files stay. Nothing is stopped unless you stop it; the administrator sees it too."
        if gone
        else "Save, then move this workspace: it stops, and starts again by itself on other GPUs, first in the queue "
        "at its old place. Running kernels are lost then; files stay. Nothing is stopped unless you move it; the "
        "administrator sees it too."
    )
    text = f"We are told that {few} unhealthy: work on it may fail. {mend}"
    return {"kind": "unhealthy", "text": text, "ends_at": None, "actions": [] if gone else ["move"]}


def closed_gpus(parts: Parts, lease: Lease) -> tuple[str, ...]:
    """Return why an administrator lets nobody new have the GPUs of a workspace, in words; none where they do."""
    known = parts.allocator.observed.fleet.by_id
    found = (known.get(slot.gpu) for slot in lease.slots)
    return tuple(dict.fromkeys(gpu.closed for gpu in found if gpu is not None and gpu.closed))


def _closed(parts: Parts, lease: Lease, why: tuple[str, ...]) -> dict[str, Any]:
    """Return what is told of a GPU that an administrator takes out of service: moving is its user's to choose."""
    can = lease.notice is None and not parts.allocator.offered_no_more(lease)
    move = (
        " Move it when it suits you: it stops, and starts again by itself elsewhere, at its old place." if can else ""
    )
    text = f"{'. '.join(why)}. This workspace goes on.{move} Running kernels are lost when it stops; files stay."
    return {"kind": "closed", "text": text, "ends_at": None, "actions": ["move"] if can else []}


def of_gpus(parts: Parts, lease: Lease) -> Iterator[dict[str, Any]]:
    """Yield what is to be told of its GPUs: that one failed, or is taken out of service."""
    if lease.unhealthy:
        yield _unhealthy(parts, lease)
    elif closed := closed_gpus(parts, lease):
        yield _closed(parts, lease, closed)
