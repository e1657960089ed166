"""Start attempts: the lease protocol of the spawner, from the first request to the end of a server."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Gone
from gpuspawner.core.leases import exits, steps, transitions
from gpuspawner.core.leases.lease import HOLDING, JOINABLE, UP, WAITING, Key, Lease, Phase
from gpuspawner.core.leases.reports import bounded, storable
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.step_results import Step
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.log import refusals_logged
from gpuspawner.service.store import OutputRow

WORKSPACE_TOKEN_PREFIX = "gpuws-"  # noqa: S105 - it marks a kind of token


@dataclass(frozen=True)
class StartRequest:
    """One ``start()`` for ``user``. ``start_id`` identifies it, ``boot_id`` the hub process that runs it.

    ``by`` is the person who makes the request, if it is not the user. If it is ``unattended``, no start waits in the
    hub, and the service starts the granted workspace. ``where`` is the page or program of the request. The user comes
    at ``ready_at`` or later.
    """

    key: Key
    user: str
    request: Request
    options: Mapping[str, Any]
    start_id: str
    boot_id: str
    by: str = ""
    unattended: bool = False
    where: str = "the hub"
    lease_id: str = ""
    ready_at: float | None = None


def hash_token(token: str) -> str:
    """Return the stored hash of a workspace's token."""
    return hashlib.sha256(token.encode()).hexdigest()


class StartAttempts:
    """Steps leases by the requests and reports of the spawner about one start attempt."""

    def __init__(self, allocator: Allocator) -> None:
        """Keep no state of its own."""
        self._allocator, self._registry, self._clock = allocator, allocator.registry, allocator.clock
        self._observed, self._commits = allocator.observed, allocator.commits

    async def acquire(self, ask: StartRequest) -> Lease:
        """Return the lease of this start: a new one, or the live one of its key with a new attempt. Idempotent.

        It is written together with a grant that is possible at once.

        Raises:
            RequestRefused: the request is over a hard quota, costs more than a budget leaves, or is larger than the
                fleet or a limit of its cluster.
            Conflict: an earlier workspace of this key still ends. Ask again in a second.
        """
        now, self._observed.boot_id = self._clock.now(), ask.boot_id or self._observed.boot_id
        lease = self._registry.of_key(ask.key)
        if lease is None or lease.phase not in JOINABLE or lease.request != ask.request:
            with refusals_logged(ask.user, ask.key.server, ask.request.gpu):
                self._allocator.check(
                    ask.request, ask.key
                )  # a waiting request keeps its position, even if its last node is removed
        if lease is None:
            lease = Lease(
                ask.lease_id or uuid.uuid4().hex,
                ask.key,
                ask.user,
                ask.request,
                ask.options,
                asked_at=now,
                phase_since=now,
                start_id=ask.start_id,
                boot_id=ask.boot_id,
                heard_at=now,
                phase=Phase.PARKED if ask.unattended else Phase.QUEUED,
                unattended=ask.unattended,
                ready_at=ask.ready_at,
            )
            event = self._allocator.event_of_request(ask.request)
            line = self._commits.line(lease, ask.by or ask.user, event, ask.where)
            stored = self._registry.save(lease, audit=[line])
        elif lease.phase in JOINABLE:
            joined = transitions.join(
                lease, ask.request, ask.options, start_id=ask.start_id, boot_id=ask.boot_id, now=now
            )
            stored = self._registry.save(joined)
            if joined.phase not in HOLDING:
                self._observed.note_release(lease)
        else:
            if lease.phase in UP and lease.start_id != ask.start_id:
                # The hub starts it again, so it no longer has the running server.
                await self._commits.finish(lease, exits.STARTED_AGAIN, gone=True)
            raise Conflict("Your previous workspace is still ending; this start waits for it.")
        await asyncio.gather(stored, self._allocator.grant_waiting())
        if lease.attempt == 1 and not lease.title:
            await self._keep_title(lease)
        return await self._as_stored(lease)

    async def _keep_title(self, lease: Lease) -> None:
        """Give a new workspace the title of the last workspace of its server."""
        last = await self._registry.store.read(self._registry.store.leases.last_ended, lease.key)
        newest = self._registry.get(lease.id)
        if last is not None and last.title and newest is not None and not newest.title:
            await self._registry.save(replace(newest, title=last.title))

    async def _as_stored(self, lease: Lease) -> Lease:
        """Return the present lease once it is stored."""
        await self._registry.stored(lease.id)
        return self._registry.get(lease.id) or lease

    async def current(self, lease_id: str, attempt: int) -> Lease:
        """Return the live lease for a message of ``attempt``, once it is stored.

        Raises:
            Gone: the lease ends or has ended, or a newer attempt took over. The sender must stop.
        """
        await self._registry.stored(lease_id)  # the sender sees no unstored step
        lease = self._registry.get(lease_id)
        if lease is None:
            ended = await self._registry.store.read(self._registry.store.leases.get, lease_id)
            raise Gone(ended.message if ended is not None and ended.message else "This start is over.")
        if attempt != lease.attempt:
            raise Gone("A newer start took this one over.")
        if lease.phase is Phase.STOPPING:
            raise Gone(lease.message)
        return lease

    async def hear(self, lease_id: str, attempt: int) -> Lease:
        """Record a heartbeat of this start attempt. Return its lease once it is stored."""
        lease = await self.current(lease_id, attempt)
        now = self._clock.now()
        heard = transitions.note_heard(lease, now) if lease.phase in JOINABLE else lease
        if heard.phase is not lease.phase or heard.unattended != lease.unattended:
            await asyncio.gather(self._registry.save(heard), self._allocator.grant_waiting())
        else:
            self._registry.note_heard(lease_id, now)
        return await self._as_stored(lease)

    async def acknowledge(self, lease_id: str, attempt: int) -> tuple[Lease, str]:
        """Begin to start a reserved lease. Return it, and a new token for its workspace, which is stored as a hash."""
        token = WORKSPACE_TOKEN_PREFIX + secrets.token_urlsafe(32)
        await self._allocator.granting.lapse_expired()
        current = await self.current(lease_id, attempt)
        lease = transitions.acknowledge(current, hash_token(token), self._clock.now())
        await self._registry.save(lease)
        if not self._allocator.scheduler.capabilities.answers_at_once:
            self._allocator.syncs.request()  # the scheduler must know before the grant expires
        return lease, token

    async def park(self, lease_id: str, attempt: int) -> Lease:
        """Park a waiting lease: its start stops waiting, and its position stays. A grant made meanwhile is kept."""
        lease = await self.current(lease_id, attempt)
        if lease.phase in WAITING:
            lease = transitions.park(lease, self._clock.now())
            await self._registry.save(lease)
        return lease

    async def requeue(self, lease_id: str, attempt: int, why: str, node: str = "") -> Lease:
        """Return a start whose GPUs were not available to its position. Others may go first for a while.

        No process of it may be left. ``node`` is the node without room, "" if no node was the reason.

        Raises:
            Gone: as :meth:`current` does.
            Conflict: the lease is not starting.
        """
        lease = await self.current(lease_id, attempt)
        back = steps.requeue(
            lease,
            events.Requeued("start", reported=storable(why)),
            node,
            self._allocator.settings.no_room_wait_seconds,
            self._clock.now(),
        )
        await self._commits.commit(lease, back)
        return back.lease

    async def release(self, lease_id: str, attempt: int, outcome: str, message: str, output: str = "") -> None:
        """Record how a start or a server ended. An older attempt is ignored. The message may be repeated.

        ``outcome`` is one of ``core.leases.reports.OUTCOMES``. ``output`` is the last output of the server.
        """
        known = self._registry.get(lease_id)
        if output and known is not None and known.attempt == attempt:
            row = OutputRow(lease_id, self._clock.now(), bounded(output))
            await self._registry.store.write(self._registry.store.outputs.save, row)
        await self._registry.stored(lease_id)  # a report must not count for a lease that is not stored
        lease, now = self._registry.get(lease_id), self._clock.now()
        if lease is None or lease.attempt != attempt:
            return
        if outcome == "cancelled" and lease.phase in JOINABLE and self._observed.was_stopped_recently(lease.key):
            # The service's stop of the earlier workspace hit this start, which returns to its position.
            back = transitions.drop_start if lease.phase is Phase.STARTING else transitions.park
            await self._commits.commit(lease, Step(replace(back(lease, now), not_before=now)))
            return
        lease = transitions.stopped_in_hub(lease, outcome)
        up = lease.phase in UP
        stopper = self._allocator.stoppers.of(lease) if outcome == "stopped" and up else ""
        how = exits.released(outcome, user=lease.user, up=up, disruption=lease.disruption, stopper=stopper)
        await self._allocator.dismiss(lease, replace(how, message=storable(message) or how.message), gone=True)

    async def forget(self, key: Key) -> None:
        """End a waiting request whose server or user the hub deletes, or whose start the hub cancels."""
        await self._registry.stored(key)
        lease = self._registry.of_key(key)
        if lease is None or lease.phase not in WAITING | {Phase.RESERVED}:
            return
        await self._allocator.dismiss(lease, exits.FORGOTTEN, gone=True)
