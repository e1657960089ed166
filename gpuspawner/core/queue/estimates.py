"""Estimated starts and queue positions of waiting requests, and why an estimate moved.

They repeat the grant decision with drawn ends of workspaces, and with the requests of an earlier day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.placement import pools_of
from gpuspawner.core.leases.lease import HOLDING, WAITING
from gpuspawner.core.queue.calibration import EACH_SIDE, NEAR_SECONDS
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.forecasts import MOST_FORECAST, EndOf, Future, PredictedStart, forecast_each
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import QueueOrder, QueueRank, explain_order
from gpuspawner.core.queue.run_times import RunTimes
from gpuspawner.core.queue.snapshot import Claim, Snapshot, end_at
from gpuspawner.core.quotas.usage import QuotaTally

DRAWS = 20
"""Number of forecasts. With 100 an estimate is 1 to 3 in 100 more often right, and takes five times as long."""
MOST_ESTIMATED = 150
"""The number of waiting requests that are estimated: the first ones in line. A round for 145 takes about 2 s of CPU."""
HORIZON_SECONDS = 3 * 3600.0
"""How far an estimate looks ahead."""
WINDOW_SECONDS = 2 * NEAR_SECONDS
"""An estimate is right within ten minutes, before and after."""
DAY_SECONDS = 86400.0
MOST_DAYS = 7
"""Later requests are those of one of the last seven work days, or of one of the last seven days of weekends."""
FIRST_WEEKDAY, WORK_DAYS = 3, 5
"""The first day of the epoch was a Thursday."""

LaterRequests = Callable[[int], Sequence[Claim]]
"""Returns the requests that are expected to come in the forecast with this number."""


class StartEstimate(NamedTuple):
    """When a request starts, in seconds from now: the likely time, its chance, and the range of four in five draws.

    ``point_seconds`` is None if the request starts in no draw. ``to_seconds`` is infinite if at least one draw in ten
    has no start within the horizon.
    """

    point_seconds: float | None
    chance: float
    from_seconds: float
    to_seconds: float


def estimate_starts(
    seen: Snapshot, index: Index, claims: Sequence[Claim], run_times: RunTimes, later: LaterRequests,
    draws: int = DRAWS,
) -> dict[str, StartEstimate]:  # fmt: skip
    """Return the estimate of each request by lease id.

    Args:
        seen: the queue and the cluster now.
        index: what is derived from ``seen``. It is the same again when the function returns.
        claims: the waiting requests to estimate.
        run_times: how long workspaces ran so far.
        later: the requests that may come meanwhile.
        draws: the number of forecasts.
    """
    futures = (Future(partial(run_times.end_at, draw=draw), later(draw)) for draw in range(draws))
    drawn = forecast_each(seen, index, claims, futures, HORIZON_SECONDS)
    return {
        claim.id: estimate_of([found[claim.id].at - seen.now if claim.id in found else inf for found in drawn])
        for claim in claims
    }


def first_in_line(seen: Snapshot, index: Index, claims: Iterable[Claim], count: int) -> list[Claim]:
    """Return the requests with the best places among these, in the order of the queue.

    Args:
        seen: the queue and the cluster now.
        index: what is derived from ``seen``.
        claims: waiting requests.
        count: the most requests to return.
    """
    standing = QueueOrder(seen, QuotaTally(seen, index.holdings), FairShareUsage(seen, index.charges))
    return _first_in_line(sorted(claims, key=standing.rank), seen, count)


def estimate_of(starts: Sequence[float]) -> StartEstimate:
    """Return the estimate from the starts of all draws, in seconds from now. No start is infinite."""
    ordered = sorted(starts)
    known = [seconds for seconds in ordered if seconds < inf]
    side = int(EACH_SIDE * len(ordered))
    low, high = ordered[side], ordered[len(ordered) - 1 - side]
    if not known:
        return StartEstimate(None, 0.0, low, high)
    first, last = max(
        ((number, bisect_right(known, start + WINDOW_SECONDS)) for number, start in enumerate(known)),
        key=lambda window: window[1] - window[0],
    )
    middle = (known[first] + known[last - 1]) / 2
    return StartEstimate(middle, (last - first) / len(ordered), low, high)


def later_requests(past: Sequence[Claim], now: float, draw: int) -> list[Claim]:
    """Return the requests of the next three hours as they came at the same hours of an earlier day.

    Args:
        past: the requests of the last days, the oldest first.
        now: seconds since the epoch.
        draw: the number of the forecast. Each takes another of the last days of the same sort.
    """
    known = range(1, 1 + int((now - past[0].asked_at) // DAY_SECONDS)) if past else range(0)
    alike = [days for days in known if _is_weekend(now - DAY_SECONDS * days) == _is_weekend(now)][:MOST_DAYS]
    if not alike:
        return []
    back = DAY_SECONDS * alike[draw % len(alike)]
    first, last = (bisect_right(past, at - back, key=_asked_at) for at in (now, now + HORIZON_SECONDS))
    return [_moved(claim, claim.asked_at + back) for claim in past[first:last]]


def _is_weekend(at: float) -> bool:
    return int(at // DAY_SECONDS + FIRST_WEEKDAY) % 7 >= WORK_DAYS


def _asked_at(claim: Claim) -> float:
    return claim.asked_at


def _moved(claim: Claim, at: float) -> Claim:
    return claim._replace(
        id=f"later {claim.id}",
        asked_at=at,
        not_before=at,
        waiting_since=at,
        waiting_until=inf,
        tried_nodes=(),
        attempt=0,
        queue_move=0,
    )


# --- positions


POSITION_DRAWS = 3
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
    is_moved: bool = False
    """Whether an administrator moved it up. Then only a request that is moved, too, goes before it."""


@dataclass(frozen=True)
class QueuePosition:
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


def queue_positions(
    seen: Snapshot, also: Claim | None = None, index: Index | None = None, run_times: RunTimes | None = None
) -> dict[str, QueuePosition]:
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
    standing = QueueOrder(seen, QuotaTally(seen, index.holdings), FairShareUsage(seen, index.charges))
    ranks = {claim.id: standing.rank(claim) for claim in claims}
    claims.sort(key=lambda claim: ranks[claim.id])
    first = _first_in_line(claims, seen, MOST_FORECAST)
    draws = _draws(run_times or RunTimes(), index)
    latest, *likely = forecast_each(seen, index, first, map(Future, [end_at, *draws]))
    likely = likely or [latest]
    why = _why_behind(claims, seen, standing)
    pace: dict[str | None, float] = {}  # seconds for each place in the line of a pool, by the last one forecast
    covered, places = {claim.id for claim in first}, dict[str, QueuePosition]()
    for claim, number, of, pool in _numbered(_in_order(claims, latest), seen):
        unchanged, wait = _wait(claim.id, latest, seen.now), _likely_wait(claim.id, latest, likely, seen.now)
        if wait is not None:
            pace[pool] = wait / number
        elif claim.id not in covered and pool in pace and claim.request.count <= index.pools.largest(pool or ""):
            wait = pace[pool] * number
        kind = likely[0][claim.id].kind if claim.id in likely[0] else ""
        precedence = _precedence(ranks[claim.id], standing.overdue_at(claim))
        places[claim.id] = QueuePosition(number, of, unchanged, wait, kind, why.get(claim.id, ""), precedence)
    return places


def _first_in_line(claims: Sequence[Claim], seen: Snapshot, count: int) -> list[Claim]:
    numbers = {claim.id: number for claim, number, *_ in _numbered(claims, seen)}
    return sorted(claims, key=lambda claim: numbers[claim.id])[:count]


def _in_order(claims: Iterable[Claim], latest: Mapping[str, PredictedStart]) -> list[Claim]:
    by_id = {claim.id: claim for claim in claims}
    return [*(by_id[name] for name in latest), *(claim for name, claim in by_id.items() if name not in latest)]


def _precedence(rank: QueueRank, overdue_at: float) -> Precedence:
    is_moved = rank.negated_move < 0
    return Precedence(-rank.negated_priority, not rank.not_overdue, not rank.beyond_share, overdue_at, is_moved)


def _draws(run_times: RunTimes, index: Index) -> list[EndOf]:
    if not run_times.is_known:
        counts_grace = any(ends.counts_grace for ends in index.ends.values())
        return [partial(run_times.end_at, draw=0)] if counts_grace else []
    draws = POSITION_DRAWS if sum(map(len, index.ends.values())) < MANY else 1
    return [partial(run_times.end_at, draw=draw) for draw in range(draws)]


def _wait(name: str, starts: Mapping[str, PredictedStart], now: float) -> float | None:
    return starts[name].at - now if name in starts else None


def _likely_wait(
    name: str, latest: Mapping[str, PredictedStart], likely: Sequence[Mapping[str, PredictedStart]], now: float
) -> float | None:
    waits = sorted(inf if (wait := _wait(name, one, now)) is None else wait for one in likely)
    longest, median = _wait(name, latest, now), waits[len(waits) // 2]
    if longest is not None:
        return min(longest, median)
    return None if median == inf else median


def _why_behind(claims: Iterable[Claim], seen: Snapshot, standing: QueueOrder) -> dict[str, str]:
    last: dict[str | None, Claim] = {}
    why: dict[str, str] = {}
    for claim in claims:
        for pool in pools_of(claim, seen.kinds):
            if pool is not None and pool in last and claim.id not in why:
                why[claim.id] = explain_order(claim, last[pool], standing, seen)
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


# --- why an estimate moved


LEAST_EXTENSION_SECONDS = 60.0
"""A deadline that moved by less was not extended by anybody."""


@dataclass(frozen=True)
class QueueState:
    """The state of the queue on which the start of a request depends.

    ``start_at`` is the estimated start. ``deadlines`` are of the workspaces that hold such GPUs, by lease id.
    ``earlier`` are the waiting requests for such GPUs that were made earlier. ``planned`` are the workspaces whose
    users said when they will be done, with these times. ``usable_gpus`` are the GPUs in service. ``moves`` are the
    waiting requests for such GPUs with their moves by administrators.
    """

    start_at: float
    deadlines: Mapping[str, float | None]
    earlier: frozenset[str]
    usable_gpus: int
    planned: frozenset[tuple[str, float]] = frozenset()
    moves: Mapping[str, int] = field(default_factory=dict)


def queue_state(claim: Claim, start_at: float, seen: Snapshot) -> QueueState:
    """Return the state of the queue for a waiting request."""
    pool_of = {name: kind.pool for name, kind in seen.kinds.items()}
    pools = {pool_of[name] for name in (claim.request.gpu, *claim.request.substitutes) if name in pool_of}
    alike = [one for one in seen.leases if one.kind in pool_of and pool_of[one.kind] in pools]
    return QueueState(
        start_at,
        {one.id: one.deadline_at for one in alike if one.phase in HOLDING},
        frozenset(one.id for one in alike if one.phase in WAITING and one.asked_at < claim.asked_at),
        sum(gpu.pool in pools and gpu.healthy and gpu.reachable and not gpu.closed for gpu in seen.fleet.gpus),
        frozenset((one.id, one.planned_end.at) for one in alike if one.planned_end and one.planned_end.at),
        {one.id: one.queue_move for one in alike if one.phase in WAITING},
    )


def explain_move(before: QueueState, after: QueueState) -> tuple[float, str] | None:
    """Return by how many seconds an estimated start moved, and the reasons in words.

    None if it moved by less than ten minutes, or if nothing happened that explains it: then only the draws differ.
    """
    moved_seconds = after.start_at - before.start_at
    if abs(moved_seconds) < NEAR_SECONDS:
        return None
    reasons = "; ".join(_later(before, after) if moved_seconds > 0 else _sooner(before, after))
    return (moved_seconds, reasons) if reasons else None


def _later(before: QueueState, after: QueueState) -> Iterator[str]:
    both = [(before.deadlines[name], at) for name, at in after.deadlines.items() if name in before.deadlines]
    extended = sum(old is not None and (new is None or new - old > LEAST_EXTENSION_SECONDS) for old, new in both)
    yield from _count(extended, "workspace was extended", "workspaces were extended")
    yield from _count(len(after.earlier - before.earlier), "earlier request is back", "earlier requests are back")
    yield from _decisions(before, after)
    yield from _count(before.usable_gpus - after.usable_gpus, "GPU is out of service", "GPUs are out of service")


def _sooner(before: QueueState, after: QueueState) -> Iterator[str]:
    ended = before.deadlines.keys() - after.deadlines.keys()
    yield from _count(len(ended), "workspace ended", "workspaces ended")
    withdrawn = before.earlier - after.earlier - after.deadlines.keys()
    yield from _count(len(withdrawn), "earlier request was withdrawn", "earlier requests were withdrawn")
    yield from _decisions(before, after)
    yield from _count(after.usable_gpus - before.usable_gpus, "more GPU is in service", "more GPUs are in service")


def _decisions(before: QueueState, after: QueueState) -> Iterator[str]:
    answers = len(after.planned - before.planned)
    yield from _count(answers, "user said when they will be done", "users said when they will be done")
    moved = sum(before.moves.get(name, move) != move for name, move in after.moves.items())
    yield from _count(moved, "request was moved by an administrator", "requests were moved by an administrator")


def _count(number: int, one: str, several: str) -> Iterable[str]:
    return () if number <= 0 else (f"{number} {one if number == 1 else several}",)
