"""Queue positions and estimated starts of all waiting requests, by a forecast of the queue.

The forecast covers the first requests in the line for each pool. For those behind them the estimate is coarse: it
assumes that the line goes on at the same pace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.placement import pools_of
from gpuspawner.core.queue.fair_share import Uses
from gpuspawner.core.queue.forecasts import MOST_FORECAST, EndOf, RunTimes, Start, forecast_each
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import Rank, Standing, goes_after
from gpuspawner.core.queue.snapshot import Claim, Snapshot, end_at
from gpuspawner.core.quotas.usage import Tally

DRAWS = 3
"""Number of forecasts with drawn ends, of which the median is shown. Each takes as long as that of the latest ends."""
MANY = 300
"""With this many running workspaces one draw has enough early and late ends. The number is a choice."""


class Precedence(NamedTuple):
    """The facts that decide which later requests may go before a waiting one.

    ``overdue_at`` is about when the request becomes overdue. Then only a higher priority goes before it.
    """

    priority: int
    is_overdue: bool
    is_guaranteed: bool
    overdue_at: float


@dataclass(frozen=True)
class Place:
    """A queue position: ``number`` counts from 1 among ``of`` requests for the same pool. None is not known.

    A request for several kinds has a position in the line for each. This is the best one. ``kind`` is the kind that it
    probably gets. ``unchanged_seconds`` is its wait if every workspace runs until its present end and no other request
    comes. It is None if no end is known, or if the fleet has too few GPUs. No time is sure, because later requests may
    go first by ``precedence``. ``likely_seconds`` takes into account how long past workspaces ran.
    """

    number: int | None
    of: int | None
    unchanged_seconds: float | None
    likely_seconds: float | None
    kind: str = ""
    why: str = ""
    """A sentence why the request stands behind the one before it, or ""."""
    precedence: Precedence | None = None
    says: str = ""
    """Sentences of the scheduler that owns the queue, if that is not gpuspawner."""


def queue_places(
    seen: Snapshot, also: Claim | None = None, index: Index | None = None, run_times: RunTimes | None = None
) -> dict[str, Place]:
    """Return the position and the estimated wait of each request by lease id.

    Args:
        seen: the queue and the cluster now.
        also: one more request. It replaces the request with its id.
        index: the index of ``seen``, if one is kept.
        run_times: how long past workspaces ran.
    """
    index = index or Index(seen)
    claims = [claim for claim in index.claims.values() if also is None or claim.id != also.id]
    claims += [] if also is None else [also]
    if not claims:
        return {}
    standing = Standing(seen, Tally(seen, index.holdings), Uses(seen, index.charges))
    ranks = {claim.id: standing.rank(claim) for claim in claims}
    claims.sort(key=lambda claim: ranks[claim.id])
    first = _first_in_line(claims, seen)
    draws = _draws(run_times or RunTimes(), index)
    latest, *likely = forecast_each(seen, index, first, [end_at, *draws])
    likely = likely or [latest]
    why = _why_behind(claims, seen, standing)
    pace: dict[str | None, float] = {}  # seconds for each place in the line of a pool, by the last one forecast
    covered, places = {claim.id for claim in first}, dict[str, Place]()
    for claim, number, of, pool in _numbered(_in_order(claims, latest), seen):
        unchanged, wait = _wait(claim.id, latest, seen.now), _likely_wait(claim.id, latest, likely, seen.now)
        if wait is not None:
            pace[pool] = wait / number
        elif claim.id not in covered and pool in pace and claim.request.count <= index.pools.largest(pool or ""):
            wait = pace[pool] * number
        kind = likely[0][claim.id].kind if claim.id in likely[0] else ""
        precedence = _precedence(ranks[claim.id], standing.overdue_at(claim))
        places[claim.id] = Place(number, of, unchanged, wait, kind, why.get(claim.id, ""), precedence)
    return places


def _first_in_line(claims: Sequence[Claim], seen: Snapshot) -> list[Claim]:
    """Return the requests to forecast, the first ones of the line of each pool; ``claims`` in their order."""
    numbers = {claim.id: number for claim, number, *_ in _numbered(claims, seen)}
    return sorted(claims, key=lambda claim: numbers[claim.id])[:MOST_FORECAST]


def _in_order(claims: Iterable[Claim], latest: Mapping[str, Start]) -> list[Claim]:
    """Return the requests in the order of their starts, those without a predicted start last."""
    by_id = {claim.id: claim for claim in claims}
    return [*(by_id[name] for name in latest), *(claim for name, claim in by_id.items() if name not in latest)]


def _precedence(rank: Rank, overdue_at: float) -> Precedence:
    return Precedence(-rank.against_priority, not rank.not_overdue, not rank.beyond_share, overdue_at)


def _draws(run_times: RunTimes, index: Index) -> list[EndOf]:
    """Return predictions of the ends of workspaces, one for each draw. None if likely ends are the latest ones."""
    if not run_times.is_known:
        counts_grace = any(ends.counts_grace for ends in index.ends.values())
        return [partial(run_times.end_at, draw=0)] if counts_grace else []
    draws = DRAWS if sum(map(len, index.ends.values())) < MANY else 1
    return [partial(run_times.end_at, draw=draw) for draw in range(draws)]


def _wait(name: str, starts: Mapping[str, Start], now: float) -> float | None:
    return starts[name].at - now if name in starts else None


def _likely_wait(
    name: str, latest: Mapping[str, Start], likely: Sequence[Mapping[str, Start]], now: float
) -> float | None:
    """Return the median wait of the draws, but never more than if no workspace ends early."""
    waits = sorted(inf if (wait := _wait(name, one, now)) is None else wait for one in likely)
    longest, median = _wait(name, latest, now), waits[len(waits) // 2]
    if longest is not None:
        return min(longest, median)
    return None if median == inf else median


def _why_behind(claims: Iterable[Claim], seen: Snapshot, standing: Standing) -> dict[str, str]:
    """Return why each request stands behind the one before it in a line. ``claims`` are in their order."""
    last: dict[str | None, Claim] = {}
    why: dict[str, str] = {}
    for claim in claims:
        for pool in pools_of(claim, seen.kinds):
            if pool is not None and pool in last and claim.id not in why:
                why[claim.id] = goes_after(claim, last[pool], standing, seen)
            last[pool] = claim
    return why


def _numbered(line: Iterable[Claim], seen: Snapshot) -> Iterable[tuple[Claim, int, int, str | None]]:
    """Yield each request with its best place, how many wait in that line, and the line's pool.

    ``line`` is in the order of the starts.
    """
    claims = [(claim, pools_of(claim, seen.kinds)) for claim in line]
    sizes = Counter(pool for _, pools in claims for pool in pools)
    passed: Counter[str | None] = Counter()
    for claim, pools in claims:
        passed.update(pools)
        best = min(pools, key=lambda pool: passed[pool])
        yield claim, passed[best], sizes[best], best
