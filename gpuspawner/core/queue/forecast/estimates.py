"""Places and estimates: the coming ends are replayed once for all who wait, in the true order and within the quotas.

Back-fill is left aside: who is said to start then starts no later for it, and who passes starts sooner than was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpuspawner.core.placement.kinds import pools_of
from gpuspawner.core.queue.forecast.lasting import NOTHING_LASTED, Lasted
from gpuspawner.core.queue.forecast.serving import Likely, Replay
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import Rank, Standing
from gpuspawner.core.queue.order_words import goes_after
from gpuspawner.core.queue.shares import Uses
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.quotas import Tally

DRAWS = 3
"""So often it is replayed what may happen, and the median told. Arbitrary: each takes as long as all else."""
MANY = 300
"""Of so many that run, one draw has early and late ends as they come. Arbitrary."""


class Precedence(NamedTuple):
    """What decides which requests may still go before one that waits: the forecast knows of none that come later.

    ``overdue_at`` is about when it will have waited so long that only a higher priority goes before it.
    """

    priority: int
    is_overdue: bool
    is_guaranteed: bool
    overdue_at: float


@dataclass(frozen=True)
class Place:
    """A place in the queue: ``number`` counts from 1 among ``of`` that wait for the same pool; None is not known.

    A request that takes several kinds stands in a line for each; this is the best. ``kind`` is what it is likely given.
    ``unchanged_seconds`` is when it starts if every workspace lasts until its end as it is now, and nobody goes first
    who does not now: None where nothing tells (a holder without a deadline, or more asked than the fleet has). No time
    is sure: requests that come later may go first, by ``precedence``. ``likely_seconds`` counts grace periods that run
    already, and how long workspaces lasted so far.
    """

    number: int | None
    of: int | None
    unchanged_seconds: float | None
    likely_seconds: float | None
    kind: str = ""
    why: str = ""
    """Why it stands behind the one before it, in a sentence; "" where nobody does."""
    precedence: Precedence | None = None
    says: str = ""
    """What the queue's owner says of it, in sentences, where that is not gpuspawner."""


def queue_places(
    seen: Snapshot, also: Claim | None = None, index: Index | None = None, lasted: Lasted = NOTHING_LASTED
) -> dict[str, Place]:
    """Return where each claim stands, and in how long it starts as things are, by id.

    ``also`` would stand among them; it takes the place of a claim with its id. ``index`` is what is derived from the
    snapshot, where that is kept; else it is derived anew. ``lasted`` is how long workspaces lasted so far.
    """
    index = index or Index(seen)
    claims = sorted(index.claims.values(), key=lambda claim: (claim.asked_at, claim.id))
    if also is not None:
        claims = [*(claim for claim in claims if claim.id != also.id), also]
    if not claims:
        return {}
    most = Replay(seen, index, claims)
    likely = [Replay(seen, index, claims, Likely(lasted, draw)) for draw in range(_draws(lasted, index))]
    for replay in (most, *likely):
        replay.run()
    likely = likely or [most]
    waits = {claim.id: (most.wait(claim.id), _likely_wait(claim.id, most, likely)) for claim in claims}
    standing = Standing(seen, Tally(seen, index.holdings), Uses(seen, index.charges))
    ranks = {claim.id: standing.rank(claim) for claim in claims}
    why = _why_behind(sorted(claims, key=lambda claim: ranks[claim.id]), seen, standing)
    return {
        claim.id: Place(
            number,
            of,
            *waits[claim.id],
            likely[0].kind_of(claim.id),
            why.get(claim.id, ""),
            _precedence(ranks[claim.id], standing.overdue_at(claim)),
        )
        for claim, number, of in _numbered(most.in_order(), seen)
    }


def _precedence(rank: Rank, overdue_at: float) -> Precedence:
    return Precedence(-rank.against_priority, not rank.not_overdue, not rank.beyond_share, overdue_at)


def _draws(lasted: Lasted, index: Index) -> int:
    """Return how often what may happen is replayed: not at all where likely ends are the latest."""
    if not lasted.is_known:
        return int(any(ends.counts_grace for ends in index.ends.values()))
    return DRAWS if sum(map(len, index.ends.values())) < MANY else 1


def _likely_wait(name: str, most: Replay, likely: Sequence[Replay]) -> float | None:
    """Return the median of what may happen, and never more than where nothing ends early."""
    waits = sorted(inf if (wait := one.wait(name)) is None else wait for one in likely)
    latest, median = most.wait(name), waits[len(waits) // 2]
    if latest is not None:
        return min(latest, median)
    return None if median == inf else median


def _why_behind(claims: Iterable[Claim], seen: Snapshot, standing: Standing) -> dict[str, str]:
    """Return why each claim stands behind the one before it that waits for the same GPUs; ``claims`` in their order."""
    last: dict[str | None, Claim] = {}
    why: dict[str, str] = {}
    for claim in claims:
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
