"""What the backend tells of a workspace that runs: that it is about to end it, its GPUs, and which failed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpuspawner.core.leases.events import Allocated, Disrupted, Event, Health, Spared
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.leases.transitions import disrupt
from gpuspawner.service.store import AuditLine

SOONER_SECONDS = 10.0
"""An end that comes sooner by less than this is told no second time. Arbitrary: longer than a look at the cluster."""


def told_by_the_place(
    lease: Lease, running: Sequence[Running], failed_gpus: Collection[str], now: float
) -> tuple[Lease, list[AuditLine]]:
    """Return the lease with what is new of it, and what its user is to be told: nothing is stopped.

    Args:
        lease: one that runs.
        running: what is seen to run for it, of all attempts; where nothing is seen, nothing is told.
        failed_gpus: the GPUs, by id, that the backend calls unhealthy.
        now: seconds since the epoch.
    """
    own = [one for one in running if one.attempt == lease.attempt]
    if not own:
        return lease, []
    disrupted, lines = _disrupted(lease, own, now)
    told, more = _unhealthy(disrupted, own[0], failed_gpus, now)
    known, last = _allocated(told, own[0], now)
    return known, [*lines, *more, *last]


def _disrupted(lease: Lease, own: Sequence[Running], now: float) -> tuple[Lease, list[AuditLine]]:
    one = next((x for x in own if x.disruption), None)
    if one is None:
        return (disrupt(lease, "", None), [_line(lease, now, Spared())]) if lease.disruption else (lease, [])
    until = None if one.ends_in_seconds is None else now + one.ends_in_seconds
    told = lease.disrupted_until
    if lease.disruption and (until is None or (told is not None and until > told - SOONER_SECONDS)):
        return lease, []
    if lease.disruption == one.disruption and told is None:  # that it may end at any moment was said already
        return disrupt(lease, one.disruption, until), []
    return disrupt(lease, one.disruption, until), [_line(lease, now, Disrupted(one.disruption))]


def _unhealthy(lease: Lease, own: Running, failed_gpus: Collection[str], now: float) -> tuple[Lease, list[AuditLine]]:
    failed = (slot.gpu for slot in lease.slots if slot.gpu in failed_gpus)
    unhealthy = tuple(sorted({*own.unhealthy, *failed}))
    if unhealthy == lease.unhealthy:
        return lease, []
    return replace(lease, unhealthy=unhealthy), [_line(lease, now, Health(unhealthy))]


def _allocated(lease: Lease, own: Running, now: float) -> tuple[Lease, list[AuditLine]]:
    if own.uuids in {(), lease.uuids}:  # they are not known now, or nothing is new
        return lease, []
    return replace(lease, uuids=own.uuids), [_line(lease, now, Allocated(own.uuids))]


def _line(lease: Lease, now: float, event: Event) -> AuditLine:
    return AuditLine(now, lease.id, lease.user, "cluster", event)
