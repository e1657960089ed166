"""What a user is told where Linux killed a program of theirs for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.memory_kills import is_recent
from gpuspawner.core.units import show_bytes, show_time


def of_memory(lease: Lease, now: float) -> Iterator[dict[str, Any]]:
    """Yield that a program was killed, for an hour after the last one was."""
    if not is_recent(lease, now) or lease.memory_killed_at is None:
        return
    size, at = show_bytes(lease.request.memory_bytes), show_time(lease.memory_killed_at, now)
    text = (
        f"Your workspace used all of its {size} of memory by {at}, and Linux killed a program in it, for example a "
        "notebook's kernel. The workspace goes on, and files stay. Restart the program and use less memory, or start a "
        "workspace with more."
    )
    yield {"kind": "memory", "text": text, "ends_at": None, "actions": []}
