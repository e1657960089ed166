"""Makes the scheduler's side equal to the leases: tells what it has not heard, releases what is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.schedulers.http.claims import Clock, is_kept, is_told, wanted
from gpuspawner.schedulers.http.client import AT_ONCE, Client, TurnedDown
from gpuspawner.schedulers.http.models import State
from gpuspawner.schedulers.http.sync import Mirror

log = logging.getLogger("gpuspawner.scheduler")

ALL_SECONDS = 40.0
"""So often it is asked for all claims, whatever it told meanwhile: both sides agree again within a minute."""
MOST_SECONDS = 20.0
"""Of one time of telling. What is not told by then is told by the next."""
GONE, CONFLICT = 410, 409

Step = Coroutine[Any, Any, None]


class Telling:
    """What was heard and told. ``again`` is called where more is to be told at once."""

    def __init__(self, client: Client) -> None:
        """Tell nothing yet."""
        self._client = client
        self.mirror = Mirror()
        self.again: Callable[[], None] = lambda: None
        self._said: dict[str, str] = {}
        """What was told of each claim last, as it was sent."""
        self._turned_down: dict[str, str] = {}
        """Why a claim was not taken, in the scheduler's words."""
        self._all_at: float | None = None

    def state(self, claim: Claim) -> State | None:
        """Return what stands for a claim at its present revision."""
        state = self.mirror.states.get(claim.id)
        return state if state is not None and state.revision == self.mirror.number(claim) else None

    def why_not(self, name: str) -> str:
        """Return why a claim was not taken, in the scheduler's words; "" where it was, or was not told yet."""
        return self._turned_down.get(name, "")

    async def hear(self, now: float) -> bool:
        """Hear what changed; all of it at first, and now and then. Return whether the scheduler started anew.

        Raises Unavailable.
        """
        all_of_it = self._all_at is None or not 0 <= now - self._all_at < ALL_SECONDS
        anew = self._all_at is None
        try:
            told = await self._client.claims(None if all_of_it else self.mirror.cursor)
        except TurnedDown as error:
            if error.status != GONE:
                raise Unavailable(f"{self._client.name} refuses to tell what stands: {error.words}") from error
            log.warning("%s started anew: it is told again what is wanted, and what runs", self._client.name)
            self._said.clear()
            anew = all_of_it = True
            told = await self._client.claims(None)
        if all_of_it:
            self._all_at = now
        self.mirror.take(told)
        return anew

    async def tell(self, seen: Snapshot, written: Clock) -> None:
        """Release what is gone; tell what runs, then what waits, where the scheduler does not have it.

        Raises Unavailable.
        """
        leases = {lease.id: lease for lease in seen.leases if is_told(lease)}
        self.mirror.keep(leases)
        for kept in (self._said, self._turned_down):
            for name in kept.keys() - leases.keys():
                del kept[name]
        until = asyncio.get_running_loop().time() + MOST_SECONDS
        gone = [name for name in self.mirror.states if name not in leases]
        await self._all((self._release(name) for name in gone), until)
        in_order = sorted(leases.values(), key=lambda x: (x.asked_at, x.id))
        for holding, at_once in ((True, AT_ONCE), (False, 1)):  # who asks first is to be heard first
            line = [lease for lease in in_order if (lease.phase in HOLDING) is holding]
            await self._all((self._say(lease, seen.fleet, written) for lease in line), until, at_once)
        await self._all((self._heard(lease) for lease in in_order), until)

    async def _all(self, steps: Iterable[Step], until: float, at_once: int = AT_ONCE) -> None:
        """Take steps, so many together, until then or the first that fails because the scheduler does not answer."""
        failed: list[Unavailable] = []
        clock, turns = asyncio.get_running_loop().time, asyncio.Semaphore(at_once)

        async def one(step: Step) -> None:
            async with turns:  # else all would have begun before the first fails
                if failed or clock() > until:
                    step.close()
                    return
                try:
                    await step
                except Unavailable as error:
                    failed.append(error)

        await asyncio.gather(*(one(step) for step in steps))
        if failed:
            raise failed[0]
        if clock() > until:
            self.again()

    async def _release(self, name: str) -> None:
        try:
            await self._client.release(name)
        except TurnedDown as error:
            log.warning("%s does not release %s: %s", self._client.name, name, error.words)
            return
        self.mirror.gone(name)

    async def _say(self, lease: Lease, fleet: Fleet, written: Clock) -> None:
        """Tell what a lease wants, where the scheduler has not heard it."""
        claim = claim_of(lease)
        number, state = self.mirror.number(claim), self.mirror.states.get(lease.id)
        body = wanted(lease, state, number, fleet, written, counted=self.mirror.counted)
        text = json.dumps(body, sort_keys=True)
        if self._said.get(lease.id) == text and is_kept(lease, state, number):
            return
        try:
            self.mirror.put(await self._client.claim(lease.id, body, uuid.uuid4().hex))
        except TurnedDown as error:
            log.info("%s turned %s down: %s (%s)", self._client.name, lease.id, error.words, error.code)
            self._turned_down[lease.id] = error.words
            if error.status == CONFLICT:  # what it has is newer, or void
                self.mirror.outnumber(claim)
                self.again()
        else:
            self._said[lease.id] = text
            self._turned_down.pop(lease.id, None)

    async def _heard(self, lease: Lease) -> None:
        """Acknowledge a preemption that its user was told of."""
        state, notice = self.mirror.states.get(lease.id), lease.notice
        stands = None if state is None else state.preemption
        if stands is None or stands.acknowledged or notice is None or notice.preemption != SCHEDULER:
            return
        try:
            self.mirror.put(await self._client.acknowledge(lease.id))
        except TurnedDown as error:
            log.info("%s: %s", self._client.name, error.words)
