"""Back-fill: GPUs reserved for the first request of a pool, or by rules, and how later requests pass them.

A later request may use GPUs that are not reserved for others. It may also use reserved GPUs that it gives back before
they are needed. Then its end is bounded. If it is not known when they are needed, it may not use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import NO_HOST_RESOURCES, Gpu, GpuKind, HostResources, NodeName, Slot
from gpuspawner.core.gpus.placement import host_resources_of
from gpuspawner.core.gpus.pools import Pools
from gpuspawner.core.gpus.topology import requires_domain, smallest_sufficient_domain
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.rules import Account, LatestEnd
from gpuspawner.core.units import show_time

BACKFILL, PREEMPTION, HOLD = "backfill", "stronger claim", "hold"


@dataclass(frozen=True)
class Reservation:
    """GPUs that are reserved for requests (``claim_ids``) from a time on. ``at`` is None if the time is not known.

    Others may use them before that time if they end by themselves. For a hold their end may also be bounded, because it
    is known long before. ``words`` tell others why they do not get free GPUs. ``end`` is the bound on their end.
    """

    slots: tuple[Slot, ...]
    at: float | None
    claim_ids: frozenset[str]
    rule: str = BACKFILL
    words: str = ""
    end: LatestEnd | None = None


class ExpectedRelease(NamedTuple):
    """GPUs that come free at a time, and the request whose host resources come free with them."""

    at: float
    slots: tuple[Slot, ...]
    request: Request


class Fit(NamedTuple):
    """GPUs for a request, and the bound on its end."""

    slots: tuple[Slot, ...]
    latest_end: LatestEnd | None = None


def preemption_reservations(seen: Snapshot, claims: Iterable[Claim]) -> tuple[Reservation, ...]:
    """Return the GPUs that are kept for preemptions as reservations."""
    waiting = tuple(claims)
    return tuple(
        Reservation(
            kept.slots,
            seen.now,
            frozenset(x.id for x in waiting if _is_account_of(kept.account, x)),
            PREEMPTION,
            "The free GPUs are reserved for a request with priority.",
        )
        for kept in seen.kept
    )


def _is_account_of(account: Account | None, claim: Claim) -> bool:
    if account is None:
        return False
    return account.team in {"", claim.request.team} and account.user_created in {"", claim.user_created}


Unfit = tuple[str, int, HostResources, str, frozenset[int]]
"""A kind, a number of GPUs, host resources, a topology, and the numbers of the reservations that do not apply."""


def find_fit(
    claim: Claim, kind: GpuKind, pools: Pools, reservations: Iterable[Reservation], now: float,
    known: set[Unfit],
) -> Fit | None:  # fmt: skip
    """Return the GPUs that a request gets now, or None.

    GPUs that are not reserved come first, then GPUs that others need no sooner than the request ends. ``known`` holds
    the requests that did not fit earlier in the pass. Nothing comes free during a pass.
    """
    count, until, needs = claim.request.count, now + claim.request.lifetime_seconds, host_resources_of(claim.request)
    reservations = list(reservations)
    free_of = frozenset(
        number
        for number, one in enumerate(reservations)
        if claim.id in one.claim_ids or (one.at is not None and _least_end(claim, one, now) <= one.at)
    )
    unfit = kind.name, count, needs, claim.request.topology, free_of
    if unfit in known:
        return None
    found = _fit(claim, kind, pools, reservations, until, now)
    if found is None:
        known.add(unfit)
    return found


def _fit(
    claim: Claim, kind: GpuKind, pools: Pools, reservations: Iterable[Reservation], until: float, now: float
) -> Fit | None:
    count, needs = claim.request.count, host_resources_of(claim.request)
    others = [one for one in reservations if claim.id not in one.claim_ids]
    slots = pools.find(kind, count, claim.tried_nodes, _shares(others), needs, claim.request.topology)
    if slots is not None:
        return Fit(slots)
    passed = [one for one in others if one.at is not None and _least_end(claim, one, now) <= one.at]
    for at in sorted({one.at for one in passed if one.at is not None}, reverse=True):  # as late a bound as can be
        free = [one for one in passed if (one.at or 0) >= at]
        kept = _shares(x for x in others if x not in free)
        slots = pools.find(kind, count, claim.tried_nodes, kept, needs, claim.request.topology)
        if slots is not None:
            return Fit(slots, _bound(slots, free, until, now))
    return None


def blocking_reservation(
    claim: Claim, kind: GpuKind, pools: Pools, reservations: Iterable[Reservation]
) -> Reservation | None:
    """Return the preemption or hold that keeps free GPUs from a request, or None if too few GPUs are free."""
    others = [one for one in reservations if claim.id not in one.claim_ids]
    kept = [one for one in others if one.rule != BACKFILL]
    if not kept:
        return None
    shares, needs = _shares(one for one in others if one.rule == BACKFILL), host_resources_of(claim.request)
    slots = pools.find(kind, claim.request.count, claim.tried_nodes, shares, needs, claim.request.topology)
    given = {slot.gpu for slot in slots or ()}
    return next((one for one in kept if given & {slot.gpu for slot in one.slots}), None)


def _least_end(claim: Claim, reservation: Reservation, now: float) -> float:
    request = claim.request
    least = request.least_lifetime_seconds or request.lifetime_seconds
    return now + (least if reservation.rule == HOLD else request.lifetime_seconds)


def _bound(slots: Iterable[Slot], passed: Iterable[Reservation], until: float, now: float) -> LatestEnd | None:
    given = {slot.gpu for slot in slots}
    bounds = [
        one.end or backfill_end(one.at, now)
        for one in passed
        if one.at is not None
        and given & {slot.gpu for slot in one.slots}
        and not (one.rule == HOLD and until <= one.at)
    ]
    return min(bounds, key=lambda one: one.at, default=None)


def backfill_end(at: float, now: float) -> LatestEnd:
    """Return the bound on the end of a request that passes one that goes first."""
    words = f"ends by {show_time(at, now)}, because a request ahead of it needs its GPUs then"
    return LatestEnd(at, BACKFILL, words)


def reserve(
    claim: Claim, kinds: Iterable[GpuKind], pools: Pools, endings: Callable[[str], Iterable[ExpectedRelease]],
    reservations: Iterable[Reservation],
) -> tuple[GpuKind, Reservation] | None:  # fmt: skip
    """Return the kind with which a request starts first, and the GPUs to reserve for it.

    ``endings`` returns the ends in a pool, the earliest first. The result is None if no node is large enough.
    """
    others = _shares(one for one in reservations if claim.id not in one.claim_ids)
    found: list[tuple[float, int, GpuKind, tuple[Slot, ...]]] = []
    for number, kind in enumerate(kinds):
        first = _Freeing(kind, claim.request, pools, others).first(endings(kind.pool))
        if first is not None:
            found.append((first[0], number, kind, first[1]))
    if not found:
        return None
    at, _, kind, slots = min(found, key=lambda one: one[:2])
    return kind, Reservation(slots, None if at == inf else at, frozenset({claim.id}))


class _Freeing:
    """The GPUs that come free for a request by node, while leases end."""

    def __init__(self, kind: GpuKind, request: Request, pools: Pools, others: Mapping[str, Fraction]) -> None:
        self._kind, self._count, self._needs = kind, request.count, host_resources_of(request)
        self._one_domain = requires_domain(request, kind)
        self._pools, self._others = pools, others
        self._freed: dict[str, Fraction] = {}
        self._free_on: dict[NodeName, dict[str, Gpu]] = {}
        self._given_back: dict[NodeName, HostResources] = {}

    def first(self, endings: Iterable[ExpectedRelease]) -> tuple[float, tuple[Slot, ...]] | None:
        """Return when a node first has enough GPUs, and these GPUs; of the node that lacks least if no end is known.

        A node with enough CPU and memory is preferred, even if it comes later. GPUs that are in use now are reserved
        first, so that free GPUs stay free for others.
        """
        lacking: tuple[float, tuple[Slot, ...]] | None = None
        for ending in endings:
            for node in self._end(ending):
                free = list(self._usable(self._free_on[node].values()))
                if len(free) < self._count or not (lacking is None or self._holds(node)):
                    continue
                free.sort(key=lambda gpu: (gpu.id not in self._pools.used, gpu.index, gpu.id))
                found = ending.at, tuple(Slot(gpu.id, self._kind.share) for gpu in free[: self._count])
                if self._holds(node):
                    return found
                lacking = found
        return lacking or self._lacks_least()

    def _end(self, ending: ExpectedRelease) -> Iterable[NodeName]:
        touched: dict[NodeName, list[Gpu]] = {}
        for slot in ending.slots:
            self._freed[slot.gpu] = self._freed[slot.gpu] + slot.share if slot.gpu in self._freed else slot.share
            where = self._pools.where(slot.gpu)
            if where is not None and where[0] == self._kind.pool:
                touched.setdefault(where[1], [])
        for number, node in enumerate(touched):
            if number == 0 and self._pools.left(node) is not None:
                has, more = self._given_back.get(node, NO_HOST_RESOURCES), host_resources_of(ending.request)
                self._given_back[node] = HostResources(has.cpu + more.cpu, has.memory + more.memory)
            gpus = self._pools.gpus(self._kind.pool, node)
            self._free_on[node] = {gpu.id: gpu for gpu in gpus if self._is_free(gpu)}
        return touched

    def _usable(self, gpus: Iterable[Gpu]) -> Sequence[Gpu]:
        """Return the GPUs of a node of which the request may get its own."""
        return smallest_sufficient_domain(gpus, self._count) if self._one_domain else tuple(gpus)

    def _is_free(self, gpu: Gpu) -> bool:
        used, freed, kept = (some.get(gpu.id) for some in (self._pools.used, self._freed, self._others))
        if kept is None and (used is None or used is freed):
            return True
        if used is not None and freed is None and self._kind.shares == 1:
            return False  # few are shared: fractions are slow
        used = (used or _NONE) - (freed or _NONE)
        return used + (kept or _NONE) + self._kind.share <= 1

    def _holds(self, node: NodeName) -> bool:
        left, more = self._pools.left(node), self._given_back.get(node, NO_HOST_RESOURCES)
        return left is None or (
            left.cpu + more.cpu >= self._needs.cpu and left.memory + more.memory >= self._needs.memory
        )

    def _lacks_least(self) -> tuple[float, tuple[Slot, ...]] | None:
        pool, pools = self._kind.pool, self._pools
        usable = {node: self._usable(pools.gpus(pool, node)) for node in pools.nodes(pool)}
        large = [node for node, gpus in usable.items() if len(gpus) >= self._count]
        if not large:
            return None
        node = min(large, key=lambda node: (-sum(map(self._is_free, usable[node])), node))
        gpus = sorted(usable[node], key=lambda gpu: (not self._is_free(gpu), gpu.index, gpu.id))
        return inf, tuple(Slot(gpu.id, self._kind.share) for gpu in gpus[: self._count])


_NONE = Fraction(0)


def _shares(reservations: Iterable[Reservation]) -> dict[str, Fraction]:
    kept: dict[str, Fraction] = {}
    for one in reservations:
        for slot in one.slots:
            kept[slot.gpu] = kept[slot.gpu] + slot.share if slot.gpu in kept else slot.share
    return kept
