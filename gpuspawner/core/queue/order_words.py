"""Why a request stands behind another: a sentence for each difference that the order goes by."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import nsmallest
from math import inf

from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.placement.kinds import pools_of
from gpuspawner.core.queue.order import Rank, Standing, policy_of
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.queue.waiting import stands_aside
from gpuspawner.core.units import show_duration

MOST_TOLD = 5
"""Of so many that a grant passes it is told, of those that have waited longest. Arbitrary: each is a line to store."""


def passed_by(
    claim: Claim, seen: Snapshot, standing: Standing, granted: Collection[str]
) -> Iterator[tuple[Lease, str]]:
    """Yield which requests that were made earlier a grant goes before by the order, with why, the earliest first.

    Args:
        claim: what is granted.
        seen: everything as it was before the grants of this pass.
        standing: how all stand in it.
        granted: the leases, by id, that this pass grants something.
    """
    pools = frozenset(pools_of(claim, seen.kinds))

    def is_earlier(lease: Lease) -> bool:
        if lease.phase not in WAITING or lease.asked_at >= claim.asked_at or lease.id in granted:
            return False
        if lease.held_back is not None or lease.impossible_since is not None:
            return False  # it could not have been granted either
        other = claim_of(lease)
        aside = stands_aside(other, seen.now, hub_answers=seen.hub_answers)
        return not aside and not pools.isdisjoint(pools_of(other, seen.kinds))

    rank = standing.rank(claim)
    for lease in nsmallest(MOST_TOLD, filter(is_earlier, seen.leases), key=lambda one: (one.asked_at, one.id)):
        if rank < standing.rank(claim_of(lease)):
            yield lease, goes_after(claim_of(lease), claim, standing, seen)


def goes_after(claim: Claim, ahead: Claim, standing: Standing, seen: Snapshot) -> str:
    """Return why a claim stands behind another; names of teams are told, of users none."""
    mine, other = standing.rank(claim), standing.rank(ahead)
    theirs = f"team {ahead.request.team}'s requests" if ahead.request.team else "a request"
    if mine.against_priority != other.against_priority:
        return f"Goes after {theirs}: priority {-other.against_priority} goes before {-mine.against_priority}."
    if mine.not_overdue != other.not_overdue:
        bound = show_duration(policy_of(ahead, seen).longest_wait_seconds)
        return f"Goes after a request that has waited longer than {bound}."
    if mine.beyond_share != other.beyond_share:
        return "Goes after a request within its guaranteed share: this one is beyond yours."
    return _by_use(claim, theirs, mine, other)


def _by_use(claim: Claim, theirs: str, mine: Rank, other: Rank) -> str:
    if mine.team_use != other.team_use:
        more = _more(mine.team_use, other.team_use)
        used = f"your team used {more} for its weight" if claim.request.team else f"you used {more}"
        return f"Goes after {theirs}: {used} lately."
    if mine.user_use != other.user_use:
        more = _more(mine.user_use, other.user_use)
        return f"Goes after a colleague's request: you used {more} of the team's lately."
    earlier = show_duration(max(1.0, mine.asked_at - other.asked_at))
    return f"Goes after a request that was made {earlier} earlier."


def _more(mine: float, other: float) -> str:
    """Return ``31 % more``; where the other used next to nothing a percentage says nothing."""
    percent = inf if other <= 0 else 100 * (mine - other) / other
    return f"{max(1, round(percent))} % more" if percent < 1000 else "much more"  # noqa: PLR2004 - ten times as much
