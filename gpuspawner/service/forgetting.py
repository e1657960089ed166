"""Deletes what was stored for long enough."""

from __future__ import annotations

import asyncio
from functools import partial

from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.api.rest.keys import KEPT_SECONDS
from gpuspawner.service.clock import settled_time
from gpuspawner.service.notifications.sender import KEPT_SECONDS as OUTBOX_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.retention import OLD_ROWS, AgeLimits

THIN_AT_ONCE_SECONDS = 86400.0
PAUSE_SECONDS = 0.05
"""The pause between two deletions, in which other writes go on."""


async def forget(parts: Parts) -> None:
    """Thin old readings, and delete all rows that are older than the settings keep them, some at a time.

    Nothing happens while the time is not certain: what is forgotten never returns.

    Raises:
        Unavailable: the database does not answer, or the hub, after all else was done.
    """
    now, store, settings = settled_time(parts.clock), parts.store, parts.settings
    if now is None:
        return
    ended, usage = now - settings.keep_ended_seconds, now - settings.keep_use_seconds
    for delete_some in (
        partial(store.readings.thin, now, THIN_AT_ONCE_SECONDS),
        partial(store.leases.delete_ended, ended),
    ):
        more = True
        while more:
            more = await store.write(delete_some)
            await asyncio.sleep(PAUSE_SECONDS)
    usage_day = date_of(milliseconds(usage), parts.allocator.accounting.zone)
    limits = AgeLimits(now, ended, usage, usage_day, now - KEPT_SECONDS, now - OUTBOX_SECONDS)
    for table in OLD_ROWS:
        await store.write(store.retention.delete_old, table, limits)
    await _forget_users(parts)


async def _forget_users(parts: Parts) -> None:
    """Delete the rows of users who are no longer in the hub. Delete nothing if the hub lists no users."""
    store, hub = parts.store, parts.hub_id
    owners = await store.read(store.retention.owners, hub)
    for _ in range(2):  # a user can be missing in a list if another is deleted between its pages
        there = {user.created for user in await parts.hub.all_users()} if owners else set()
        owners = owners - there if there else frozenset()
    if owners:
        await store.write(store.retention.delete_users, [Owner(hub, created) for created in owners])
