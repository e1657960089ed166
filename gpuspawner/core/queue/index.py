"""Data that decisions derive from a snapshot, kept from one snapshot to the next. Only changes are processed.

Of tens of thousands of leases and GPUs few change between two decisions. They are frozen, so an identical object is
unchanged, and other objects are compared. An index that has seen many snapshots equals one that has seen only the last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from gpuspawner.core.gpus.fleet import NO_HOST_RESOURCES, Fleet, Gpu, HostResources, Kinds, NodeName, Slot
from gpuspawner.core.gpus.placement import host_resources_of
from gpuspawner.core.gpus.pools import Pools, coming_gpus, is_marked, move_marks_to_free_gpus
from gpuspawner.core.leases.lease import HOLDING, WAITING, Lease, Phase
from gpuspawner.core.queue.fair_share import LeaseCharges
from gpuspawner.core.queue.snapshot import Claim, LeaseEnds, Snapshot, changed_leases, claim_of
from gpuspawner.core.quotas.budgets import BudgetBalances
from gpuspawner.core.quotas.usage import QuotaUsage
from gpuspawner.core.rules import Accounts, QuotaGrant, Rules

NO_POOL = ""
"""The pool of leases without a GPU in the fleet."""
_AT_ONCE = 512
KEPT_SECONDS = 1.0
"""How long budget balances are kept. The use in this time is small compared with the reserved amounts."""
_T = TypeVar("_T", Lease, Gpu)
_matters = attrgetter(
    "phase", "slots", "deadline_at", "request", "given", "rate", "running_at", "billed_until", "latest_end", "lost",
    "key", "user", "asked_at", "attempt", "not_before", "tried_nodes", "waiting_since", "wait_reason",
    "blocked_seconds", "impossible_since", "came_back", "queue_move",
)  # fmt: skip
"""The fields of a lease that decisions depend on. Samples and heartbeats change none of them."""


class Index:
    """Data derived from the leases and GPUs of the last snapshot. A pass that changes ``pools`` restores them."""

    def __init__(self, seen: Snapshot) -> None:
        self._begin(seen)
        self.see(seen)

    def _begin(self, seen: Snapshot) -> None:
        self._known_by = index_basis(seen)
        self._leases: Collection[Lease] = ()
        self._gpus: tuple[Gpu, ...] = ()
        self._others: tuple[Slot, ...] = ()
        self._host_resources, self._taken = Fleet().host_resources, dict[NodeName, HostResources]()
        self._gpu: dict[str, Gpu] = {}
        self._on: dict[NodeName, dict[str, Gpu]] = {}
        self._marked: set[NodeName] = set()
        """Nodes with a count of foreign or unhealthy GPUs: see ``gpus.pools.move_marks_to_free_gpus``."""
        self._again: set[NodeName] = set()
        """Nodes whose GPUs have to be checked again."""
        self._unseen: dict[str, Lease] = {}
        """Leases with GPUs that are not in the fleet."""
        self._scaled = [kind for kind in seen.kinds.values() if kind.autoscale is not None]
        self._coming: set[NodeName] | None = None
        self.pools = Pools(Fleet(), {})
        self.holdings = QuotaUsage(*self._known_by, seen.now)
        self.charges = LeaseCharges(seen.kinds)
        self.ends: dict[str, LeaseEnds] = {}
        """The ends by pool. Leases without a GPU are under NO_POOL."""
        self.claims: dict[str, Claim] = {}
        """The waiting requests by lease id."""
        self.starts: dict[str, Lease] = {}
        """The leases that are granted and do not run yet."""
        self.ended: list[Lease] = []
        """The leases of the previous snapshot that held something and are gone."""

    def see(self, seen: Snapshot) -> None:
        """Take in a snapshot."""
        if index_basis(seen) != self._known_by:
            self._begin(seen)
        gone, come = changed_items(self._gpus, seen.fleet.gpus)
        if self._move(gone, come):  # of a lease's GPUs some came or went
            self._begin(seen)
            gone, come = [], list(seen.fleet.gpus)
            self._move(gone, come)
        self._gpus = seen.fleet.gpus
        self.pools.complete, self.pools.demand = seen.fleet.complete, seen.demand
        unseen = dict(self._unseen)
        self._take_in_leases(seen)
        if seen.others != self._others:
            self._use(self._others, -1)
            self._use(seen.others, 1)
            self._others = seen.others
        self._take_in_host_resources(seen)
        for node in self._again:
            gpus = sorted(self._on.get(node, {}).values(), key=lambda gpu: (gpu.index, gpu.id))
            self.pools.put_node(node, move_marks_to_free_gpus(Fleet(tuple(gpus)), self.pools.used).gpus)
        self._again.clear()
        if self._scaled and (gone or come or unseen != self._unseen or self._coming is None):
            self._let_come()
        self.charges.go_to(seen.now)

    def _move(self, gone: Iterable[Gpu], come: Iterable[Gpu]) -> bool:
        before = {gpu.id: gpu for gpu in gone}
        for gpu in before.values():
            self._on[gpu.on].pop(gpu.id)
            del self._gpu[gpu.id]
            self._again.add(gpu.on)
        for gpu in come:
            was = before.pop(gpu.id, None)
            if gpu.id in self.pools.used and (was is None or (was.pool, was.on) != (gpu.pool, gpu.on)):
                return True
            self._on.setdefault(gpu.on, {})[gpu.id] = gpu
            self._gpu[gpu.id] = gpu
            self._again.add(gpu.on)
        for node in self._again:
            marked = any(gpu.group and is_marked(gpu) for gpu in self._on[node].values())
            (self._marked.add if marked else self._marked.discard)(node)
        return any(name in self.pools.used for name in before)

    def _take_in_leases(self, seen: Snapshot) -> None:
        gone, come = changed_items(*changed_leases(self._leases, seen.leases))
        self._leases = seen.leases
        new = {lease.id: lease for lease in come}
        self.ended = [lease for lease in gone if lease.phase in HOLDING and lease.id not in new]
        for lease in gone:
            after = new.get(lease.id)
            if after is not None and _matters(after) == _matters(lease) and lease.phase is not Phase.RECLAIMING:
                del new[lease.id]
            else:
                self._remove(lease)
        for lease in new.values():
            self._add(lease, seen)

    def _add(self, lease: Lease, seen: Snapshot) -> None:
        self.holdings.add(lease)
        if lease.phase in WAITING:
            self.claims[lease.id] = claim_of(lease)
        elif lease.phase in HOLDING:
            self._use(lease.slots, 1)
            self._need(lease, 1)
            self.charges.add(lease, seen.now)
            for pool in self._pools_of(lease):
                self.ends.setdefault(pool, LeaseEnds()).add(lease)
            if lease.phase in {Phase.RESERVED, Phase.STARTING}:
                self.starts[lease.id] = lease
            if any(slot.gpu not in self._gpu for slot in lease.slots):
                self._unseen[lease.id] = lease

    def _remove(self, lease: Lease) -> None:
        if lease.phase in WAITING:
            del self.claims[lease.id]
        self.holdings.remove(lease)
        if lease.phase in HOLDING:
            self._use(lease.slots, -1)
            self._need(lease, -1)
            self.charges.remove(lease)
            for pool in self._pools_of(lease):
                self.ends[pool].remove(lease)
            self.starts.pop(lease.id, None)
            self._unseen.pop(lease.id, None)

    def _pools_of(self, lease: Lease) -> set[str]:
        return {gpu.pool for slot in lease.slots if (gpu := self._gpu.get(slot.gpu)) is not None} or {NO_POOL}

    def _use(self, slots: Iterable[Slot], sign: int) -> None:
        if sign > 0:
            self.pools.take(slots)
        else:
            self.pools.give(slots)
        if self._marked:
            on = (gpu.on for slot in slots if (gpu := self._gpu.get(slot.gpu)) is not None)
            self._again |= self._marked.intersection(on)

    def _need(self, lease: Lease, sign: int) -> None:
        gpu = self._gpu.get(lease.slots[0].gpu) if lease.slots else None
        if gpu is not None:
            taken, needs = self._taken.get(gpu.on, NO_HOST_RESOURCES), host_resources_of(lease.request)
            self._taken[gpu.on] = HostResources(taken.cpu + sign * needs.cpu, taken.memory + sign * needs.memory)
            if gpu.on in self._host_resources:
                self._leave(gpu.on)

    def _take_in_host_resources(self, seen: Snapshot) -> None:
        before, self._host_resources = self._host_resources, seen.fleet.host_resources
        if before is not self._host_resources and before != self._host_resources:
            for node in before.keys() | self._host_resources.keys():
                if before.get(node) != self._host_resources.get(node):
                    self._leave(node)

    def _leave(self, node: NodeName) -> None:
        has, taken = self._host_resources.get(node), self._taken.get(node, NO_HOST_RESOURCES)
        left = None if has is None else HostResources(has.cpu - taken.cpu, has.memory - taken.memory)
        self.pools.put_left(node, left)

    def _let_come(self) -> None:
        names = {kind.pool for kind in self._scaled}
        there = [gpu for gpu in self._gpus if gpu.pool in names]
        on: dict[NodeName, list[Gpu]] = {}
        for gpu in coming_gpus(self._scaled, there, self._unseen.values()):
            on.setdefault(gpu.on, []).append(gpu)
        for node in (self._coming or set()) | on.keys():
            self.pools.put_node(node, on.get(node, ()))
        self._coming = set(on)


def index_basis(seen: Snapshot) -> tuple[Kinds, Rules, tuple[QuotaGrant, ...]]:
    """Return the rules that all derived data depends on."""
    grants = tuple(one for one in seen.quota_grants if one.since <= seen.now < one.until)
    return seen.kinds, seen.rules, grants


def changed_items(before: Sequence[_T], after: Sequence[_T]) -> tuple[list[_T], list[_T]]:
    """Return the removed items and the new items. A changed item is in both lists.

    Slices of some hundreds of items are compared first. If one item was removed or added, the comparison goes on behind
    it. If more have moved, the rest is compared by id.
    """
    gone: list[_T] = []
    come: list[_T] = []
    old, new = 0, 0
    while before is not after and (old < len(before) or new < len(after)):
        one, other = before[old : old + _AT_ONCE], after[new : new + _AT_ONCE]
        if one == other:
            old, new = old + len(one), new + len(other)
            continue
        for was, now in zip(one, other):  # noqa: B905 - they may differ in length
            if was.id != now.id:
                break
            if was is not now and was != now:
                gone.append(was)
                come.append(now)
            old, new = old + 1, new + 1
        if old == len(before) or new == len(after):
            gone.extend(before[old:])
            come.extend(after[new:])
            break
        if before[old].id == after[new].id:
            continue
        if old + 1 < len(before) and before[old + 1].id == after[new].id:
            gone.append(before[old])
            old += 1
        elif new + 1 < len(after) and after[new + 1].id == before[old].id:
            come.append(after[new])
            new += 1
        else:
            return _by_name(before[old:], after[new:], gone, come)
    return gone, come


def _by_name(before: Sequence[_T], after: Sequence[_T], gone: list[_T], come: list[_T]) -> tuple[list[_T], list[_T]]:
    old = {one.id: one for one in before}
    new = {one.id: one for one in after}
    gone += (one for name, one in old.items() if new.get(name) != one)
    come += (one for name, one in new.items() if old.get(name) != one)
    return gone, come


class QuotaUsageCache:
    """The use of quotas by leases, kept from one snapshot to the next."""

    def __init__(self) -> None:
        self._known_by: object = None
        self._leases: Collection[Lease] = ()
        self._holdings: QuotaUsage | None = None

    def of(self, seen: Snapshot) -> QuotaUsage:
        """Return the use of quotas in a snapshot."""
        known_by = index_basis(seen)
        if self._holdings is None or known_by != self._known_by:
            self._holdings, self._known_by, self._leases = QuotaUsage(*known_by, seen.now), known_by, ()
        gone, come = changed_items(*changed_leases(self._leases, seen.leases))
        self._leases = seen.leases
        for lease in gone:
            self._holdings.remove(lease)
        for lease in come:
            self._holdings.add(lease)
        return self._holdings


class BudgetBalancesCache:
    """Budget balances, kept from one question to the next. Only changed leases are counted again."""

    def __init__(self) -> None:
        self._known_by: tuple[object, ...] = ()
        self._leases: Collection[Lease] = ()
        self._balances: BudgetBalances | None = None
        self._of: object = None
        """Keeps the objects alive whose identity is compared."""

    def of(
        self, now: float, leases: Collection[Lease], rules: Rules, accounts: Accounts, grants: tuple[QuotaGrant, ...]
    ) -> BudgetBalances:
        """Return the balances, at most ``KEPT_SECONDS`` old, with all changes of leases since."""
        known_by = (id(rules), id(accounts.charged), grants)
        kept = self._balances
        if kept is None or known_by != self._known_by or not 0 <= now - kept.now < KEPT_SECONDS:
            kept = self._balances = BudgetBalances(now, (), rules, accounts, grants)
            self._known_by, self._leases, self._of = known_by, (), (rules, accounts)
        if kept.bind:
            gone, come = changed_items(*changed_leases(self._leases, leases))
            self._leases = leases
            for lease in gone:
                kept.remove(lease)
            for lease in come:
                kept.add(lease)
        return kept
