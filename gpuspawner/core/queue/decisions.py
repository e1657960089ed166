"""Grant decisions: which waiting requests get GPUs now, and which rules hold the others back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from heapq import merge
from math import inf
from typing import NamedTuple, Protocol

from gpuspawner.core.gpus.fleet import GpuKind, HostResources, Slot
from gpuspawner.core.gpus.placement import accepted_kinds, host_resources_of, place, used_shares
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.queue.backfill import (
    BACKFILL,
    ExpectedRelease,
    Fit,
    Reservation,
    Unfit,
    backfill_end,
    blocking_reservation,
    find_fit,
    preemption_reservations,
    reserve,
)
from gpuspawner.core.queue.class_holds import HeldGpus, class_hold_reservations
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import QueueLine, QueueOrder
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.budgets import BudgetBalances, ClaimBudgets
from gpuspawner.core.quotas.limits import Amount, LimitKey, behind_other_sentence
from gpuspawner.core.quotas.usage import QuotaBlock, QuotaTally
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.text_fields import SOONEST

PAUSED = "paused"
"""The rule that holds a request back while an administrator pauses grants."""


class Grant(NamedTuple):
    """A grant to make now. ``kind`` is the granted kind, None without a GPU. ``latest_end`` bounds its end."""

    claim: Claim
    slots: tuple[Slot, ...]
    kind: str | None = None
    latest_end: LatestEnd | None = None

    @property
    def substitute(self) -> str:
        """The granted kind if it differs from the requested kind, else ""."""
        return self.kind if self.kind and self.kind != self.claim.request.gpu else ""


class BlockingRule(NamedTuple):
    """Which rule holds a request back, and the sentence for its user."""

    rule: str
    words: str


@dataclass(frozen=True)
class Decision:
    """The grants to make now in order, the requests that a rule holds back by lease id, and the reservations."""

    grants: tuple[Grant, ...] = ()
    wait_reasons: Mapping[str, BlockingRule] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()


class ClusterLimits(Protocol):
    """Limits of the cluster on other resources than GPUs, for example of a namespace. They hold back whole pools."""

    def wait_reason(self, claim: Claim, slots: Sequence[Slot]) -> BlockingRule | None:
        """Return the limit that leaves too little for a request on these GPUs, or None."""
        ...

    def take(self, claim: Claim, slots: Sequence[Slot]) -> None:
        """Take a grant into account."""
        ...


def starts_under_way(leases: Iterable[Lease]) -> Counter[str]:
    """Return the number of starts under way by user: granted, and not running yet.

    A start that waits for a new node does not count: nothing starts for it yet, and it may wait for many minutes.
    """
    return Counter(
        x.key.user_created for x in leases if x.phase in {Phase.RESERVED, Phase.STARTING} and not _comes(x.slots)
    )


def _comes(slots: Iterable[Slot]) -> bool:
    return any(slot.is_coming for slot in slots)


def decide(
    seen: Snapshot, limits: ClusterLimits | None = None, also: Claim | None = None, index: Index | None = None,
    balances: BudgetBalances | None = None, held: Iterable[HeldGpus] | None = None,
) -> Decision:  # fmt: skip
    """Return the grants to make now, the requests that a rule holds back, and the reservations.

    Args:
        seen: the queue and the cluster now.
        limits: the cluster's limits on other resources.
        also: one more request. It replaces the request with its id.
        index: the index of ``seen``, if one is kept.
        balances: the budget balances, if a forecast keeps them.
        held: the GPUs of class holds, if a forecast keeps them.

    Returns:
        An empty decision if it is not known which workspaces run.
    """
    if not seen.processes_known:
        return Decision()
    index = index or Index(seen)
    claims = index.claims if also is None else {**index.claims, also.id: also}
    if not claims:
        return Decision(reservations=preemption_reservations(seen, ()))
    return _Pass(seen, index, claims.values(), limits, ClaimBudgets(seen, balances), held).run()


class _Pass:
    """One pass over the waiting requests."""

    def __init__(
        self, seen: Snapshot, index: Index, claims: Collection[Claim], limits: ClusterLimits | None,
        budgets: ClaimBudgets, held: Iterable[HeldGpus] | None,
    ) -> None:  # fmt: skip
        self._seen, self._index, self._limits = seen, index, limits
        self._pools, self._claims = index.pools, claims
        self._taken: list[tuple[tuple[Slot, ...], HostResources]] = []
        """GPUs and host resources that this pass takes from the pools, and gives back at its end."""
        self._tally, self._uses = QuotaTally(seen, index.holdings), FairShareUsage(seen, index.charges)
        self._standing = QueueOrder(seen, self._tally, self._uses)
        self._budgets = budgets
        self._starts = starts_under_way(index.starts.values())
        self._under_way = self._starts.total()
        self._grants: list[Grant] = []
        self._held: dict[str, BlockingRule] = {}
        self._reservations = [*preemption_reservations(seen, claims), *class_hold_reservations(seen, claims, held)]
        self._keeps = bool(self._reservations)
        """Whether the rules reserve GPUs."""
        self._reserved: set[str] = set()
        """Pools in which a request has reserved GPUs."""
        self._closed: dict[str, BlockingRule] = {}
        """Pools in which a limit of the cluster has held a request back."""
        self._first_in: dict[LimitKey, QuotaBlock] = {}
        """The quota violation of the first request that a limit holds back."""
        self._promised: dict[LimitKey, tuple[Amount, float]] = {}
        """The amount of a limit that requests with reserved GPUs will need, and when."""
        self._unfit: set[Unfit] = set()
        """Requests that did not fit earlier in this pass."""
        self._largest = lru_cache(maxsize=None)(self._pools.largest)

    def run(self) -> Decision:
        line = QueueLine(self._claims, self._standing)
        try:
            while (claim := line.pop()) is not None:
                if self._seen.may_grant(claim):
                    self._serve(claim)
        finally:
            for slots, needs in reversed(self._taken):
                self._pools.give(slots, needs)
        return Decision(tuple(self._grants), self._held, tuple(self._reservations))

    def _serve(self, claim: Claim) -> None:
        if claim.request.gpu is None:
            self._serve_without_gpu(claim)
            return
        held: BlockingRule | None = None
        fitting: list[GpuKind] = []
        for kind in self._in_order(claim):
            if self._is_away(kind):
                continue  # free GPUs may be in use by now; pages show the outage
            largest = self._largest(kind.pool, one_domain=requires_domain(claim.request, kind))
            if (paused := self._paused(kind)) or claim.request.count > largest:
                held = held or paused
                continue  # nothing that ends could serve it: it keeps nothing from others
            if (block := self._find_block(claim, kind)) is not None:
                held = held or block
                continue
            found = self._fit(claim, kind)
            if found is None:
                fitting.append(kind)
            elif (over := self._over_the_place(claim, kind, found.slots)) is not None:
                held = held or over
            else:
                self._give(claim, kind, found)
                return
        if fitting:
            self._let_wait(claim, fitting)
        elif held is not None:
            self._held[claim.id] = held

    def _in_order(self, claim: Claim) -> Sequence[GpuKind]:
        """Return the kinds that a request accepts, if it is to start soonest with GPUs of existing nodes first."""
        kinds = accepted_kinds(claim.request, self._seen.kinds)
        if claim.request.place != SOONEST or len(kinds) == 1:
            return kinds
        fits = {kind.name: self._fit(claim, kind) for kind in kinds}
        seconds = {kind.name: kind.autoscale.start_seconds for kind in kinds if kind.autoscale is not None}
        return sorted(
            kinds, key=lambda kind: seconds[kind.name] if (fit := fits[kind.name]) and _comes(fit.slots) else 0.0
        )

    def _let_wait(self, claim: Claim, fitting: Sequence[GpuKind]) -> None:
        if self._keeps:
            self._note_kept_from(claim, fitting)
        self._reserve(claim, fitting)

    def _paused(self, kind: GpuKind | None) -> BlockingRule | None:
        words = self._seen.paused_words(kind.name if kind else None)
        return BlockingRule(PAUSED, words) if words else None

    def _is_away(self, kind: GpuKind | None) -> bool:
        return self._seen.fleet.outage_of_kind(kind) is not None

    def _fit(self, claim: Claim, kind: GpuKind) -> Fit | None:
        if not self._pools.has_free(kind.pool):
            return None  # most of a long line find nothing left
        return find_fit(claim, kind, self._pools, self._reservations, self._seen.now, self._unfit)

    def _note_kept_from(self, claim: Claim, fitting: Iterable[GpuKind]) -> None:
        kept = (blocking_reservation(claim, kind, self._pools, self._reservations) for kind in fitting)
        if (first := next((one for one in kept if one is not None), None)) is not None:
            self._held[claim.id] = BlockingRule(first.rule, first.words)

    def _serve_without_gpu(self, claim: Claim) -> None:
        if self._is_away(None):
            return
        held = self._paused(None) or self._find_block(claim, None) or self._over_the_place(claim, None, ())
        if held is not None:
            self._held[claim.id] = held
        elif self._may_start(claim):
            self._give(claim, None, Fit(()))

    def _may_start(self, claim: Claim) -> bool:
        seen = self._seen
        return self._under_way < seen.most_starts and self._starts[claim.user_created] < seen.most_starts_each

    def _give(self, claim: Claim, kind: GpuKind | None, found: Fit) -> None:
        if self._may_start(claim):
            self._starts[claim.user_created] += not _comes(found.slots)
            self._under_way += not _comes(found.slots)
            bounds = [one for one in (found.latest_end, self._until_promised(claim, kind)) if one is not None]
            end = min(bounds, key=lambda one: one.at) if bounds else None
            self._grants.append(Grant(claim, found.slots, kind.name if kind else None, end))
        self._pools.take(found.slots, host_resources_of(claim.request))
        self._taken.append((found.slots, host_resources_of(claim.request)))
        self._tally.take(claim, kind)
        self._budgets.take(claim, kind)
        self._uses.charge(claim, kind)
        if self._limits is not None:
            self._limits.take(claim, found.slots)

    def _find_block(self, claim: Claim, kind: GpuKind | None) -> BlockingRule | None:
        if (over := self._budgets.wait_reason(claim, kind)) is not None:
            return BlockingRule(*over)
        block = self._tally.find_block(claim, kind)
        if block is not None:
            self._first_in.setdefault(block.limit_key, block)
            return BlockingRule(block.rule, block.words)
        end = self._seen.now + claim.request.lifetime_seconds
        for bound, asked in self._tally.takes(claim, kind) if self._first_in or self._promised else ():
            rule = f"quota {bound.entry.name}"
            first = self._first_in.get(bound.limit_key)
            promised, needed_at = self._promised.get(bound.limit_key, (0, inf))
            if first is not None and end > first.clears_at:
                return BlockingRule(rule, behind_other_sentence(rule))
            if bound.hard is not None and end > needed_at and not self._tally.leaves(bound, asked + promised):
                return BlockingRule(rule, behind_other_sentence(rule))
        return None

    def _until_promised(self, claim: Claim, kind: GpuKind | None) -> LatestEnd | None:
        found = inf
        for bound, asked in self._tally.takes(claim, kind):
            if (first := self._first_in.get(bound.limit_key)) is not None:
                found = min(found, first.clears_at)
            promised, needed_at = self._promised.get(bound.limit_key, (0, inf))
            if bound.hard is not None and not self._tally.leaves(bound, asked + promised):
                found = min(found, needed_at)
        return None if found == inf else backfill_end(found, self._seen.now)

    def _over_the_place(self, claim: Claim, kind: GpuKind | None, slots: Sequence[Slot]) -> BlockingRule | None:
        pool = kind.pool if kind else ""
        held = None if self._limits is None else self._limits.wait_reason(claim, slots)
        if held is not None:
            self._closed.setdefault(pool, held)
            return held
        first = self._closed.get(pool)
        return None if first is None else BlockingRule(first.rule, behind_other_sentence(first.rule))

    def _reserve(self, claim: Claim, kinds: Sequence[GpuKind]) -> None:
        open_to = [kind for kind in kinds if kind.pool not in self._reserved]
        if not open_to:
            return
        found = reserve(claim, open_to, self._pools, self._endings, self._reservations)
        if found is None:
            return
        kind, reservation = found
        self._reservations.append(
            replace(reservation, claim_ids=reservation.claim_ids | self._kept_now_for(reservation))
        )
        self._reserved.add(kind.pool)
        needed_at = inf if reservation.at is None else reservation.at
        for bound, asked in self._tally.takes(claim, kind):
            if bound.hard is None:
                continue
            promised, at = self._promised.get(bound.limit_key, (0, inf))
            self._promised[bound.limit_key] = promised + asked, min(at, needed_at)

    def _kept_now_for(self, reservation: Reservation) -> frozenset[str]:
        """Return the requests that a class hold or a preemption keeps the same GPUs for. They keep their right to them.

        Where it is not known when GPUs come free, those are reserved that others keep.
        """
        gpus = {slot.gpu for slot in reservation.slots}
        kept = (x for x in self._reservations if x.rule != BACKFILL and x.at is not None and x.at <= self._seen.now)
        return frozenset(name for one in kept if gpus & {slot.gpu for slot in one.slots} for name in one.claim_ids)

    def _endings(self, pool: str) -> Iterable[ExpectedRelease]:
        now, ends = self._seen.now, self._index.ends.get(pool)
        of_leases = (
            ExpectedRelease(at, x.slots, x.request) for at, _, x in (ends.coming(now) if ends is not None else ())
        )
        new = (
            ExpectedRelease(now + x.claim.request.lifetime_seconds, x.slots, x.claim.request)
            for x in self._grants
            if x.kind
        )
        return merge(of_leases, sorted(new, key=_at), key=_at)


def _at(ending: ExpectedRelease) -> float:
    return ending.at


class ReservedForOthers(NamedTuple):
    """``free`` GPUs that are reserved for a request that goes first and asks for ``first`` GPUs.

    A workspace that ends before ``until`` (seconds since the epoch) may use them now. ``until`` is None if it is not
    known when the other request needs them.
    """

    free: int
    first: int
    until: float | None


def reserved_for_others(claim: Claim, seen: Snapshot, reservations: Iterable[Reservation]) -> ReservedForOthers | None:
    """Return the free GPUs that are kept from a request, or None if it gets them or could not use them.

    Args:
        claim: the request.
        seen: the snapshot of the decision.
        reservations: the reservations of the decision.
    """
    kind = seen.kinds.get(claim.request.gpu or "")
    others = [one for one in reservations if claim.id not in one.claim_ids]
    first = next((one for one in others if kind is not None and _keeps_free(one, kind, seen)), None)
    if kind is None or first is None:
        return None
    rest = [slot for one in others if one is not first for slot in one.slots]
    if _fits(claim, kind, seen, [*rest, *first.slots]) or not _fits(claim, kind, seen, rest):
        return None
    free = sum(seen.used.get(slot.gpu, Fraction(0)) + slot.share <= 1 for slot in first.slots)
    return ReservedForOthers(free, len(first.slots), first.at)


def _keeps_free(one: Reservation, kind: GpuKind, seen: Snapshot) -> bool:
    if one.rule != BACKFILL:
        return False
    gpus = seen.placement_fleet.by_id
    mine = (slot for slot in one.slots if slot.gpu in gpus and gpus[slot.gpu].pool == kind.pool)
    return any(seen.used.get(slot.gpu, Fraction(0)) + kind.share <= 1 for slot in mine)


def _fits(claim: Claim, kind: GpuKind, seen: Snapshot, kept: Iterable[Slot]) -> bool:
    used: Mapping[str, Fraction] = used_shares((), [*kept, *(Slot(gpu, share) for gpu, share in seen.used.items())])
    needs, left = host_resources_of(claim.request), seen.host_resources_left
    request, fleet = claim.request, seen.placement_fleet
    found = place(
        kind, request.count, fleet, used, claim.tried_nodes, needs=needs, left=left, topology=request.topology
    )
    return found is not None
