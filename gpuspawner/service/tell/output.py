"""Who may read what the server of a failed workspace wrote last: its user; administrators once it is shared."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.api.base import Person
from gpuspawner.service.parts import Parts


async def output_view(parts: Parts, lease: Lease, person: Person) -> dict[str, Any]:
    """Return it as JSON: ``there`` says whether any is kept, ``text`` is null where it is not for this person."""
    row = await parts.store.read(parts.store.outputs.get, lease.id, parts.clock.now())
    if row is None:
        return {"there": False, "text": None, "shared": False}
    return {"there": True, "text": row.text if row.shared or person.owns(lease) else None, "shared": row.shared}
