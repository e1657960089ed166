"""Keeps the scheduler's claims equal to the leases: sends changed claims, and releases those of ended leases."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Collection

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.schedulers.base import SCHEDULER, run_limited
from gpuspawner.schedulers.http.claims import (
    Clock,
    ClusterNames,
    is_claimed,
    is_up_to_date,
    lease_body,
    natural_revision,
)
from gpuspawner.schedulers.http.client import MAX_CONCURRENT, RequestRejected, SchedulerClient
from gpuspawner.schedulers.http.models import ClaimPhase, Claims, State

log = logging.getLogger("gpuspawner.scheduler")

FULL_SECONDS = 40.0
"""How often all claims are fetched. Both sides agree again within a minute."""
SEND_SECONDS = 20.0
"""Longest duration of one send. The next one sends the rest."""
GONE, CONFLICT = 410, 409


class ClaimStates:
    """The scheduler's states by claim id, up to ``cursor``, and the revisions that we sent."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.by_claim: dict[str, State] = {}
        self.changes = 0
        """Number of changed states."""
        self.counted = False
        """The scheduler reports numbers of GPUs on a node, and the node picks the GPUs."""
        self._revisions: dict[str, tuple[str, int]] = {}

    def update(self, answer: Claims) -> None:
        """Apply an answer. A complete one also removes missing claims."""
        self.cursor = answer.cursor
        if answer.complete:
            for name in self.by_claim.keys() - {state.id for state in answer.claims}:
                self.remove(name)
        for state in answer.claims:
            self.put(state)

    def put(self, state: State) -> None:
        """Apply one state."""
        if state.state is ClaimPhase.RELEASED:
            self.remove(state.id)
            return
        if state.grant is not None and state.grant.slots:
            self.counted = state.grant.slots[0].gpus is None
        if self.by_claim.get(state.id) != state:
            self.by_claim[state.id] = state
            self.changes += 1

    def remove(self, name: str) -> None:
        """Remove a claim that the scheduler does not have."""
        if self.by_claim.pop(name, None) is not None:
            self.changes += 1

    def number(self, claim: Claim) -> int:
        """Return the number of a claim's revision: the same for the same revision, higher for a newer one.

        It is computed from the claim, so it survives our restart. If the scheduler has a higher number, because our
        clock went back or it rejected a number, the next numbers continue from there.
        """
        ours, known = claim.revision, self._revisions.get(claim.id)
        if known is not None and known[0] == ours:
            return known[1]
        state = self.by_claim.get(claim.id)
        least = 0 if state is None else state.revision
        if known is not None:
            least = max(least, known[1]) + 1
        natural = natural_revision(claim)
        number = natural if natural >= least else least + (known is None)
        self._revisions[claim.id] = ours, number
        return number

    def raise_revision(self, claim: Claim) -> None:
        """Send a claim again under a higher number, which voids the scheduler's state."""
        state = self.by_claim.get(claim.id)
        theirs = 0 if state is None else state.revision
        self._revisions[claim.id] = claim.revision, max(self.number(claim), theirs) + 1

    def keep(self, names: Collection[str]) -> None:
        """Forget the numbers of claims that both sides do not have."""
        for name in self._revisions.keys() - set(names) - self.by_claim.keys():
            del self._revisions[name]


class ClaimSync:
    """Receives states and sends claims. ``request_sync`` is called when more must be sent at once."""

    def __init__(self, client: SchedulerClient, home: str = "") -> None:
        """``home`` is the hub's own cluster, "" if the catalog names no cluster."""
        self._client, self._home = client, home
        self.states = ClaimStates()
        self.request_sync: Callable[[], None] = lambda: None
        self._sent: dict[str, str] = {}
        """The last sent body of each claim."""
        self._rejections: dict[str, str] = {}
        """Why the scheduler rejected a claim, in its words."""
        self._received_all_at: float | None = None

    def state(self, claim: Claim) -> State | None:
        """Return the state of a claim at its current revision."""
        state = self.states.by_claim.get(claim.id)
        return state if state is not None and state.revision == self.states.number(claim) else None

    def why_rejected(self, name: str) -> str:
        """Return why a claim was rejected, in the scheduler's words. "" if it was not."""
        return self._rejections.get(name, "")

    async def receive(self, now: float) -> bool:
        """Fetch changed states, and from time to time all states.

        Returns:
            Whether the scheduler has restarted.

        Raises:
            Unavailable: The scheduler does not answer.
        """
        restarted = self._received_all_at is None
        fetch_all = self._received_all_at is None or not 0 <= now - self._received_all_at < FULL_SECONDS
        try:
            answer = await self._client.claims(None if fetch_all else self.states.cursor)
        except RequestRejected as error:
            if error.status != GONE:
                raise Unavailable(f"{self._client.name} refuses to list claims: {error.words}") from error
            log.warning("%s restarted: all claims are sent again", self._client.name)
            self._sent.clear()
            restarted = fetch_all = True
            answer = await self._client.claims(None)
        if fetch_all:
            self._received_all_at = now
        self.states.update(answer)
        return restarted

    async def send(self, seen: Snapshot, write_time: Clock) -> None:
        """Release claims of ended leases, then send running and waiting leases that the scheduler does not have.

        Raises:
            Unavailable: The scheduler does not answer.
        """
        leases = {lease.id: lease for lease in seen.leases if is_claimed(lease)}
        self.states.keep(leases)
        for kept in (self._sent, self._rejections):
            for name in kept.keys() - leases.keys():
                del kept[name]
        until = asyncio.get_running_loop().time() + SEND_SECONDS
        gone = [name for name in self.states.by_claim if name not in leases]
        finished = await run_limited((self._release(name) for name in gone), MAX_CONCURRENT, until)
        in_order = sorted(leases.values(), key=lambda x: (x.asked_at, x.id))
        for holding, concurrent in ((True, MAX_CONCURRENT), (False, 1)):  # The first request must arrive first.
            batch = [lease for lease in in_order if (lease.phase in HOLDING) is holding]
            calls = (self._send(lease, seen, write_time) for lease in batch)
            finished &= await run_limited(calls, concurrent, until)
        finished &= await run_limited((self._acknowledge(lease) for lease in in_order), MAX_CONCURRENT, until)
        if not finished:
            self.request_sync()

    async def _release(self, name: str) -> None:
        try:
            await self._client.release(name)
        except RequestRejected as error:
            log.warning("%s does not release %s: %s", self._client.name, name, error.words)
            return
        self.states.remove(name)

    async def _send(self, lease: Lease, seen: Snapshot, write_time: Clock) -> None:
        """Send a lease's claim unless the scheduler has it."""
        claim = claim_of(lease)
        number, state = self.states.number(claim), self.states.by_claim.get(lease.id)
        names = ClusterNames(seen.kinds, self._home)
        body = lease_body(lease, state, number, seen.fleet, write_time, names, counted=self.states.counted)
        text = json.dumps(body, sort_keys=True)
        if self._sent.get(lease.id) == text and is_up_to_date(lease, state, number):
            return
        try:
            self.states.put(await self._client.claim(lease.id, body, uuid.uuid4().hex))
        except RequestRejected as error:
            log.info("%s rejected %s: %s (%s)", self._client.name, lease.id, error.words, error.code)
            self._rejections[lease.id] = error.words
            if error.status == CONFLICT:  # Its state is newer or void.
                self.states.raise_revision(claim)
                self.request_sync()
        else:
            self._sent[lease.id] = text
            self._rejections.pop(lease.id, None)

    async def _acknowledge(self, lease: Lease) -> None:
        """Acknowledge a preemption that the user was told of."""
        state, notice = self.states.by_claim.get(lease.id), lease.notice
        preemption = None if state is None else state.preemption
        if preemption is None or preemption.acknowledged or notice is None or notice.preemption != SCHEDULER:
            return
        try:
            self.states.put(await self._client.acknowledge(lease.id))
        except RequestRejected as error:
            log.info("%s: %s", self._client.name, error.words)
