"""Requests the workspaces of schedules in time, like any start, and records whether their users came."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Superseded, Unavailable
from gpuspawner.core.events import ScheduleSuspended
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Key, Lease, Owner
from gpuspawner.core.schedules import (
    LEAST_LEAD_SECONDS,
    MOST_LEAD_SECONDS,
    MOST_MISSED,
    Schedule,
    ScheduleStep,
    after_outcome,
    after_start,
    lead_seconds_of,
    lease_id_of_schedule,
)
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.parts import Parts
from gpuspawner.service.start.schedules import decided, estimate, find_schedule

log = logging.getLogger("gpuspawner.ready")

READY_SECONDS = 60.0
ESTIMATES = 10
"""The number of estimates in a round, of schedules that are near and may have to wait. Each takes as long as a check of
the form. Arbitrary."""
WHERE = "a schedule"


class _Near(NamedTuple):
    owner: Owner
    schedule: Schedule
    at: float


async def ready_round(parts: Parts) -> None:
    """Look at the requested workspaces, and request those that are due.

    Raises:
        Unavailable: the store, the hub or the scheduler does not answer. The next round tries again.
    """
    if not parts.engine.observer.has_looked:
        return
    now, near = parts.clock.now(), list[_Near]()
    for owner, stored in await parts.store.read(parts.store.schedules.of_hub, parts.hub_id):
        schedule = await _seen(parts, owner, stored)
        at = None if schedule is None else decided(parts, schedule, None).at
        if schedule is not None and at is not None and at - now <= MOST_LEAD_SECONDS + LEAST_LEAD_SECONDS:
            near.append(_Near(owner, schedule, at))
    early = [one for one in near if one.at - now > _start_lead(one.schedule)]
    begin = int(now // READY_SECONDS) * ESTIMATES % len(early) if early else 0  # each is estimated in turn
    for one in (*(one for one in near if one.at - now <= _start_lead(one.schedule)), *early[begin : begin + ESTIMATES]):
        try:
            if one.at - now <= LEAST_LEAD_SECONDS or await _is_due(parts, one):
                await _ask(parts, one)
        except (Superseded, Unavailable):
            raise
        except Exception:  # the others go on
            log.exception("a scheduled workspace of %s was not requested", one.schedule.user)


def _start_lead(schedule: Schedule) -> float:
    """Return how long before its time a workspace is requested if the queue is empty."""
    return lead_seconds_of(0.0, schedule.start_seconds)


async def _seen(parts: Parts, owner: Owner, schedule: Schedule) -> Schedule | None:
    """Record whether the user came to the last workspace. Return the stored schedule, None if it was removed."""
    if not schedule.lease:
        return schedule
    lease = await parts.registry.find(schedule.lease)
    if lease is not None and lease.live and (lease.phase not in UP or lease.arrival is not None):
        return schedule
    took_seconds, came = _start_seconds(lease), _came(lease)

    def seen(now: Schedule) -> Schedule:
        return after_outcome(after_start(now, took_seconds) if took_seconds else now, came=came)

    after = await parts.store.write(parts.store.schedules.change, owner, schedule.id, seen)
    if after is None:
        return None
    if lease is not None and after.missed >= MOST_MISSED:
        line = parts.allocator.commits.line(lease, "gpuspawner", ScheduleSuspended(schedule.words, after.missed))
        async with parts.registry.ended_lock:
            newest = await parts.registry.find(lease.id)
            await parts.registry.save(newest or lease, audit=[line])
    return after


def _start_seconds(lease: Lease | None) -> float:
    """Return the time from the grant until the workspace ran, 0 if it did not run."""
    if lease is None or lease.running_at is None or lease.granted_at is None:
        return 0.0
    return lease.running_at - lease.granted_at


def _came(lease: Lease | None) -> bool | None:
    """Return whether its user came, None if it did not run. An unknown case counts as came, so that nothing pauses."""
    if lease is not None and (lease.unclaimed or lease.reason is ExitReason.NOBODY_CAME):
        return False
    return True if lease is not None and lease.running_at is not None and lease.arrival is None else None


async def _is_due(parts: Parts, one: _Near) -> bool:
    """Return whether its workspace must be requested now to be ready in time if the queue stays as it is.

    A request that would be refused is not due. It may be right by its time.
    """
    found = await estimate(parts, one.owner, one.schedule)
    return not found.refused and decided(parts, one.schedule, found.seconds).do is ScheduleStep.ASK


async def _ask(parts: Parts, one: _Near) -> None:
    """Request the workspace like a program of its user. After a refusal, try again the next day."""
    owner, before, at = one
    schedule = await find_schedule(parts, owner, before.id)
    if schedule is None or decided(parts, schedule, None).at != at:
        return  # its user paused, changed or removed it meanwhile
    user = await parts.hub.name_of(owner.user_created, schedule.user)
    if user is None:
        return  # it is deleted with its user
    name = lease_id_of_schedule(schedule.id, at)
    said, lease = "", await parts.registry.find(name)
    if lease is None:
        try:
            lease = await _asked(parts, Key(*owner, schedule.server), user, schedule, name, at)
        except (Conflict, Gone, RequestRefused) as error:
            said = f"Not asked for last time: {error}"
    asked = partial(replace, user=user, asked_for=at, lease="" if lease is None else lease.id, said=said)
    await parts.store.write(parts.store.schedules.change, owner, schedule.id, asked)
    log.info("%s of %s: %s", schedule.id, user, said or "asked for")


async def _asked(parts: Parts, key: Key, user: str, schedule: Schedule, name: str, at: float) -> Lease:
    groups, options = await parts.members.fetch(user, key.owner), dict(schedule.options)
    request = await parts.allocator.resolver.request_of(key, user, options, groups)
    if parts.registry.of_key(key) is not None:  # nothing is awaited from here until it has a lease
        raise Conflict("You had a workspace of this name already.")
    start = uuid.uuid4().hex
    ask = StartRequest(key, user, request, options, start, "", unattended=True, where=WHERE, lease_id=name, ready_at=at)
    return await parts.attempts.acquire(ask)
