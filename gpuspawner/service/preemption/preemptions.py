"""Carries out preemptions: plans each claim, warns its victims, and reserves their GPUs for the claimant.

The steps of a stored claim are repeated until it is over, so that a crash between two steps loses nothing. A claim is
stored first. Then its victims get a notice with the time of their end, at which the engine ends them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.leases.running_steps import spare, warn_of_claim
from gpuspawner.core.queue.fair_share import claim_account, further_candidates, over_share, room_requests
from gpuspawner.core.queue.preemption import (
    Preemption,
    PreemptionPlan,
    PreemptionState,
    advance_preemption,
    is_protected,
    notice_end,
    plan_preemption,
    preempted_gpus,
)
from gpuspawner.core.queue.snapshot import PreemptedGpus, Snapshot
from gpuspawner.core.rules import EndNotice
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.engine import LeaseEngine
from gpuspawner.service.engine.registry import wait_for_all
from gpuspawner.service.preemption.words import claim_reason
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine

log = logging.getLogger("gpuspawner.preemptions")

ROOM_SECONDS = 10.0
"""How often requests that may preempt by fair share are searched. Arbitrary: they have waited for minutes."""
LOOK_SECONDS = 30.0
"""How often a claim without its GPUs is planned again without a change, because protections expire."""


class Preemptions:
    """The live requests with priority, and their effects on workspaces."""

    def __init__(self, allocator: Allocator, engine: LeaseEngine) -> None:
        """Start empty. Snapshots reserve the GPUs of claims after :meth:`load`."""
        self._allocator, self._engine = allocator, engine
        self._registry, self._clock, self._store = allocator.registry, allocator.clock, allocator.registry.store
        self._rows = self._store.preemptions
        self._turn = asyncio.Lock()
        """Held by each change of claims until it is stored."""
        self._live: dict[str, Preemption] = {}
        self._looked_at = -math.inf
        self._planned: dict[str, tuple[object, float]] = {}
        """The state and the time of the last plan of each claim."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How many claims ended since this service started, by source (claim, make_room) and outcome."""
        self.changes = 0
        """How many times a claim changed since this service started."""
        allocator.observed.kept = self.kept

    async def load(self) -> None:
        """Read the live claims from the store."""
        self._live = {one.id: one for one in await self._store.read(self._rows.live)}

    @property
    def known_at(self) -> float:
        """The last time at which a live claim was made or its GPUs became free. 0 without a live claim."""
        return max((max(one.made_at, one.free_at or 0.0) for one in self.live), default=0.0)

    async def move_back(self, seconds: float) -> None:
        """Move all live claims back in time with the leases if the clock went back."""
        for one in self.live if seconds else ():
            await self._save(one.earlier(seconds))

    @property
    def live(self) -> tuple[Preemption, ...]:
        """The live claims, oldest first."""
        return tuple(self._live.values())

    def kept(self) -> tuple[PreemptedGpus, ...]:
        """Return the GPUs that are kept for live claims."""
        return tuple(preempted_gpus(one) for one in self._live.values() if one.slots)

    async def get(self, name: str) -> Preemption | None:
        """Return a claim by its id, also one that is over."""
        return self._live.get(name) or await self._store.read(self._rows.get, name)

    async def last(self, limit: int) -> list[Preemption]:
        """Return the last claims, newest first."""
        return await self._store.read(self._rows.latest, limit)

    def victims_of(self, claim: Preemption) -> list[Lease]:
        """Return the workspaces that end for a claim, in the order of their requests."""
        found = (x for x in self._registry if x.notice is not None and x.notice.preemption == claim.id)
        return sorted(found, key=lambda x: (x.asked_at, x.id))

    def preview(self, claim: Preemption) -> tuple[Preemption, PreemptionPlan]:
        """Return the claim as it would be made, and the plan of its victims, without an effect.

        Raises:
            Conflict: preemption cannot free this many GPUs in time. The message says how many it can.
            Unavailable: the running workspaces or GPUs are not known.
        """
        seen = self._allocator.observed.snapshot()
        if not _are_gpus_known(seen, claim.kind):
            raise Unavailable("The GPUs, or what runs on them, are not seen at this moment. Try again in a minute.")
        found = self._plan(claim, seen)
        if found is None:
            raise Conflict(self._too_many(claim, seen))
        at = notice_end(found.victims, seen, claim.ends_at) if found.victims else claim.ends_at
        stands = replace(claim, slots=found.slots, ends_at=at)
        if at is not None and stands.kept_until <= at:
            until, ends = (show_time(when, seen.now) for when in (stands.kept_until, at))
            raise Conflict(f"GPUs kept until {until} asked; they come free at {ends}. Ask for a later hold_until.")
        return stands, found

    async def make(self, claim: Preemption, audit: Sequence[AuditLine] = ()) -> Preemption:
        """Make a claim, or return the claim with the same key. It may be repeated.

        Raises:
            Conflict: as :meth:`preview`; or the key was another claim's.
            Unavailable: as :meth:`preview`.
        """
        async with self._turn:
            earlier = await self._store.read(self._rows.find_by_key, claim.by, claim.key)
            if earlier is not None:
                if _asked(earlier) != _asked(claim):
                    raise Conflict("This idempotency key was used for another claim. Send a new one with a new claim.")
                return self._live.get(earlier.id, earlier)
            stands, found = self.preview(claim)
            await self._save(stands, audit)
            much = claim.asked, claim.kind, claimant_of(claim), len(found.victims)
            log.info("%s claims %s %s for %s: %s end", claim.by, *much)
            try:
                await self._carry_out()
            except Unavailable as error:  # the claim is stored, and an error would make clients claim again
                log.warning("what follows from the claim of %s is done at the next step: %s", claim.by, error)
            return self._live.get(claim.id, stands)

    async def give_up(self, claim: Preemption, audit: Sequence[AuditLine] = ()) -> Preemption:
        """End a claim that is no longer needed. Its victims go on, and its GPUs are free."""
        return await self._over(claim, PreemptionState.GIVEN_UP, audit)

    async def claimed(self, claim: Preemption, audit: Sequence[AuditLine] = ()) -> Preemption:
        """Note that the claimant has the GPUs.

        Raises:
            Conflict: they are not free yet, or the claim is over.
            Unavailable: the GPUs cannot be observed now.
        """
        if claim.state is PreemptionState.COMING:
            raise Conflict("Its GPUs are not free yet. Claim them when its state is “held”, or give it up.")
        if claim.account is None and claim.live:
            # External work that began since the last observation must be known, or its GPUs would be granted.
            await self._allocator.scheduler.observe(self._clock.now())
        return await self._over(claim, PreemptionState.CLAIMED, audit)

    async def step(self) -> None:
        """Carry out all live claims. The service calls this once a tick."""
        async with self._turn:
            await self._carry_out()

    async def _carry_out(self) -> None:
        await self._make_room()
        failures, step = self._registry.failures, "carrying out a claim"
        for claim in self.live:
            seen = self._allocator.observed.snapshot()
            if seen.fleet.complete and seen.processes_known and failures.may_try(step, claim.id):
                with failures.isolating(step, claim.id):
                    await self._step(claim, seen)
        await self._engine.carry_out_notices(self._is_over)

    def _is_over(self, claim: str) -> bool:
        """Return whether a claim no longer needs the GPUs of its victims."""
        return claim not in self._live and claim != SCHEDULER

    async def _make_room(self) -> None:
        """Make a claim for a request that is within its share and has waited long enough, if others exceed theirs."""
        now = self._clock.now()
        if self._allocator.catalog.rules.make_room is None or now - self._looked_at < ROOM_SECONDS:
            return
        self._looked_at = now
        seen = self._allocator.observed.snapshot()
        if not seen.fleet.complete or not seen.processes_known:
            return
        found_wishes = room_requests(seen, (claim.lease for claim in self.live))
        wish = next((one for one in found_wishes if _are_gpus_known(seen, one.claim.request.gpu or "")), None)
        if wish is None:
            return
        asked = wish.claim.request
        kind, account = asked.gpu or "", claim_account(wish.claim)
        claim = new_claim(
            "gpuspawner", now, kind=kind, count=asked.count, account=account, user=wish.claim.user, lease=wish.claim.id
        )
        found = plan_preemption(claim, seen, over_share(seen), wish.candidates)
        if found is not None and found.victims:  # the queue grants free GPUs
            await self._begin(claim, seen, found)

    async def _step(self, claim: Preemption, seen: Snapshot) -> None:
        stands = advance_preemption(claim, seen)
        request = self._registry.get(claim.lease)
        if claim.lease and stands.live and (request is None or request.phase not in WAITING):
            stands = replace(
                stands, state=PreemptionState.GIVEN_UP, over_at=seen.now
            )  # the request was withdrawn, or got other GPUs
        may_plan = stands.state is PreemptionState.COMING and _are_gpus_known(seen, claim.kind)
        found = self._replanned(stands, seen) if may_plan else None
        if found is None:
            await self._save(stands)
            return
        await self._begin(stands, seen, found)

    async def _begin(self, claim: Preemption, seen: Snapshot, found: PreemptionPlan) -> None:
        """Store the GPUs of a claim, spare the workspaces that it no longer needs, and warn those that it ends."""
        told = [x for x in found.victims if x.notice is None]
        at = notice_end(told, seen, claim.ends_at) if told else claim.ends_at
        await self._save(replace(claim, slots=found.slots, ends_at=at))
        needed = {lease.id for lease in found.victims}
        spare_now = [x for x in self.victims_of(claim) if x.id not in needed and x.phase in UP]
        spared = [self._allocator.commits.commit(x, spare(x)) for x in spare_now]
        await wait_for_all([*spared, *(self._warn(lease, claim, at or seen.now) for lease in told)])

    def _replanned(self, claim: Preemption, seen: Snapshot) -> PreemptionPlan | None:
        """Return the new plan of a claim, None without a change or if it cannot be covered now."""
        sources = (self._registry.changes, self.changes, id(seen.fleet), seen.others)
        before, at = self._planned.get(claim.id, (None, 0.0))
        if before == sources and seen.now - at < LOOK_SECONDS:
            return None
        self._planned[claim.id] = sources, seen.now
        return self._plan(claim, seen)

    def _plan(self, claim: Preemption, seen: Snapshot) -> PreemptionPlan | None:
        if claim.kind not in seen.kinds:
            return None
        over = over_share(seen)
        return plan_preemption(claim, seen, over, further_candidates(claim, seen) if claim.lease else None)

    def _warn(self, lease: Lease, claim: Preemption, at: float) -> asyncio.Future[None] | None:
        newest = self._registry.get(lease.id)
        if newest is None or newest.phase not in UP or newest.server_started != lease.server_started:
            return None
        notice = EndNotice(claim.id, at, claim_reason(claim, self._allocator.catalog), claim.by)
        return self._allocator.commits.commit(newest, warn_of_claim(newest, notice, claim.by))

    async def _over(self, claim: Preemption, state: PreemptionState, audit: Sequence[AuditLine]) -> Preemption:
        async with self._turn:
            claim = await self.get(claim.id) or claim  # as it is now
            if claim.state is state:
                return claim  # a repeated message
            if not claim.live:
                raise Conflict(f"This claim is over: it was {claim.state.value}. Make another where GPUs are needed.")
            over = replace(claim, state=state, over_at=self._clock.now())
            await self._save(over, audit)
            await self._carry_out()
        await self._allocator.grant_waiting()
        return over

    async def _save(self, claim: Preemption, audit: Sequence[AuditLine] = ()) -> None:
        """Store a claim with its audit. Its GPUs are reserved from now on, unless the store refuses it."""
        before = self._live
        if before.get(claim.id) == claim:
            return
        self._live = {name: one for name, one in {**before, claim.id: claim}.items() if one.live}
        self.changes += 1
        try:
            await self._store.write(self._rows.save, [claim], audit)
        except BaseException:
            self._live = before
            self.changes += 1
            raise
        if claim.live:
            return
        self.outcomes["make_room" if claim.lease else "claim", claim.state.value] += 1
        self._planned.pop(claim.id, None)
        log.info("the claim of %s for %s is %s", claim.by, claimant_of(claim), claim.state.value)

    def _too_many(self, claim: Preemption, seen: Snapshot) -> str:
        """Return sentences about a claim that can't be covered: the largest possible number, and what to do."""
        # If a number can be freed, so can each smaller one: a bisection plans seventeen of a hundred thousand numbers.
        most = bisect_left(
            range(1, claim.count),
            True,  # noqa: FBT003 - the first number that is too large
            key=lambda count: self._plan(replace(claim, count=count), seen) is None,
        )
        where = " on one node" if claim.one_node and claim.count > 1 else ""
        title = gpu_title(claim.kind, self._allocator.catalog)
        sentence = f"You asked for {claim.asked} {title}{where}. At most {most} can be freed now."
        pool = seen.kinds[claim.kind].pool
        here = {gpu.id for gpu in seen.fleet.gpus if gpu.pool == pool}
        young = (x for x in seen.leases if x.phase in UP and is_protected(x, seen))
        protected = [self._protected_until(x, seen) for x in young if any(slot.gpu in here for slot in x.slots)]
        if protected:
            until = show_time(min(protected), seen.now)
            sentence += f" Other workspaces started recently and are protected, the first of them until {until}."
        return f"{sentence} Ask for {f'at most {most}' if most else 'another kind'}, or try again later."

    def _protected_until(self, lease: Lease, seen: Snapshot) -> float:
        policy = policy_of(self._allocator.catalog, lease, seen.now)
        return (lease.running_at or seen.now) + policy.preemption.protected_seconds


def _are_gpus_known(seen: Snapshot, kind: str) -> bool:
    """Return whether the present state of a kind's GPUs is known. Victims are never chosen from an old list of GPUs."""
    fleet = seen.fleet
    return fleet.complete and seen.processes_known and fleet.outage_of_kind(seen.kinds.get(kind)) is None


def new_claim(by: str, now: float, **asked: Any) -> Preemption:
    """Return a requested claim, without GPUs or victims."""
    values: Mapping[str, Any] = {"account": None, "external": "", **asked}
    key = values.get("key") or uuid.uuid4().hex
    return Preemption(id=uuid.uuid4().hex, by=by, made_at=now, asked=values["count"], **{**values, "key": key})


def _asked(claim: Preemption) -> tuple[object, ...]:
    return claim.kind, claim.asked, claim.account, claim.external, claim.one_node, claim.hold_until


def claimant_of(claim: Preemption) -> str:
    """Return the claimant's name for the log and the audit."""
    return claim.external or claim.user or (f"team {claim.account.team}" if claim.account else "nobody")
