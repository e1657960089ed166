"""Forgets what has been kept for long enough."""

from __future__ import annotations

import asyncio
from functools import partial

from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.months import month_of
from gpuspawner.service.api.rest.keys import KEPT_SECONDS
from gpuspawner.service.clock import settled_time
from gpuspawner.service.notifications.sender import KEPT_SECONDS as OUTBOX_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.personal import OwnedRows

THIN_AT_ONCE_SECONDS = 86400.0
PAUSE_SECONDS = 0.05
"""Between two chunks of what is forgotten: others are answered meanwhile."""


async def forget(parts: Parts) -> None:
    """Thin old readings, and forget what is older than the settings keep it, a chunk at a time.

    Nothing happens while the time is not certain: what is forgotten never returns.

    Raises:
        Unavailable: the database does not answer, or the hub, after all else was done.
    """
    now, store, settings = settled_time(parts.clock), parts.store, parts.settings
    if now is None:
        return
    ended_before = now - settings.keep_ended_seconds
    for chunk in (
        partial(store.readings.thin, now, THIN_AT_ONCE_SECONDS),
        partial(store.leases.delete_ended, ended_before),
    ):
        more = True
        while more:
            more = await store.write(chunk)
            await asyncio.sleep(PAUSE_SECONDS)
    await store.write(store.outputs.delete_old, now)
    used_since_ms = milliseconds(now - settings.keep_use_seconds)
    await store.write(store.ledger.delete_before, used_since_ms)
    used_since = date_of(used_since_ms, parts.allocator.accounting.zone)
    await store.write(store.usage_sums.delete_before, used_since)
    await store.write(store.statements.delete_before, month_of(used_since))
    await store.write(store.team_alerts.delete_before, used_since)
    await store.write(store.idempotency_keys.delete_old, now - KEPT_SECONDS)
    await store.write(store.outbox.delete_over, now - OUTBOX_SECONDS)
    await store.write(store.tokens.delete_expired, now)
    await store.write(store.preemptions.delete_over, ended_before)
    await store.write(store.restrictions.delete_over, ended_before)
    await store.write(store.announcements.delete_over, ended_before)
    await store.write(store.quota_requests.delete_over, ended_before)
    await store.write(store.inbox.delete_old, now)
    await store.write(store.counters.delete_old, ended_before)
    await store.write(store.estimates.delete_old, now)
    await store.write(store.idle_traces.delete_old, now)
    await _forget_users(parts, store.presets)
    await _forget_users(parts, store.schedules)
    await _forget_users(parts, store.quota_requests)
    await _forget_users(parts, store.secrets)
    await _forget_users(parts, store.preferences)
    await _forget_users(parts, store.idle_traces)


async def _forget_users(parts: Parts, rows: OwnedRows) -> None:
    """Delete the rows of users who are no longer in the hub. Delete nothing if the hub lists no users."""
    store, hub = parts.store, parts.hub_id
    owners = await store.read(rows.owners, hub)
    for _ in range(2):  # a user can be missing in a list if another is deleted between its pages
        there = {user.created for user in await parts.hub.all_users()} if owners else set()
        owners = owners - there if there else frozenset()
    if owners:
        await store.write(rows.delete_users, [Owner(hub, created) for created in owners])
