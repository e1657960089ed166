"""The adapter of an external batch scheduler. It owns the queue, and grants GPUs that a backend observes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import (
    SCHEDULER,
    Answer,
    Capabilities,
    Grant,
    Offer,
    Preempted,
    Preview,
    Refusal,
    Scheduler,
    join_answers,
    stop_task,
    unknown_position,
    without_gpu_claims,
)
from gpuspawner.schedulers.delegation import DelegatingScheduler
from gpuspawner.schedulers.http.claims import (
    ClusterNames,
    claim_body,
    describe_offer,
    find_slots,
    held_by,
    is_claimed,
    merge_stock,
    to_offered_place,
    to_place,
)
from gpuspawner.schedulers.http.client import CallbackVerifier, RequestRejected, SchedulerClient
from gpuspawner.schedulers.http.models import Capabilities as ContractCapabilities
from gpuspawner.schedulers.http.models import ClaimPhase, State, StockList, write_timestamp
from gpuspawner.schedulers.http.sync import ClaimStates, ClaimSync
from gpuspawner.schedulers.own_queue import use_slots

log = logging.getLogger("gpuspawner.scheduler")

POLL_SECONDS = 20.0
"""How long the scheduler may hold an answer until something changes."""
RETRY_SECONDS = 2.0
CONFIRM_SECONDS = 10.0
"""A grant is void this long before it expires, because its confirmation must arrive before."""
MAX_CLOCK_DIFFERENCE_SECONDS = 60.0
"""Smaller differences between clocks are ignored."""


class HttpScheduler(DelegatingScheduler):
    """Asks an external batch scheduler. Our own queue observes the GPUs and serves workspaces without one."""

    def __init__(
        self, client: SchedulerClient, own_queue: Scheduler, wall: Callable[[], float] = time.time, home: str = ""
    ) -> None:
        """``home`` is the hub's own cluster of several, "" if the catalog names no cluster."""
        super().__init__(own_queue)
        self._client, self._wall, self._home = client, wall, home
        self._claims, self._callbacks = ClaimSync(client, home), CallbackVerifier()
        self._capabilities: ContractCapabilities | None = None
        self._stock: StockList | None = None
        self._ahead_seconds = 0.0
        self._as_of, self._changes = 0.0, -1
        self._poll: asyncio.Task[None] | None = None
        self._callback_registered = False
        self.callback_url = ""
        """The address for changes, "" for none."""

    @property
    def states(self) -> ClaimStates:
        """The scheduler's last states of our claims."""
        return self._claims.states

    @property
    def capabilities(self) -> Capabilities:
        """The reported abilities, else those that all such schedulers have."""
        found = self._capabilities
        return Capabilities(
            owns_queue=True,
            tells_positions=found is None or found.positions,
            preemption_notice_seconds=None if found is None else found.preemption_notice_seconds,
            substitutes=found is None or found.substitutes,
            answers_at_once=False,
            name="http",
            title=self._client.name,
            version="" if found is None else found.version,
        )

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - the scheduler chooses the kind
    ) -> dict[str, Any]:
        """Return the patch that gives a workspace its GPUs and the scheduler's pod fields."""
        patch, state = self._own_queue.patch(lease, off), self.states.by_claim.get(lease.id)
        if state is None or state.grant is None or state.grant.patch is None or "pod" not in patch:
            return patch
        fields = state.grant.patch.model_dump(by_alias=True, exclude_defaults=True)
        return {**patch, "pod": {**patch["pod"], "beside": fields}}

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when the state may have changed."""
        self._claims.request_sync = notify

    def receive_callback(self) -> None:
        """Look again: an accepted callback reports a change."""
        self._claims.request_sync()

    async def why_refused(self, signed: str, delivery: str, body: bytes) -> str:
        """Return why a callback is refused, in a sentence. "" for a valid new one.

        Raises:
            Unavailable: The token cannot be read.
        """
        return self._callbacks.why_refused(await self._client.token(), signed, delivery, body, self._wall())

    async def close(self) -> None:
        """Stop all background tasks."""
        await stop_task(self._poll)

    async def connect(self) -> None:
        """Ask once what the scheduler can do. Raises Unavailable with the reason."""
        if self._capabilities is None:
            found = self._capabilities = await self._client.capabilities()
            log.info("%s %s, contract %s, owns the queue", found.name, found.version, found.contract)

    async def observe(self, now: float) -> Fleet:
        """Observe the GPUs here, and ask the scheduler for its numbers."""
        await self._fetch_stock()
        return await self._own_queue.observe(now)

    async def _fetch_stock(self) -> None:
        try:
            self._stock = await self._client.stock()
        except (Unavailable, RequestRejected):
            self._stock = None

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return the GPUs of each kind as the scheduler reports them."""
        stock = None if self._stock is None else self._stock.stock
        names = ClusterNames(seen.kinds, self._home)
        return merge_stock(self._own_queue.stock(seen), stock, self._client.name, names)

    async def _preview(self, seen: Snapshot, claim: Claim) -> Preview:
        """Ask what a claim would get. Nothing changes."""
        self._set_clock(seen.now)
        name, names = self._client.name, ClusterNames(seen.kinds, self._home)
        if not seen.fleet.complete:
            return Preview(unknown_position("The GPUs have not been observed yet."))
        try:
            body = claim_body(claim, self.states.number(claim), self._write_time, names)
            answer = await self._client.offers(body)
        except RequestRejected as error:
            return Preview(unknown_position(f"{name} says: {error.words}"))
        if not answer.offers:
            why = answer.refused.words if answer.refused else "it is not available."
            return Preview(unknown_position(f"{name} would refuse it: {why}"))
        found = ((one, names.find(claim.request, one.kind, one.cluster)) for one in answer.offers)
        best, kind = next((pair for pair in found if pair[1] is not None), (None, None))
        if best is None or kind is None:
            return Preview(unknown_position(f"{name} offers only GPUs that you do not accept."))
        place = to_offered_place(best, kind.name, name, seen.now, self._ahead_seconds)
        instead = "" if kind.name == claim.request.gpu else kind.name
        return Preview(place, kind=instead, says=describe_offer(best, name))

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask to run a workspace until then. Raises Conflict with the scheduler's reason, or Unavailable."""
        if not is_claimed(lease) or not lease.slots:
            return
        name = self._client.name
        try:
            self.states.put(await self._client.extend(lease.id, self._write_time(until)))
        except RequestRejected as error:
            raise Conflict(f"{name} refuses: {error.words}") from error
        except Unavailable as error:
            raise Unavailable(f"{error} Nothing can be extended now. Running workspaces continue.") from error

    async def sync(self, seen: Snapshot) -> Answer:
        """Send all claims and return their state. Raises Unavailable if the scheduler does not answer."""
        await self.connect()
        self._set_clock(seen.now)
        restarted = await self._claims.receive(seen.now)
        if restarted:
            self._capabilities = None
            await self.connect()
        await self._register_callback(restarted)
        await self._claims.send(seen, self._write_time)
        if self._poll is None:
            self._poll = asyncio.create_task(self._follow())
        return await self._answer(seen)

    async def _register_callback(self, restarted: bool) -> None:
        """Register the callback address, once for each start of the scheduler."""
        self._callback_registered &= not restarted
        capabilities = self._capabilities
        if self._callback_registered or not self.callback_url or capabilities is None or not capabilities.callbacks:
            return
        try:
            await self._client.callback(self.callback_url)
        except RequestRejected as error:
            log.warning("%s sends no callbacks to %s: %s", self._client.name, self.callback_url, error.words)
        except Unavailable as error:  # Its other answers are still valid.
            log.warning("The callback address will be registered again: %s", error)
            return
        self._callback_registered = True

    async def _answer(self, seen: Snapshot) -> Answer:
        if self.states.changes != self._changes:
            self._changes, self._as_of = self.states.changes, max(seen.now, self._as_of)
            await self._fetch_stock()
        without = await self._own_queue.sync(without_gpu_claims(seen))
        waiting = [claim_of(x) for x in seen.leases if x.phase in WAITING and is_claimed(x)]
        states = [(claim, self._claims.state(claim)) for claim in waiting]
        grants, used = list[Grant](), dict(seen.used)
        for claim, state in states:
            if (grant := self._grant(claim, state, seen, used)) is not None:
                grants.append(grant)
                use_slots(used, grant.slots)
        granted = {grant.claim.id for grant in grants}
        held = {claim.id: held for claim, state in states if state and (held := held_by(state.reason)) is not None}
        places = {claim.id: self._place(claim, state) for claim, state in states if claim.id not in granted}
        refused, preempted = tuple(_refusals(states)), tuple(self._preempted(seen))
        own = Answer(self._as_of, lambda: grants, lambda: places, lambda: held, refused, preempted=preempted)
        return join_answers(self._as_of, [without, own])

    def _place(self, claim: Claim, state: State | None) -> QueuePosition:
        name = self._client.name
        if state is not None:
            return to_place(state, name, self._as_of, self._ahead_seconds)
        why = self._claims.why_rejected(claim.id)
        says = f"{name} says: {why}" if why else f"{name} has not answered yet."
        return unknown_position(says)

    def _grant(self, claim: Claim, state: State | None, seen: Snapshot, used: Mapping[str, Fraction]) -> Grant | None:
        """Return a grant of observed GPUs that the user consented to, else None."""
        if state is None or state.state is not ClaimPhase.GRANTED or state.grant is None:
            return None
        names = ClusterNames(seen.kinds, self._home)
        kind = names.find(claim.request, state.grant.kind, state.grant.cluster)
        if kind is None:
            where = f"{state.grant.kind} in {state.grant.cluster}"
            log.warning("%s granted %s, which its user did not consent to", self._client.name, where)
            self.states.raise_revision(claim)  # This returns the grant.
            return None
        one_domain = requires_domain(claim.request, kind)
        slots = find_slots(state.grant, kind, seen.placement_fleet, used, one_domain=one_domain)
        if slots is None or len(slots) != claim.request.count:
            nodes = ", ".join(slot.node for slot in state.grant.slots)
            of_one = "one NVLink or NUMA domain of a node" if one_domain else "one node"
            log.warning(
                "%s granted GPUs of %s that are not free here, do not work, or are not of %s",
                self._client.name, nodes, of_one,
            )  # fmt: skip
            return None
        expires, latest = state.grant.expires_at, state.grant.latest_end
        return Grant(
            claim,
            slots,
            None if expires is None else self._to_own_clock(expires.timestamp()) - CONFIRM_SECONDS,
            "" if kind.name == claim.request.gpu else kind.name,
            None if latest is None else self._latest_end(self._to_own_clock(latest.timestamp()), seen.now),
        )

    def _latest_end(self, at: float, now: float) -> LatestEnd:
        words = f"ends by {show_time(at, now)}, as {self._client.name} says"
        return LatestEnd(at, SCHEDULER, words)

    def _preempted(self, seen: Snapshot) -> Iterable[Preempted]:
        for lease in seen.leases:
            state = self.states.by_claim.get(lease.id)
            if lease.phase in UP and state is not None and state.preemption is not None:
                at, words = self._to_own_clock(state.preemption.deadline.timestamp()), state.preemption.words
                yield Preempted(lease.id, at, f"{self._client.name}: {words}")

    async def _follow(self) -> None:
        """Poll for changes, and request a sync at each change."""
        clock = asyncio.get_running_loop().time
        while True:
            cursor, began = self.states.cursor, clock()
            try:
                answer = None if cursor is None else await self._client.claims(cursor, POLL_SECONDS)
            except (Unavailable, RequestRejected):
                answer = None
                await asyncio.sleep(RETRY_SECONDS)
            if answer is None or answer.claims:
                self._claims.request_sync()
                await asyncio.sleep(RETRY_SECONDS / 10)  # until the sync has read the change too
            elif clock() - began < RETRY_SECONDS:  # It answers at once: avoid a flood of requests.
                await asyncio.sleep(RETRY_SECONDS)

    def _set_clock(self, now: float) -> None:
        """Record how far the wall clock is ahead of the service's clock."""
        ahead_seconds = self._wall() - now
        if abs(ahead_seconds - self._ahead_seconds) > MAX_CLOCK_DIFFERENCE_SECONDS:
            self._ahead_seconds = float(round(ahead_seconds))

    def _write_time(self, at: float) -> str:
        return write_timestamp(at + self._ahead_seconds)

    def _to_own_clock(self, at: float) -> float:
        return at - self._ahead_seconds


def _refusals(states: Iterable[tuple[Claim, State | None]]) -> Iterable[Refusal]:
    for claim, state in states:
        if state is not None and state.state is ClaimPhase.REFUSED:
            yield Refusal(claim, state.reason.words if state.reason else "It gave no reason.")
