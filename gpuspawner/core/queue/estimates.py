"""Estimate when waiting requests start: forecasts with drawn ends, and with the requests of an earlier day."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from gpuspawner.core.queue.forecasts import RunTimes, forecast
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot

DRAWS = 20
"""Number of forecasts. With 100 an estimate is 1 to 3 in 100 more often right, and takes five times as long."""
HORIZON_SECONDS = 3 * 3600.0
"""How far an estimate looks ahead."""
WINDOW_SECONDS = 1200.0
"""An estimate is right within ten minutes, before and after."""
DAY_SECONDS = 86400.0
MOST_DAYS = 7
"""Later requests are those of one of the last seven days."""
EACH_SIDE = 0.1
"""The share of starts on each side of a range: four of five fall into it."""
LEAST_POINTS = 20
"""With fewer past estimates no threshold can be told."""
RIGHT_SHARE = 0.8
"""The share of the times shown that are to be right."""

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
    starts: dict[str, list[float]] = {claim.id: [] for claim in claims}
    for draw in range(draws):
        end_of = partial(run_times.end_at, draw=draw)
        found = forecast(seen, index, claims, end_of, later(draw), HORIZON_SECONDS)
        for name, seconds in starts.items():
            seconds.append(found[name].at - seen.now if name in found else inf)
    return {name: estimate_of(seconds) for name, seconds in starts.items()}


def estimate_of(starts: Sequence[float]) -> StartEstimate:
    """Return the estimate by the starts of all draws, in seconds from now; infinite for no start."""
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
        draw: the number of the forecast. Each takes another day, of the last :data:`MOST_DAYS`.
    """
    days = min(MOST_DAYS, int((now - past[0].asked_at) // DAY_SECONDS)) if past else 0
    if not days:
        return []
    back = DAY_SECONDS * (1 + draw % days)
    first, last = (bisect_right(past, at - back, key=_asked_at) for at in (now, now + HORIZON_SECONDS))
    return [_moved(claim, claim.asked_at + back) for claim in past[first:last]]


def _asked_at(claim: Claim) -> float:
    return claim.asked_at


def _moved(claim: Claim, at: float) -> Claim:
    """Return a request that is made at another time."""
    return claim._replace(
        id=f"later {claim.id}",
        asked_at=at,
        not_before=at,
        waiting_since=at,
        waiting_until=inf,
        tried_nodes=(),
        attempt=0,
    )


class PastPoint(NamedTuple):
    """The chance of a past estimate, and whether the start came within ten minutes of it."""

    chance: float
    was_right: bool


def chance_to_show(past: Sequence[PastPoint]) -> float:
    """Return the least chance at which a time is shown, so that four in five shown times are right.

    It is the lowest chance at which four in five of the past estimates of at least that chance were right. It is
    infinite if there is none, or if fewer than :data:`LEAST_POINTS` estimates had at least that chance.
    """
    found, right = inf, 0
    ordered = sorted(past, key=lambda point: -point.chance)
    for number, point in enumerate(ordered, 1):
        right += point.was_right
        is_last = number == len(ordered) or ordered[number].chance < point.chance
        if is_last and number >= LEAST_POINTS and right >= RIGHT_SHARE * number:
            found = point.chance
    return found
