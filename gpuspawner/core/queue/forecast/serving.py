"""Replays the coming ends, and who of those who wait is served at each, in the true order and within the quotas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count as _counter
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import NOTHING, Beside, GpuKind, Slot
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.placement.kinds import kinds_of
from gpuspawner.core.placement.placement import beside_of, used_shares
from gpuspawner.core.queue.ends import Coming, Ends
from gpuspawner.core.queue.forecast.lasting import Lasted
from gpuspawner.core.queue.forecast.replay import Parts, Room, Whole
from gpuspawner.core.queue.holds import HeldGpus, held_from, held_gpus, is_member
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import Line, Lined, Standing, policy_of
from gpuspawner.core.queue.shares import Uses
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.bounds import Bucket
from gpuspawner.core.quotas.purse import Purse
from gpuspawner.core.quotas.quotas import Tally


class Likely(NamedTuple):
    """When workspaces are taken to end, of what may happen in one draw."""

    lasted: Lasted
    draw: int


class Replay:
    """Replays the coming ends, and who is served at each."""

    def __init__(self, seen: Snapshot, index: Index, claims: Sequence[Claim], likely: Likely | None = None) -> None:
        self._seen, self._claims, self._likely = seen, claims, likely
        self._tally, self._uses = Tally(seen, index.holdings), Uses(seen, index.charges)
        self._standing = Standing(seen, self._tally, self._uses)
        self._kinds = {claim.id: _given_now(claim, seen) for claim in claims}
        self._purse = Purse(seen)
        self._newest = {claim.id: claim for claim in claims}
        """Those who still wait. What a line holds of a claim counts only as it is here."""
        self._lines: dict[str, Line] = {}
        self._gates: dict[Bucket, Line] = {}
        """Those that a quota holds back."""
        self._gate_of: dict[str, Bucket] = {}
        self._let_in: dict[str, Bucket] = {}
        """Who was let in of a gate: the next follows once it is served, or waits for GPUs."""
        self._followed: set[str] = set()
        self._closed: dict[str, str] = {}
        """Pools of which somebody waits for more than is free, by id."""
        self._settled: set[str] = set()
        """Of these, those of which nothing but free GPUs has changed since: whoever waits there is still the first."""
        self._served: dict[str, tuple[float, str]] = {}
        self._events: list[tuple[float, int, Claim, str]] = []
        """What happens to those who wait, and the ends of those who were served."""
        self._number = _counter()
        self._at = seen.now
        self._freed: set[str] = set()
        """Pools of which GPUs have come free by now."""
        self._taken: dict[str, tuple[str, Parts]] = {}
        self._ends: dict[str, list[tuple[float, str]]] = {}
        """When those who were served give GPUs of each pool back."""
        waited_for = {kind.pool for kinds in self._kinds.values() for kind in kinds}
        self._pools = index.pools
        self._whole = Whole([*index.denominators, *(kind.share.denominator for kind in seen.kinds.values())])
        self._parts = {kind.name: self._whole.of(kind.share) for kind in seen.kinds.values()}
        held = held_gpus(seen)
        self._later = [one for one in held if one.opening.opens_at > seen.now]
        self._over = sorted(((x.opening.ends_at, seen.kinds[x.hold.kind].pool) for x in self._later), reverse=True)
        """When which pool's GPUs are held no more."""
        self._kept = _kept_at(seen, claims, held)
        kept = used_shares((), (slot for _, slots in self._kept for slot in slots))
        self._rooms = {pool: Room(index.pools, pool, self._whole, kept) for pool in waited_for if pool in index.pools}
        self._coming = {
            pool: Coming(self._ends_in(ends))
            for pool, ends in index.ends.items()
            if pool in self._rooms or self._tally.counts
        }

    def _ends_in(self, ends: Ends) -> Iterator[tuple[float, str, Lease]]:
        if self._likely is None:
            return ends.coming(self._seen.now)
        lasted, draw = self._likely
        return ends.likely(lambda lease: lasted.end_at(lease, self._seen.now, draw))

    def wait(self, name: str) -> float | None:
        """Return how many seconds a claim waits, None where nothing tells."""
        return self._served[name][0] - self._seen.now if name in self._served else None

    def kind_of(self, name: str) -> str:
        """Return the kind that a claim is given; "" where nothing tells."""
        return self._served.get(name, (0.0, ""))[1]

    def in_order(self) -> list[Claim]:
        """Return all claims: as they were served, then the rest as they stand."""
        of_id = {claim.id: claim for claim in self._claims}
        rest = sorted(self._newest.values(), key=self._standing.rank)
        return [*(of_id[name] for name in self._served), *(of_id[claim.id] for claim in rest)]

    def run(self) -> None:
        """Serve all who can be."""
        now, opened = self._seen.now, set()
        for claim in self._claims:
            comes = max(claim.not_before, self._purse.opens_at(claim, self._kinds[claim.id] or (None,)))
            if comes > now:
                self._put_event(comes, claim, "comes")
            else:
                opened |= self._line_up(claim)
                left = policy_of(claim, self._seen).queue.longest_wait_seconds - claim.waited_seconds(now)
                if left >= 0:
                    self._put_event(now + left, claim, "overdue")
        self._serve(opened)
        while self._newest and (at := self._next_at()) < inf:
            self._at, self._freed = max(self._at, at), set()
            opened = self._come_to_pass()
            if opened or not all(map(self._waits_still, self._freed)):
                for pool in self._freed:
                    self._open(pool)
                self._serve(opened | self._freed)

    def _come_to_pass(self) -> set[str]:
        """Let happen what happens by now; return the pools that it opens beside those of which GPUs come free."""
        opened: set[str] = set()
        for coming in self._coming.values():
            for lease in coming.until(self._at):
                opened |= self._ends_of(lease)
        while self._kept and self._kept[-1][0] <= self._at:
            self._free(self._kept.pop()[1], NOTHING)
        while self._over and self._over[-1][0] <= self._at:
            self._freed.add(self._over.pop()[1])
        while self._events and self._events[0][0] <= self._at:
            _, _, claim, what = heappop(self._events)
            opened |= self._happens(claim, what)
        return opened

    def _next_at(self) -> float:
        own = self._events[0][0] if self._events else inf
        kept = [some[-1][0] for some in (self._kept, self._over) if some]
        return min([own, *kept, *(coming.next_at for coming in self._coming.values())])

    def _ends_of(self, lease: Lease) -> set[str]:
        """Let a lease end; return the pools that those wait for who are let in."""
        self._free(lease.slots, self._needs(lease.request))
        return self._give_back(lease)

    def _free(self, slots: Iterable[Slot], beside: Beside) -> None:
        parts: dict[str, list[tuple[str, int]]] = {}
        for slot in slots:
            where = self._pools.where(slot.gpu)
            if where is not None and where[0] in self._rooms:
                parts.setdefault(where[0], []).append((slot.gpu, self._whole.of(slot.share)))
        for pool, some in parts.items():
            self._rooms[pool].give(some, beside)
            self._freed.add(pool)

    def _open(self, pool: str) -> None:
        self._closed.pop(pool, None)
        self._settled.discard(pool)

    def _give_back(self, one: Claim | Lease) -> set[str]:
        """Give back what somebody took of limits; return the pools that those wait for who are let in."""
        opened: set[str] = set()
        buckets = self._tally.give(one)
        if buckets:
            self._settled = {pool for pool in self._settled if not self._takes_of(self._closed[pool], buckets)}
        for bucket in buckets:
            opened |= self._let_next_in(bucket)
        return opened

    def _takes_of(self, name: str, buckets: Collection[Bucket]) -> bool:
        """Whether who waits for GPUs takes of one of these limits: the order may be another then."""
        (kind,) = self._kinds[name]
        return any(bound.bucket in buckets for bound, _ in self._tally.takes(self._newest[name], kind))

    def _waits_still(self, pool: str) -> bool:
        """Whether who waits for GPUs of a pool is still the first, and still finds too few on any node."""
        if pool not in self._settled:
            return False
        claim = self._newest[self._closed[pool]]
        (kind,) = self._kinds[claim.id]
        return not self._rooms[pool].fits(self._parts[kind.name], claim.request.count)

    def _needs(self, request: Request) -> Beside:
        """Return the CPU and memory that a request takes; nothing where no node's are known."""
        return beside_of(request) if self._pools.knows_beside else NOTHING

    def _happens(self, claim: Claim, what: str) -> set[str]:
        """Let something happen to a claim; return the pools that it opens beside those of which GPUs come free."""
        if what == "ends":
            if claim.id in self._taken:
                pool, parts = self._taken.pop(claim.id)
                self._rooms[pool].give(parts, self._needs(claim.request))
                self._freed.add(pool)
            return self._give_back(claim)
        if claim.id not in self._newest:
            return set()
        if what == "overdue":
            if claim.id in self._gate_of:
                return set()  # what could not be granted does not wait
            claim = claim._replace(waiting_since=-inf, waiting_until=inf)
            self._newest[claim.id] = claim
        return self._line_up(claim)

    def _line_up(self, claim: Claim) -> set[str]:
        """Put a claim into the lines that it stands in; return these."""
        pools = {kind.pool for kind in self._kinds[claim.id] if claim.request.count <= self._largest(kind.pool)}
        if claim.request.gpu is None:
            pools = {""}
        for pool in pools:
            if pool not in self._lines:
                self._lines[pool] = Line(Lined(), self._standing)
            self._lines[pool].add(claim)
            self._open(pool)  # it may go before whoever waits there
        return pools

    def _largest(self, pool: str) -> int:
        return self._rooms[pool].largest if pool in self._rooms else 0

    def _serve(self, opened: set[str]) -> None:
        """Serve those who wait for these pools, in order, until nobody of them can be."""
        aside: list[tuple[str, Claim]] = []
        while opened:
            first = self._pop_first(opened)
            if first is None:
                break
            pool, claim = first
            if self._try(claim):
                opened |= self._follow(claim)
            elif claim.id in self._gate_of:
                opened |= self._let_next_in(self._gate_of[claim.id])
            else:
                waits_for = self._close(claim, opened)
                opened.discard(waits_for)
                if waits_for == pool:
                    self._lines[pool].add(claim)
                else:
                    aside.append((pool, claim))
                opened |= self._follow(claim)
        for pool, claim in aside:
            if self._newest.get(claim.id) is claim:
                self._lines[pool].add(claim)
                self._settled.discard(pool)

    def _pop_first(self, opened: set[str]) -> tuple[str, Claim] | None:
        """Take the first of all who stand in the lines of these pools; a pool whose line is empty is closed."""
        heads: list[tuple[str, Claim]] = []
        for pool in sorted(opened):
            claim = self._pop(pool)
            if claim is None:
                opened.discard(pool)
            else:
                heads.append((pool, claim))
        if not heads:
            return None
        first = heads[0] if len(heads) == 1 else min(heads, key=lambda one: self._standing.rank(one[1]))
        for pool, claim in heads:
            if (pool, claim) != first:
                self._lines[pool].add(claim)
        return first

    def _pop(self, pool: str) -> Claim | None:
        line = self._lines.get(pool)
        while line is not None and (claim := line.pop()) is not None:
            if self._newest.get(claim.id) is claim and claim.id not in self._gate_of:
                return claim
        return None

    def _try(self, claim: Claim) -> bool:
        """Serve a claim if it can be; one that a quota holds back is put behind its gate."""
        held: Bucket | None = None
        waits = False
        if claim.request.gpu is None and self._seen.paused_words(None):
            return False
        for kind in self._kinds[claim.id] or ((None,) if claim.request.gpu is None else ()):
            bucket = self._held_back(claim, kind)
            if bucket is not None:
                held = held or bucket
            elif kind is None or self._take(claim, kind):
                self._grant(claim, kind)
                return True
            else:
                waits = True
        if held is not None and not waits:
            self._settled.clear()
            self._gates.setdefault(held, Line(Lined(), self._standing)).add(claim)
            self._gate_of[claim.id] = held
            self._let_in.pop(claim.id, None)
            self._followed.discard(claim.id)
        return False

    def _held_back(self, claim: Claim, kind: GpuKind | None) -> Bucket | None:
        """Return the limit that holds a claim back: it leaves too little, or others wait for it."""
        for bound, asked in self._tally.takes(claim, kind):
            others_wait = bound.bucket in self._gates and self._let_in.get(claim.id) != bound.bucket
            if others_wait or not self._tally.leaves(bound, asked):
                return bound.bucket
        return None

    def _take(self, claim: Claim, kind: GpuKind) -> bool:
        """Take GPUs of a kind for a claim, where they are free and nobody before it waits for more of them."""
        if self._closed.get(kind.pool, claim.id) != claim.id or kind.pool not in self._rooms:
            return False
        needs = self._needs(claim.request)
        parts = self._rooms[kind.pool].take(
            self._parts[kind.name], claim.request.count, needs, held_from(claim, self._later, self._at)
        )
        if parts is None:
            return False
        self._taken[claim.id] = kind.pool, parts
        return True

    def _grant(self, claim: Claim, kind: GpuKind | None) -> None:
        self._settled.clear()
        self._tally.take(claim, kind)
        self._uses.charge(claim, kind)
        self._served[claim.id] = (self._at, kind.name if kind else "")
        del self._newest[claim.id]
        share = 1.0 if self._likely is None else self._likely.lasted.share(claim.id, 0.0, self._likely.draw)
        end = self._at + share * claim.request.lifetime_seconds
        self._put_event(end, claim, "ends")
        if kind is not None:
            heappush(self._ends.setdefault(kind.pool, []), (end, claim.id))

    def _close(self, claim: Claim, opened: set[str]) -> str:
        """Let a claim wait for GPUs of one pool: of those that nobody waits for, the one whose next end is first."""
        pools = [kind.pool for kind in self._kinds[claim.id]]
        mine = [pool for pool in pools if pool in opened and self._closed.get(pool, claim.id) == claim.id]
        if not mine or claim.id in self._closed.values():
            return ""
        first = min(mine, key=lambda pool: (self._next_end(pool), mine.index(pool)))
        self._closed[first] = claim.id
        if len(pools) == 1:
            self._settled.add(first)
        return first

    def _next_end(self, pool: str) -> float:
        ends = self._ends.get(pool, [])
        while ends and ends[0][1] not in self._taken:
            heappop(ends)
        coming = self._coming.get(pool)
        return min(ends[0][0] if ends else inf, inf if coming is None else coming.next_at)

    def _follow(self, claim: Claim) -> set[str]:
        """Let the next in of the gate that a claim was let in of, once; return the pools that it waits for."""
        bucket = self._let_in.get(claim.id)
        if bucket is None or claim.id in self._followed:
            return set()
        self._followed.add(claim.id)
        return self._let_next_in(bucket)

    def _let_next_in(self, bucket: Bucket) -> set[str]:
        """Let the first of a gate in, where its quota leaves enough; return the pools that it waits for."""
        gate = self._gates.get(bucket)
        while gate is not None and (claim := gate.pop()) is not None:
            if self._newest.get(claim.id) is not claim or self._gate_of.get(claim.id) != bucket:
                continue
            self._let_in[claim.id] = bucket
            kinds: Iterable[GpuKind | None] = self._kinds[claim.id] or (None,)
            if any(self._held_back(claim, kind) is None for kind in kinds):
                del self._gate_of[claim.id]
                return self._line_up(claim)
            del self._let_in[claim.id]
            gate.add(claim)
            return set()
        self._gates.pop(bucket, None)
        return set()

    def _put_event(self, at: float, claim: Claim, what: str) -> None:
        heappush(self._events, (at, next(self._number), claim, what))


def _given_now(claim: Claim, seen: Snapshot) -> Sequence[GpuKind]:
    """Return the kinds that a claim accepts, without those that are paused: nobody knows when they are given again."""
    return [kind for kind in kinds_of(claim.request, seen.kinds) if not seen.paused_words(kind.name)]


def _kept_at(seen: Snapshot, claims: Iterable[Claim], held: Iterable[HeldGpus]) -> list[tuple[float, tuple[Slot, ...]]]:
    """Return which GPUs are kept from those who wait, and until when: for stronger claims, and for classes now.

    Those of a class that somebody waits of are left out: they are for them.
    """
    waiting, now = tuple(claims), seen.now
    kept = [(one.until, one.slots) for one in seen.kept]
    open_now = (one for one in held if one.opening.opens_at <= now)
    others = (one for one in open_now if not any(is_member(claim, one.hold) for claim in waiting))
    kept += ((one.opening.ends_at, one.slots) for one in others)
    return sorted(kept, key=lambda one: -one[0])
