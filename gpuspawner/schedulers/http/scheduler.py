"""The batch scheduler as the seam has it: it owns the queue, and what it grants is on the GPUs that a backend sees."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.gpus.fleet import Fleet, GpuKind
from gpuspawner.core.gpus.placement import kinds_of
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import (
    SCHEDULER,
    Answer,
    Capabilities,
    Grant,
    Offer,
    PassingOn,
    Preempted,
    Preview,
    Refusal,
)
from gpuspawner.schedulers.base import Scheduler as Seam
from gpuspawner.schedulers.http.claims import (
    asked,
    besides,
    held_by,
    is_told,
    offers_told,
    place_of,
    place_offered,
    slots_of,
)
from gpuspawner.schedulers.http.client import Client, Deliveries, TurnedDown
from gpuspawner.schedulers.http.models import Capabilities as Told
from gpuspawner.schedulers.http.models import Stands, State, StockList, written
from gpuspawner.schedulers.http.sync import Mirror, Telling
from gpuspawner.schedulers.own_queue import without_gpus

log = logging.getLogger("gpuspawner.scheduler")

POLL_SECONDS = 20.0
"""How long it may hold an answer until something changes."""
AGAIN_SECONDS = 2.0
TAKEN_SECONDS = 10.0
"""So long before it expires a grant is void here: that it was taken must have been told by then."""
SAME_CLOCK_SECONDS = 60.0
"""Clocks that differ by less are taken for the same."""


class HttpScheduler(PassingOn):
    """Asks a batch scheduler; ``mine`` is who sees the GPUs, and grants what takes none."""

    def __init__(self, client: Client, mine: Seam, wall: Callable[[], float] = time.time) -> None:
        """Ask nothing yet."""
        super().__init__(mine)
        self._client, self._wall = client, wall
        self._telling, self._deliveries = Telling(client), Deliveries()
        self._seen: Told | None = None
        self._stock: StockList | None = None
        self._ahead_seconds = 0.0
        self._as_of, self._changes = 0.0, -1
        self._poll: asyncio.Task[None] | None = None
        self._calls_back = False
        self.callback_url = ""
        """Where the scheduler is to send what changed; "" for nowhere."""

    @property
    def mirror(self) -> Mirror:
        """What it last said of our claims."""
        return self._telling.mirror

    @property
    def capabilities(self) -> Capabilities:
        """What it told of itself; before it did, what all of its kind can."""
        seen = self._seen
        return Capabilities(
            owns_queue=True,
            tells_positions=seen is None or seen.positions,
            preemption_notice_seconds=None if seen is None else seen.preemption_notice_seconds,
            substitutes=seen is None or seen.substitutes,
            answers_at_once=False,
            name="http",
            title=self._client.name,
            version="" if seen is None else seen.version,
        )

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - which kind it gives, that scheduler decides
    ) -> dict[str, Any]:
        """Return what shows the workspace its GPUs, and what the scheduler wants its pod to have beside."""
        patch, state = self._mine.patch(lease, off), self.mirror.states.get(lease.id)
        if state is None or state.grant is None or state.grant.patch is None or "pod" not in patch:
            return patch
        beside = state.grant.patch.model_dump(by_alias=True, exclude_defaults=True)
        return {**patch, "pod": {**patch["pod"], "beside": beside}}

    def listen(self, told: Callable[[], None]) -> None:
        """Have ``told`` called whenever what stands may have changed."""
        self._telling.again = told

    def hear(self) -> None:
        """Something has changed there: a callback says so."""
        self._telling.again()

    async def why_refused(self, signed: str, delivery: str, body: bytes) -> str:
        """Return why a callback is not the scheduler's, or not new, in a sentence; "" for one that is.

        Raises Unavailable where the token can't be read.
        """
        return self._deliveries.why_refused(await self._client.token(), signed, delivery, body, self._wall())

    async def close(self) -> None:
        """Ask no more."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    async def meet(self) -> None:
        """Ask what it is, once. Raises Unavailable where it does not answer, or can't be used: the words say why."""
        if self._seen is None:
            self._seen = await self._client.capabilities()
            log.info("%s %s, contract %s, owns the queue", self._seen.name, self._seen.version, self._seen.contract)

    async def observe(self, now: float) -> Fleet:
        """Look at the GPUs here, and ask what there is of each kind: what is not told is not known."""
        await self._look_at_stock()
        return await self._mine.observe(now)

    async def _look_at_stock(self) -> None:
        try:
            self._stock = await self._client.stock()
        except (Unavailable, TurnedDown):
            self._stock = None

    def stock(self, seen: Snapshot) -> list[Offer]:
        """Return what could be had of every kind, as the scheduler told it."""
        return offers_told(
            self._mine.stock(seen), None if self._stock is None else self._stock.stock, self._client.name
        )

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Ask what a claim would get; nothing changes by it."""
        if claim.request.gpu is None:
            return await self._mine.offers(without_gpus(seen), claim)
        self._set_clock(seen.now)
        name = self._client.name
        if not seen.fleet.complete:
            return Preview(Place(None, None, None, None, says="The GPUs have not been seen yet."))
        try:
            told = await self._client.offers(asked(claim, self.mirror.number(claim), self._written))
        except TurnedDown as error:
            return Preview(Place(None, None, None, None, says=f"{name} says: {error.words}"))
        if not told.offers:
            why = told.refused.words if told.refused else "it can't be had."
            return Preview(Place(None, None, None, None, says=f"{name} would refuse it: {why}"))
        best = told.offers[0]
        place = place_offered(best, name, seen.now, self._ahead_seconds)
        kind = "" if best.kind is None or best.kind == claim.request.gpu else best.kind
        return Preview(place, kind=kind, says=besides(best, name))

    async def extend(self, lease: Lease, until: float) -> None:
        """Ask whether a workspace may run until then. Raises Conflict with its words, Unavailable."""
        if not is_told(lease) or not lease.slots:
            return
        name = self._client.name
        try:
            self.mirror.put(await self._client.extend(lease.id, self._written(until)))
        except TurnedDown as error:
            raise Conflict(f"{name} refuses: {error.words}") from error
        except Unavailable as error:
            raise Unavailable(f"{error} Nothing can be extended meanwhile; what runs goes on.") from error

    async def sync(self, seen: Snapshot) -> Answer:
        """Make its side equal to the leases, and return what stands. Raises Unavailable where it does not answer."""
        await self.meet()
        self._set_clock(seen.now)
        started_anew = await self._telling.hear(seen.now)
        if started_anew:
            self._seen = None
            await self.meet()
        await self._call_back(started_anew)
        await self._telling.tell(seen, self._written)
        if self._poll is None:
            self._poll = asyncio.create_task(self._follow())
        return await self._answer(seen)

    async def _call_back(self, anew: bool) -> None:
        """Say where changes are to be sent, to one that has just started, or that has not heard it yet."""
        self._calls_back &= not anew
        if self._calls_back or not self.callback_url or self._seen is None or not self._seen.callbacks:
            return
        try:
            await self._client.callback(self.callback_url)
        except TurnedDown as error:
            log.warning("%s sends nothing to %s: %s", self._client.name, self.callback_url, error.words)
        except Unavailable as error:  # its other answers count all the same
            log.warning("where callbacks go is told again: %s", error)
            return
        self._calls_back = True

    async def _answer(self, seen: Snapshot) -> Answer:
        if self.mirror.changes != self._changes:
            self._changes, self._as_of = self.mirror.changes, max(seen.now, self._as_of)
            await self._look_at_stock()
        without = await self._mine.sync(without_gpus(seen))
        waiting = [(claim_of(x), x) for x in seen.leases if x.phase in WAITING and is_told(x)]
        stands = [(claim, self._telling.state(claim)) for claim, _ in waiting]
        grants, used = list[Grant](), dict(seen.used)
        for claim, state in stands:
            if (grant := self._grant(claim, state, seen, used)) is not None:
                grants.append(grant)
                for slot in grant.slots:
                    used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
        granted = {grant.claim.id for grant in grants}
        held = {claim.id: held for claim, state in stands if state and (held := held_by(state.reason)) is not None}
        places = self._places([(claim, state) for claim, state in stands if claim.id not in granted])
        return Answer(
            self._as_of,
            lambda: [*without.grants(), *grants],
            lambda: {**without.places(), **places},
            lambda: {**without.held_back(), **held},
            tuple(_refusals(stands)),
            preempted=tuple(self._preempted(seen)),
        )

    def _places(self, stands: Sequence[tuple[Claim, State | None]]) -> dict[str, Place]:
        return {claim.id: self._place(claim, state) for claim, state in stands}

    def _place(self, claim: Claim, state: State | None) -> Place:
        name = self._client.name
        if state is not None:
            return place_of(state, name, self._as_of, self._ahead_seconds)
        why = self._telling.why_not(claim.id)
        return Place(None, None, None, None, says=f"{name} says: {why}" if why else f"{name} has not answered yet.")

    def _grant(self, claim: Claim, state: State | None, seen: Snapshot, used: Mapping[str, Fraction]) -> Grant | None:
        """Return a grant that its user consents to, of GPUs that are seen here; None for none."""
        if state is None or state.state is not Stands.GRANTED or state.grant is None:
            return None
        given = next((kind for kind in kinds_of(claim.request, seen.kinds) if kind.name == state.grant.kind), None)
        if given is None:
            log.warning("%s gave %s, which its user did not consent to", self._client.name, state.grant.kind)
            self.mirror.outnumber(claim)  # with which it is given back
            return None
        slots = slots_of(state.grant, given, seen.fleet, used)
        if slots is None or len(slots) != claim.request.count:
            nodes = ", ".join(slot.node for slot in state.grant.slots)
            log.warning("%s granted GPUs of %s that are not seen here, or in use", self._client.name, nodes)
            return None
        expires, latest = state.grant.expires_at, state.grant.latest_end
        return Grant(
            claim,
            slots,
            None if expires is None else self._ours(expires.timestamp()) - TAKEN_SECONDS,
            "" if given.name == claim.request.gpu else given.name,
            None if latest is None else self._bound(self._ours(latest.timestamp()), seen.now),
        )

    def _bound(self, at: float, now: float) -> LatestEnd:
        words = f"ends by {show_time(at, now)}, as {self._client.name} says"
        return LatestEnd(at, SCHEDULER, words)

    def _preempted(self, seen: Snapshot) -> Iterable[Preempted]:
        for lease in seen.leases:
            state = self.mirror.states.get(lease.id)
            if lease.phase in UP and state is not None and state.preemption is not None:
                at, words = self._ours(state.preemption.deadline.timestamp()), state.preemption.words
                yield Preempted(lease.id, at, f"{self._client.name}: {words}")

    async def _follow(self) -> None:
        """Have the scheduler hold an answer until something changes, and look at once when it does."""
        clock = asyncio.get_running_loop().time
        while True:
            cursor, began = self.mirror.cursor, clock()
            try:
                told = None if cursor is None else await self._client.claims(cursor, POLL_SECONDS)
            except (Unavailable, TurnedDown):
                told = None
                await asyncio.sleep(AGAIN_SECONDS)
            if told is None or told.claims:
                self._telling.again()
                await asyncio.sleep(AGAIN_SECONDS / 10)  # until the sync has heard it too
            elif clock() - began < AGAIN_SECONDS:  # it holds no answer: it must not be flooded
                await asyncio.sleep(AGAIN_SECONDS)

    def _set_clock(self, now: float) -> None:
        """Note how far the wall is before the service's clock, by which leases count."""
        ahead_seconds = self._wall() - now
        if abs(ahead_seconds - self._ahead_seconds) > SAME_CLOCK_SECONDS:
            self._ahead_seconds = float(round(ahead_seconds))

    def _written(self, at: float) -> str:
        return written(at + self._ahead_seconds)

    def _ours(self, at: float) -> float:
        return at - self._ahead_seconds


def _refusals(stands: Iterable[tuple[Claim, State | None]]) -> Iterable[Refusal]:
    for claim, state in stands:
        if state is not None and state.state is Stands.REFUSED:
            yield Refusal(claim, state.reason.words if state.reason else "It gave no reason.")
