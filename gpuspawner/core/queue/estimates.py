"""Places and estimates: the coming ends are replayed once for all who wait, in the true order and within the quotas.

Back-fill is left aside: who is said to start then starts no later for it, and who passes starts sooner than was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import count as _counter
from math import inf

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.placement.kinds import kinds_of, pools_of
from gpuspawner.core.placement.placement import grantable
from gpuspawner.core.queue.ends import end_at
from gpuspawner.core.queue.order import Line, Standing, policy_of
from gpuspawner.core.queue.order_words import goes_after
from gpuspawner.core.queue.replay import Parts, Room, Whole
from gpuspawner.core.queue.shares import Uses
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.bounds import Bucket
from gpuspawner.core.quotas.purse import Purse
from gpuspawner.core.quotas.quotas import Tally


@dataclass(frozen=True)
class Place:
    """A place in the queue: ``number`` counts from 1 among ``of`` that wait for the same pool.

    A request that takes several kinds stands in a line for each; this is the best. ``kind`` is what it is likely given.
    ``at_most_seconds`` is when it starts at the latest if nobody extends: None where nothing tells (a holder without a
    deadline, or more asked than the fleet has). ``likely_seconds`` counts grace periods that run already.
    """

    number: int
    of: int
    at_most_seconds: float | None
    likely_seconds: float | None
    kind: str = ""
    why: str = ""
    """Why it stands behind the one before it, in a sentence; "" where nobody does."""


def queue_places(seen: Snapshot, also: Claim | None = None) -> dict[str, Place]:
    """Return where each claim stands, and for how long at most, by id.

    ``also`` would stand among them; it takes the place of a claim with its id.
    """
    claims: Sequence[Claim] = seen.claims
    if also is not None:
        claims = [*(claim for claim in claims if claim.id != also.id), also]
    if not claims:
        return {}
    most, likely = _Replay(seen, claims), _Replay(seen, claims, use_grace=True)
    for replay in (most, likely):
        replay.run()
    waits = {name: (most.wait(name), likely.wait(name)) for name in (claim.id for claim in claims)}
    why = _why_behind(claims, seen)
    return {
        claim.id: Place(number, of, *waits[claim.id], likely.kind_of(claim.id), why.get(claim.id, ""))
        for claim, number, of in _numbered(most.in_order(), seen)
    }


def _why_behind(claims: Sequence[Claim], seen: Snapshot) -> dict[str, str]:
    """Return why each claim stands behind the one before it that waits for the same GPUs, as the order is now."""
    standing = Standing(seen, Tally(seen), Uses(seen))
    last: dict[str | None, Claim] = {}
    why: dict[str, str] = {}
    for claim in sorted(claims, key=standing.rank):
        for pool in pools_of(claim, seen.kinds):
            if pool is not None and pool in last and claim.id not in why:
                why[claim.id] = goes_after(claim, last[pool], standing, seen)
            last[pool] = claim
    return why


def _numbered(line: Iterable[Claim], seen: Snapshot) -> Iterable[tuple[Claim, int, int]]:
    """Yield each claim with its best place, and how many stand in that line; ``line`` as they are served."""
    claims = [(claim, pools_of(claim, seen.kinds)) for claim in line]
    sizes: dict[str | None, int] = {}
    for _, pools in claims:
        for pool in pools:
            sizes[pool] = sizes.get(pool, 0) + 1
    passed: dict[str | None, int] = {}
    for claim, pools in claims:
        for pool in pools:
            passed[pool] = passed.get(pool, 0) + 1
        best = min(pools, key=lambda pool: passed[pool])
        yield claim, passed[best], sizes[best]


class _Replay:
    """Replays the coming ends, and who is served at each."""

    def __init__(self, seen: Snapshot, claims: Sequence[Claim], *, use_grace: bool = False) -> None:
        self._seen, self._claims, self._use_grace = seen, claims, use_grace
        self._tally, uses = Tally(seen), Uses(seen)
        self._uses, self._standing = uses, Standing(seen, self._tally, uses)
        self._kinds = {claim.id: kinds_of(claim.request, seen.kinds) for claim in claims}
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
        self._served: dict[str, tuple[float, str]] = {}
        self._events: list[tuple[float, int, Claim | Lease, str]] = []
        self._number = _counter()
        self._at = seen.now
        self._rooms: dict[str, Room] = {}
        self._held: dict[str, list[tuple[str, Parts]]] = {}
        self._fill_rooms()

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
                left = policy_of(claim, self._seen).longest_wait_seconds - claim.waited_seconds
                if left >= 0:
                    self._put_event(now + left, claim, "overdue")
        self._serve(opened)
        while self._newest and self._events and self._events[0][0] < inf:
            self._at, opened = max(self._at, self._events[0][0]), set()
            while self._events and self._events[0][0] <= self._at:
                _, _, one, what = heappop(self._events)
                opened |= self._happens(one, what)
            self._serve(opened)

    def _happens(self, one: Claim | Lease, what: str) -> set[str]:
        """Let an event happen; return the pools that it opens."""
        if isinstance(one, Claim) and what != "ends":
            if one.id not in self._newest:
                return set()
            if what == "overdue":
                if one.id in self._gate_of:
                    return set()  # what could not be granted does not wait
                one = one._replace(waited_seconds=inf)
                self._newest[one.id] = one
            return self._line_up(one)
        opened = set()
        for pool, parts in self._held.pop(one.id, ()):
            self._rooms[pool].give(parts)
            self._closed.pop(pool, None)
            opened.add(pool)
        for bucket in self._tally.give(one):
            opened |= self._let_next_in(bucket)
        return opened

    def _line_up(self, claim: Claim) -> set[str]:
        """Put a claim into the lines that it stands in; return these."""
        pools = {kind.pool for kind in self._kinds[claim.id] if claim.request.count <= self._largest(kind.pool)}
        if claim.request.gpu is None:
            pools = {""}
        for pool in pools:
            if pool not in self._lines:
                self._lines[pool] = Line((), self._standing)
            self._lines[pool].add(claim)
            self._closed.pop(pool, None)  # it may go before whoever waits there
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
            self._gates.setdefault(held, Line((), self._standing)).add(claim)
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
        parts = self._rooms[kind.pool].take(self._whole.of(kind.share), claim.request.count)
        if parts is None:
            return False
        self._held[claim.id] = [(kind.pool, parts)]
        return True

    def _grant(self, claim: Claim, kind: GpuKind | None) -> None:
        self._tally.take(claim, kind)
        self._uses.charge(claim, kind)
        self._served[claim.id] = (self._at, kind.name if kind else "")
        del self._newest[claim.id]
        self._put_event(self._at + claim.request.lifetime_seconds, claim, "ends")

    def _close(self, claim: Claim, opened: set[str]) -> str:
        """Let a claim wait for GPUs of one pool: of those that nobody waits for, the one whose next end is first."""
        pools = [kind.pool for kind in self._kinds[claim.id]]
        mine = [pool for pool in pools if pool in opened and self._closed.get(pool, claim.id) == claim.id]
        if not mine or claim.id in self._closed.values():
            return ""
        first = min(mine, key=lambda pool: (self._next_end(pool), mine.index(pool)))
        self._closed[first] = claim.id
        return first

    def _next_end(self, pool: str) -> float:
        ends = self._ends.get(pool, [])
        while ends and ends[0][1] not in self._held:
            heappop(ends)
        return ends[0][0] if ends else inf

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

    def _put_event(self, at: float, one: Claim | Lease, what: str) -> None:
        heappush(self._events, (at, next(self._number), one, what))
        for pool, _ in self._held.get(one.id, ()) if what == "ends" else ():
            heappush(self._ends.setdefault(pool, []), (at, one.id))

    def _fill_rooms(self) -> None:
        """Note what is free of the pools that somebody waits for, and when what is held ends."""
        seen, now = self._seen, self._seen.now
        pools = {kind.pool for kinds in self._kinds.values() for kind in kinds} if seen.gpus_as_held.complete else set()
        gpus = [gpu for gpu in seen.gpus_as_held.gpus if gpu.pool in pools and grantable(gpu)]
        where = {gpu.id: gpu.pool for gpu in gpus}
        used = {gpu: share for gpu, share in seen.used.items() if gpu in where}
        shares = {kind.share for kind in seen.kinds.values()} | set(used.values())
        holders = [lease for lease in seen.leases if lease.phase in HOLDING]
        self._whole = Whole(shares | {slot.share for lease in holders for slot in lease.slots if slot.gpu in where})
        left = {gpu.id: self._whole.parts - self._whole.of(used.get(gpu.id, Fraction(0))) for gpu in gpus}
        for kept in seen.kept:
            for slot in kept.slots:
                left[slot.gpu] = left.get(slot.gpu, 0) - self._whole.of(slot.share)
        for pool in pools:
            own = [gpu for gpu in gpus if gpu.pool == pool]
            self._rooms[pool] = Room(own, {gpu.id: left[gpu.id] for gpu in own})
        self._ends: dict[str, list[tuple[float, str]]] = {}
        for lease in holders:
            self._note_holder(lease, where, end_at(lease, now, use_grace=self._use_grace))
        for ends in self._ends.values():
            heapify(ends)
        heapify(self._events)

    def _note_holder(self, lease: Lease, where: Mapping[str, str], at: float) -> None:
        parts: dict[str, list[tuple[str, int]]] = {}
        for slot in lease.slots:
            if (pool := where.get(slot.gpu)) is not None:
                parts.setdefault(pool, []).append((slot.gpu, self._whole.of(slot.share)))
        if parts:
            self._held[lease.id] = list(parts.items())
        if at < inf and (parts or self._tally.counts):
            self._events.append((at, next(self._number), lease, "ends"))
            for pool in parts:
                self._ends.setdefault(pool, []).append((at, lease.id))
