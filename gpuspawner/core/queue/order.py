"""The queue: first come, first served, for each pool of GPUs; places and estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import inf, lcm

from gpuspawner.core.gpus.fleet import Gpu, Slot
from gpuspawner.core.leases.lease import HOLDING, UP, Lease, Phase
from gpuspawner.core.queue.placement import grantable, largest_fit, place, used_shares
from gpuspawner.core.queue.snapshot import Claim, Kinds, Snapshot


def pool_of(claim: Claim | Lease, kinds: Kinds) -> str | None:
    """Return the pool that a claim draws on, None without a GPU; a kind that left the catalog is its own pool."""
    name = claim.request.gpu
    return None if name is None else kinds[name].pool if name in kinds else name


def starts_under_way(leases: Iterable[Lease]) -> Counter[str]:
    """Return how many starts of each user, by ``created``, are under way: granted, and not running yet.

    One that waits for a node to come is none: nothing starts for it yet, and it may wait for many minutes.
    """
    return Counter(
        x.key.user_created for x in leases if x.phase in {Phase.RESERVED, Phase.STARTING} and not _comes(x.slots)
    )


def _comes(slots: Iterable[Slot]) -> bool:
    return any(slot.is_coming for slot in slots)


def _stands_aside(claim: Claim, seen: Snapshot) -> bool:
    """Whether nothing can be granted to it now, however much is free; it keeps nothing from those behind it."""
    unheard = not (claim.attended or seen.hub_answers)
    return unheard or claim.not_before > seen.now or not seen.processes_known


def next_grants(seen: Snapshot) -> list[tuple[Claim, tuple[Slot, ...]]]:
    """Return the grants to make now, in order.

    A request without a GPU is granted at once. Within a pool nobody overtakes: the first that does not fit makes the
    rest wait, so that a large request is never starved by small ones. Passed over, and not blocking: a parked lease
    while its hub does not answer, one that backs off, and one that the whole fleet could not serve as it is: for GPUs
    of strangers, which nobody knows the end of, a pool would stand still for days. A lease whose user
    has as many starts under way as one may have keeps its GPUs from those behind it, and gets them a moment later.
    """
    fleet, used = seen.gpus_as_held, dict(seen.used)
    grants: list[tuple[Claim, tuple[Slot, ...]]] = []
    blocked: set[str] = set()
    starts = starts_under_way(seen.leases)
    under_way = starts.total()
    for claim in seen.claims:
        if under_way >= seen.most_starts:
            break
        if _stands_aside(claim, seen):
            continue
        pool = pool_of(claim, seen.kinds)
        may_start = starts[claim.user_created] < seen.most_starts_each
        kind = seen.kinds.get(claim.request.gpu or "")
        if pool is None and may_start:
            starts[claim.user_created] += 1
            under_way += 1
            grants.append((claim, ()))
        if kind is None or pool is None or pool in blocked:
            continue
        if fleet.complete and claim.request.count > largest_fit(kind, fleet):
            continue
        slots = place(kind, claim.request.count, fleet, used, claim.tried_nodes)
        if slots is None:
            blocked.add(pool)
            continue
        if may_start:
            starts[claim.user_created] += not _comes(slots)
            under_way += not _comes(slots)
            grants.append((claim, slots))
        for slot in slots:
            used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
    return grants


LEAST_WAIT_SECONDS = 1.0
"""GPUs that are held, though their holder's time is over, are not free now: a stop takes at least this."""


@dataclass(frozen=True)
class Place:
    """A place in the queue: ``number`` counts from 1 among ``of`` that wait for the same pool.

    ``at_most_seconds`` is when the GPUs are free at the latest if nobody extends: None where nothing tells (a holder
    without a deadline, or more asked than the fleet has). ``likely_seconds`` counts grace periods that run already.
    """

    number: int
    of: int
    at_most_seconds: float | None
    likely_seconds: float | None


def queue_places(seen: Snapshot, also: Claim | None = None) -> dict[str, Place]:
    """Return where each claim stands among those that wait for the same GPUs, and for how long at most, by id.

    ``also`` would stand among them; it takes the place of a claim with its id. The coming ends are replayed once for
    all claims of a pool, so that the time grows with the queue and not with its square.
    """
    claims: Iterable[Claim] = seen.claims
    if also is not None:
        pool = pool_of(also, seen.kinds)
        rivals = (x for x in seen.claims if x.id != also.id and pool_of(x, seen.kinds) == pool)
        claims = seen.in_order([*rivals, also])
    lines: dict[str | None, list[Claim]] = {}
    for claim in claims:
        lines.setdefault(pool_of(claim, seen.kinds), []).append(claim)
    places: dict[str, Place] = {}
    for pool, line in lines.items():
        waits = _line_waits(pool, line, seen)
        for number, (claim, (most, likely)) in enumerate(zip(line, waits, strict=True), 1):
            places[claim.id] = Place(number, len(line), most, likely)
    return places


def _line_waits(pool: str | None, line: Sequence[Claim], seen: Snapshot) -> Iterable[tuple[float | None, float | None]]:
    """Return how long each claim of a pool's line waits, in seconds: at most, and likely."""
    now, fleet = seen.now, seen.gpus_as_held
    if pool is None:
        seconds = (max(0.0, claim.not_before - now) for claim in line)
        return [(wait, wait) for wait in seconds]
    replay = _Replay([gpu for gpu in fleet.gpus if gpu.pool == pool and grantable(gpu)], seen)
    most, likely = replay.waits(line), replay.waits(line, use_grace=True)
    passing = [claim for claim in line if claim.not_before <= now]
    if len(passing) < len(line):  # those ahead who back off are passed over, as next_grants does
        at_once = {x.id for x, wait in zip(passing, replay.waits(passing), strict=True) if wait == 0}
        most = [0 if x.id in at_once else wait for x, wait in zip(line, most, strict=True)]
        likely = [0 if x.id in at_once else wait for x, wait in zip(line, likely, strict=True)]
    if not fleet.complete:
        return [(None, None)] * len(line)
    return list(zip(most, likely, strict=True))


_Parts = Sequence[tuple[str, int]]
"""GPUs, and how much of each: in whole parts, as fractions are slow where thousands are added."""


class _Replay:
    """Replays the coming ends of what holds GPUs of one pool, serving a line in turn."""

    def __init__(self, gpus: Sequence[Gpu], seen: Snapshot) -> None:
        ids = {gpu.id for gpu in gpus}
        self._gpus, self._kinds, self._now = gpus, seen.kinds, seen.now
        self._holders = [x for x in seen.leases if x.phase in HOLDING and any(slot.gpu in ids for slot in x.slots)]
        used = used_shares(self._holders, (slot for slot in seen.others if slot.gpu in ids))
        shares = {kind.share for kind in seen.kinds.values()} | {x.share for one in self._holders for x in one.slots}
        self._whole = lcm(*(share.denominator for share in {*shares, *used.values()}))
        """Into so many parts each GPU is divided."""
        self._left = {gpu.id: self._whole - (self._parts(used[gpu.id]) if gpu.id in used else 0) for gpu in gpus}

    def _parts(self, share: Fraction) -> int:
        return share.numerator * (self._whole // share.denominator)

    def waits(self, line: Iterable[Claim], *, use_grace: bool = False) -> list[float | None]:
        """Return how many seconds each claim of a line waits, None where nothing tells."""
        room, now = _Room(self._gpus, self._left), self._now
        soon = now + LEAST_WAIT_SECONDS
        ends: list[tuple[float, str, _Parts]] = [
            (
                max(soon, _end_at(x, now, use_grace=use_grace)),
                x.id,
                [(slot.gpu, self._parts(slot.share)) for slot in x.slots],
            )
            for x in self._holders
        ]
        heapify(ends)
        at, stuck = now, False
        waits: list[float | None] = []
        for claim in line:
            kind = self._kinds.get(claim.request.gpu or "")
            if stuck or kind is None or claim.request.count > room.largest:
                waits.append(None)
                continue  # nothing that ends could serve it; it blocks nobody
            while (given := room.take(self._parts(kind.share), claim.request.count)) is None:
                if not ends or ends[0][0] == inf:
                    stuck = True
                    break
                end, _, freed = heappop(ends)
                at = max(at, end)
                room.give(freed)
            else:
                heappush(ends, (at + claim.request.lifetime_seconds, claim.id, given))
            waits.append(None if stuck else max(at, claim.not_before) - now)
        return waits


class _Room:
    """What is left of the GPUs of one pool while coming ends are replayed: exact for shares, quick for all."""

    def __init__(self, gpus: Sequence[Gpu], left: Mapping[str, int]) -> None:
        self._left = dict(left)
        self._node = {gpu.id: gpu.node for gpu in gpus}
        self._rank = {gpu.id: rank for rank, gpu in enumerate(gpus)}
        self._fits: dict[int, dict[str, list[str]]] = {}
        """Of each share that was asked for, the GPUs with so much left, by node; nodes without such are left out."""
        self.largest = max(Counter(self._node.values()).values(), default=0)

    def take(self, share: int, count: int) -> _Parts | None:
        """Take ``count`` shares of distinct GPUs of one node, the fullest node and the most used GPUs first."""
        by_node = self._with_room(share)
        fitting = [(len(ids), node) for node, ids in by_node.items() if len(ids) >= count]
        if not fitting:
            return None
        _, node = min(fitting)
        ids = sorted(by_node[node], key=lambda gpu: (self._left[gpu], self._rank[gpu]))[:count]
        for gpu in ids:
            self._change(gpu, -share)
        return [(gpu, share) for gpu in ids]

    def give(self, parts: _Parts) -> None:
        """Take back what a lease held; GPUs that may not be given meanwhile stay away."""
        for gpu, share in parts:
            if gpu in self._left:
                self._change(gpu, share)

    def _with_room(self, share: int) -> dict[str, list[str]]:
        if share not in self._fits:
            by_node = self._fits[share] = {}
            for gpu, left in self._left.items():
                if left >= share:
                    by_node.setdefault(self._node[gpu], []).append(gpu)
        return self._fits[share]

    def _change(self, gpu: str, by: int) -> None:
        before, node = self._left[gpu], self._node[gpu]
        self._left[gpu] = left = before + by
        for share, by_node in self._fits.items():
            if before < share <= left:
                by_node.setdefault(node, []).append(gpu)
            elif left < share <= before:
                by_node[node].remove(gpu)
                if not by_node[node]:
                    del by_node[node]


def _end_at(lease: Lease, now: float, *, use_grace: bool) -> float:
    if lease.phase is Phase.STOPPING:
        return now
    if use_grace and lease.phase is Phase.RECLAIMING and lease.streak.grace_left_seconds is not None:
        return now + lease.streak.grace_left_seconds
    if lease.phase in UP:
        return inf if lease.deadline_at is None else lease.deadline_at
    return now + lease.request.lifetime_seconds
