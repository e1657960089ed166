"""A user's wishes as API and pages tell them, and what a user may do about them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuspawner.core.calendar import acts
from gpuspawner.core.calendar.ready import Do, Wish, decide, parse_days, parse_time
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.events import Event
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.service.api.granting import refused_as
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine

MOST = 5
"""Of one user. Arbitrary: each may keep GPUs from others for its claim's time."""


def wish_view(parts: Parts, one: Wish) -> dict[str, Any]:
    """Return a wish as JSON."""
    now = parts.clock.now()
    decided = decide(one, 0.0, now, parts.allocator.accounting.zone)
    return {
        "id": one.id,
        "words": one.words,
        "server": one.server,
        "options": dict(one.options),
        "next_at": decided.at,
        "paused": decided.do is Do.PAUSE,
        "missed_days": one.missed,
        "sentence": decided.sentence,
        "lease": one.lease or None,
        "now": now,
    }


async def wishes_of(parts: Parts, owner: Owner) -> list[dict[str, Any]]:
    """Return a user's, the oldest first."""
    return [wish_view(parts, one) for one in await parts.store.read(parts.store.wishes.of, owner)]


async def make(parts: Parts, key: Key, user: str, said: Mapping[str, Any], where: str) -> Wish:
    """Keep a wish of a user for a workspace of this key; ``said`` is ``at``, ``on`` and the options of a start.

    Raises:
        RequestRefused: it is no time, or no days; or the options could not be had now; or there are too many.
    """
    options = dict(said)
    minute = refused_as("at", parse_time, options.pop("at", None))
    days = refused_as("on", parse_days, options.pop("on", None))
    groups = await parts.members.now(user, key.owner)
    await parts.allocator.asking.resolve(options, user, key.owner, groups)  # what is wrong is told now
    one = Wish(uuid.uuid4().hex, user, key.server, options, minute, days, parts.clock.now())
    line = _line(parts, user, acts.ReadyWished(one.words), where, one.id)
    if not await parts.store.write(parts.store.wishes.make, key.owner, one, MOST, line):
        raise RequestRefused("ready", str(MOST + 1), f"up to {MOST}", "Remove one: gpuspawner ready lists them.", 403)
    return one


async def remove(parts: Parts, owner: Owner, user: str, name: str, where: str) -> bool:
    """Remove a user's wish by its id; whether there was one. What was asked for by it goes on."""
    line = _line(parts, user, acts.ReadyRemoved(), where, name[:40])
    return await parts.store.write(parts.store.wishes.remove, owner, name, line)


async def resume(parts: Parts, owner: Owner, user: str, name: str, where: str) -> Wish | None:
    """Have a user's wish asked for again from its next time on, by its id; None where there is none."""
    found = [one for one in await parts.store.read(parts.store.wishes.of, owner) if one.id == name]
    for one in found:
        after = replace(one, missed=0, said="")
        line = _line(parts, user, acts.ReadyResumed(one.words), where, name)
        if await parts.store.write(parts.store.wishes.change, owner, after, line):
            return after
    return None


def _line(parts: Parts, user: str, event: Event, where: str, name: str) -> AuditLine:
    return AuditLine(parts.clock.now(), "", user, user, event, where, name)
