"""What every act is asked with: a reason, until when, which workspaces, and whether only to say what it would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.calendar.until import parse_from, parse_until
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.leases import events
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.api.base import Person
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.web.parsing import LONGEST_WHY, refused_as

MOST_AT_ONCE = 200
"""So many workspaces are acted on at once, at most. Arbitrary: as many as a list shows."""

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Act:
    """Who does it, from ``where`` in words, and the service that it is done to."""

    parts: Parts
    person: Person
    where: str

    def must_be_administrator(self) -> None:
        """Raise 403 where that is none."""
        if not self.person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) do this.")

    @property
    def now(self) -> float:
        """The present time."""
        return self.parts.clock.now()

    def line(self, user: str, event: events.Event, target: str = "") -> AuditLine:
        """Return an audit line of no workspace."""
        return AuditLine(self.now, "", user, self.person.name, event, self.where, target)

    def line_of(self, lease: Lease, event: events.Event) -> AuditLine:
        """Return an audit line of a workspace."""
        return self.parts.allocator.line(lease, self.person.name, event, self.where)

    def until(self, body: Body) -> float:
        """Return until when. Raises RequestRefused where that is not said, or none."""
        zone = self.parts.allocator.accounting.zone
        return float(refused_as("until", parse_until, body.get("until"), self.now, zone))

    def times(self, body: Body, *, ends: bool) -> tuple[float, float | None]:
        """Return from when until when; ``ends``: the end must be said.

        Raises:
            RequestRefused: one is no time, or the end is not after the beginning.
        """
        zone = self.parts.allocator.accounting.zone
        begins = refused_as("begins", parse_from, body["begins"], self.now, zone) if body.get("begins") else 0.0
        until = self.until(body) if body.get("until") or ends else None
        if until is not None and until <= begins:
            raise RequestRefused("until", quoted(body["until"]), "after it begins", "End it after it begins.")
        return float(begins), until

    async def leases(self, body: Body) -> list[Lease]:
        """Return the workspaces that are asked for, each once, in that order."""
        ids = body.get("ids")
        right = isinstance(ids, list) and 1 <= len(ids) <= MOST_AT_ONCE
        if not isinstance(ids, list) or not right or not all(isinstance(x, str) and x.isascii() for x in ids):
            raise RequestRefused("ids", quoted(ids), f"1 to {MOST_AT_ONCE} ids of workspaces", "Choose at least one.")
        found = [(name, await self.parts.book.find(name)) for name in dict.fromkeys(ids)]
        unknown = [name[:40] for name, lease in found if lease is None]
        if unknown:
            raise HTTPError(
                404, reason=f"There is no workspace with the id {', '.join(unknown[:5])}. Nothing was done."
            )
        return [lease for _, lease in found if lease is not None]


def reason_of(body: Body) -> str:
    """Return the reason, which must be given."""
    why = body.get("reason")
    if not isinstance(why, str) or not why.strip() or len(why) > LONGEST_WHY or not why.isprintable():
        limit = f"a reason of at most {LONGEST_WHY} letters"
        raise RequestRefused("reason", quoted(why), limit, "Say why: the user reads it.")
    return why.strip()


def flag_of(body: Body, name: str) -> bool:
    """Return whether something is asked for."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise RequestRefused(name, quoted(value), "true or false", "Write one of them.")
    return value
