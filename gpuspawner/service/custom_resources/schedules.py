"""Scheduled requests by custom resources. Each is a schedule of its user."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.catalog import all_words
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.core.schedules import parse_time_of_day, parse_weekdays
from gpuspawner.service.custom_resources import status
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.server_names import read_server
from gpuspawner.service.start.schedules import add_schedule, delete_schedule, present_schedule
from gpuspawner.service.web.parsing import refused_as

TAKEN_BACK = "It is asked for no more: that was removed on a page or by a command. Delete this, and apply a new one."


async def kept(parts: Parts, resource: Resource, where: str) -> dict[str, Any]:
    """Create or change the schedule, and return the status."""
    (user, server), now, name = resource.place, parts.clock.now(), resource.own_lease
    created = await parts.hub.created(user)
    if created is None:
        return status.refused(resource, f"The hub has no user {user}. Have them log in once.", now)
    owner = Owner(parts.hub_id, created)
    found = [one for one in await parts.store.read(parts.store.schedules.of, owner) if one.id == name]
    if not found and not resource.is_new:
        return status.forgotten(resource, now, TAKEN_BACK)
    options = resource.options
    if found and found[0].options != options:  # its lifetime was edited
        changed = partial(replace, options=options)
        after = await parts.store.write(parts.store.schedules.change, owner, name, changed)
        if after is None:
            return status.forgotten(resource, now, TAKEN_BACK)
        found = [after]
    if not found:
        try:
            minute = refused_as("at", parse_time_of_day, resource.ready_at.get("time"))
            days = refused_as("on", parse_weekdays, resource.ready_at.get("days", "weekdays"))
            key = Key(*owner, await read_server(parts, user, server))
            found = [await add_schedule(parts, key, user, options, (minute, days), where, name)]
        except RequestRefused as error:
            return status.refused(resource, all_words(error), now)
    return status.scheduled(resource, await present_schedule(parts, owner, found[0]), now)


async def forget(parts: Parts, resource: Resource, where: str) -> None:
    """Delete the schedule."""
    user = resource.place[0]
    created = await parts.hub.created(user)
    if created is not None:
        await delete_schedule(parts, Owner(parts.hub_id, created), user, resource.own_lease, where)
