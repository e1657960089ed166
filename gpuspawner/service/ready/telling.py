"""A user's wishes as API and pages tell them, and what a user may do about them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpuspawner.core.calendar import acts
from gpuspawner.core.calendar.ready import Do, Wish, parse_days, parse_time
from gpuspawner.core.calendar.until import DAYS
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.leases.events import Event
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.service.api.granting import refused_as
from gpuspawner.service.parts import Parts
from gpuspawner.service.ready.estimates import decided, estimate
from gpuspawner.service.store import AuditLine

MOST = 5
"""Of one user. Arbitrary: each may keep GPUs from others for its claim's time."""


async def wish_view(parts: Parts, owner: Owner, one: Wish) -> dict[str, Any]:
    """Return a user's wish as JSON."""
    found = await estimate(parts, owner, one)
    told = decided(parts, one, found.seconds)
    is_refused = found.refused and told.do is not Do.PAUSE
    return {
        "id": one.id,
        "words": one.words,
        "server": one.server,
        "options": dict(one.options),
        "at": f"{one.minute // 60:02}:{one.minute % 60:02}",
        "days": [DAYS[day] for day in one.days],
        "next_at": told.at,
        "asked_for_at": told.begins,
        "paused": told.do is Do.PAUSE,
        "missed_days": one.missed,
        "sentence": told.sentence + (f" As things are it would be refused: {found.refused}" if is_refused else ""),
        "lease": one.lease or None,
        "now": parts.clock.now(),
    }


async def wishes_of(parts: Parts, owner: Owner) -> list[dict[str, Any]]:
    """Return a user's, the oldest first."""
    return [await wish_view(parts, owner, one) for one in await parts.store.read(parts.store.schedules.of, owner)]


async def make(parts: Parts, key: Key, user: str, said: Mapping[str, Any], where: str, name: str = "") -> Wish:
    """Keep a wish of a user for a workspace of this key; ``said`` is ``at``, ``on`` and the options of a start.

    ``name`` is its id, where whoever asks has one for it.

    Raises:
        RequestRefused: it is no time, or no days; or the options could not be had now; or there are too many.
    """
    options = dict(said)
    minute = refused_as("at", parse_time, options.pop("at", None))
    days = refused_as("on", parse_days, options.pop("on", None))
    groups = await parts.members.now(user, key.owner)
    await parts.allocator.asking.resolve(options, user, key.owner, groups)  # what is wrong is told now
    one = Wish(name or uuid.uuid4().hex, user, key.server, options, minute, days, parts.clock.now())
    line = _line(parts, user, acts.ReadyWished(one.words), where, one.id)
    make_once = partial(parts.store.schedules.add, once=not name)
    made = await parts.store.write(make_once, key.owner, one, MOST, line)
    if made is None:
        raise RequestRefused(
            "ready", str(MOST + 1), f"up to {MOST}", "Remove one: gpuspawner schedule lists them.", 403
        )
    return made


async def remove(parts: Parts, owner: Owner, user: str, name: str, where: str) -> bool:
    """Remove a user's wish by its id; whether there was one. What was asked for by it goes on."""
    line = _line(parts, user, acts.ReadyRemoved(), where, name[:40])
    return await parts.store.write(parts.store.schedules.delete, owner, name, line)


async def change(parts: Parts, owner: Owner, user: str, name: str, said: Mapping[str, Any], where: str) -> Wish | None:
    """Change a user's wish by its id; None where there is none. What was asked for by it goes on.

    ``said`` may have ``paused``, and ``at`` and ``on`` as for :func:`make`. ``paused`` false has it asked for again
    from its next time on, also where nobody came for days.

    Raises:
        RequestRefused: it is no time, or no days; ``paused`` is neither true nor false; or nothing is said.
    """
    for one in [one for one in await parts.store.read(parts.store.schedules.of, owner) if one.id == name]:
        _, event = _changed(one, said)
        line = _line(parts, user, event, where, name)
        return await parts.store.write(
            parts.store.schedules.change, owner, name, lambda now: _changed(now, said)[0], line
        )
    return None


def _changed(one: Wish, said: Mapping[str, Any]) -> tuple[Wish, Event]:
    paused = said.get("paused", one.paused)
    if not isinstance(paused, bool) or not said:
        raise RequestRefused("paused", quoted(paused) if said else "nothing", "true or false", "Or send at and on.")
    minute = refused_as("at", parse_time, said["at"]) if "at" in said else one.minute
    days = refused_as("on", parse_days, said["on"]) if "on" in said else one.days
    after = replace(one, paused=paused, minute=minute, days=days)
    if "paused" not in said:
        return after, acts.ReadyWished(after.words)
    if paused:
        return after, acts.ReadyHalted(after.words)
    return replace(after, missed=0, said=""), acts.ReadyResumed(after.words)


def _line(parts: Parts, user: str, event: Event, where: str, name: str) -> AuditLine:
    return AuditLine(parts.clock.now(), "", user, user, event, where, name)
