"""What people may do to a workspace: one path for API and pages."""

from __future__ import annotations

from dataclasses import replace

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict
from gpuspawner.core.lease import WAITING, Lease, Phase, Reason
from gpuspawner.service.api.base import Person
from gpuspawner.service.parts import Parts


async def act(parts: Parts, person: Person, lease: Lease, action: str, where: str) -> None:
    """Carry out ``keep``, ``extend``, ``stop`` or ``seen`` on a lease that the person may act on.

    ``where`` the person did it, in words: a stop tells it.

    Raises:
        Conflict: it can't be done now; the message says why.
        HTTPError: 403 for a stop by a workspace's own token.
    """
    if action == "seen":
        if not lease.live and person.owns(lease):
            parts.book.save(replace(lease, seen_by_user=True))
    elif not lease.live:
        raise Conflict("This workspace has ended. Start it again from the form; its files are kept.")
    elif action == "keep":
        parts.lifecycle.keep(lease, person.name)
    elif action == "extend":
        parts.lifecycle.extend(lease, person.name)
    else:
        await _stop(parts, person, lease, where)


async def _stop(parts: Parts, person: Person, lease: Lease, where: str) -> None:
    if person.lease is not None:
        raise HTTPError(403, reason="A workspace's own token may not stop it: use the hub or the workspace page.")
    if lease.phase is Phase.STOPPING:
        return
    cancelled = lease.phase in WAITING
    reason = Reason.CANCELLED if cancelled else Reason.STOPPED
    words = "The request was withdrawn." if cancelled else f"It was stopped by {person.name}, from {where}."
    parts.reclaimer.mark(lease.id, reason, person.name, words)
    await parts.reclaimer.drive(lease.id)
