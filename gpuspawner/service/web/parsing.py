"""Checks for the acts that still read a posted form by themselves. They go as the inputs become models."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.administering.acts import ActRefused
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.release import storable
from gpuspawner.core.units import BadValue
from gpuspawner.service.parts import Parts

LONGEST_WHY, LONGEST_REFUSAL = 500, 1000


def refusal(act: str, error: Conflict | RequestRefused) -> ActRefused:
    """Return the audit event of an administrator's act that was refused."""
    return ActRefused(storable(f"{act}: {error}")[:LONGEST_REFUSAL])


async def owner_of(parts: Parts, user: str) -> Owner:
    """Return the user of that name. Raises RequestRefused if the hub has no such user."""
    created = await parts.hub.created(user) if user.isprintable() else None  # no half of a surrogate pair
    if created is None:
        raise RequestRefused("user", quoted(user), "users of the hub", "Name one as the hub does.")
    return Owner(parts.hub_id, created)


def refused_as(field: str, parse: Any, value: object, *arguments: Any) -> Any:
    """Return the parsed value. Raises RequestRefused with the name of the field for a wrong one."""
    try:
        return parse(value, *arguments)
    except BadValue as error:
        right = error.right.removeprefix("write ")
        raise RequestRefused(field, quoted(value), right, f"{error.wrong[:1].upper()}{error.wrong[1:]}.") from error
