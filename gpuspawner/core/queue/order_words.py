"""Sentences why a request stands behind another, one for each rule of the order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf

from gpuspawner.core.gpus.placement import pools_of
from gpuspawner.core.leases.lease import WAITING, Lease, Phase
from gpuspawner.core.queue.order import Rank, Standing, policy_of
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.units import show_duration

MOST_TOLD = 5
"""Number of passed requests that are told of a grant, the longest waiting. Each is a line in the store."""


def longest_waiting(seen: Snapshot, granted: Collection[Claim]) -> Mapping[str | None, Sequence[Claim]]:
    """Return the requests that have waited longest for each pool and could be granted, the earliest first.

    Args:
        seen: everything as it was before the grants of a pass.
        granted: the requests that this pass grants. Requests made after all of them are left out.
    """
    names, before = {claim.id for claim in granted}, max((claim.asked_at for claim in granted), default=0.0)
    found: dict[str | None, list[Lease]] = {}
    for lease in seen.leases:
        if lease.asked_at >= before or lease.phase not in WAITING:
            continue
        if lease.id in names or lease.not_before > seen.now:
            continue
        if lease.held_back is not None or lease.impossible_since is not None:
            continue
        if lease.phase is not Phase.PARKED or seen.hub_answers:
            for pool in pools_of(lease, seen.kinds):
                found.setdefault(pool, []).append(lease)
    first = {pool: nsmallest(MOST_TOLD, leases, key=_asked) for pool, leases in found.items()}
    return {pool: [claim_of(lease) for lease in leases] for pool, leases in first.items()}


def passed_by(
    claim: Claim, waiting: Mapping[str | None, Sequence[Claim]], seen: Snapshot, standing: Standing
) -> Iterator[tuple[str, str]]:
    """Yield the id of each earlier request that a grant passes by the order, with the reason.

    Args:
        claim: the granted request.
        waiting: the result of :func:`longest_waiting`.
        seen: everything as it was before the grants of this pass.
        standing: the order of that snapshot.
    """
    others = {one.id: one for pool in pools_of(claim, seen.kinds) for one in waiting.get(pool, ())}
    earlier = [one for one in others.values() if one.asked_at < claim.asked_at]
    if not earlier:
        return
    rank = standing.rank(claim)
    for one in nsmallest(MOST_TOLD, earlier, key=_asked):
        if rank < standing.rank(one):
            yield one.id, goes_after(one, claim, standing, seen)


def _asked(one: Claim | Lease) -> tuple[float, str]:
    return one.asked_at, one.id


def goes_after(claim: Claim, ahead: Claim, standing: Standing, seen: Snapshot) -> str:
    """Return why a request stands behind another. The text names teams, but no users."""
    mine, other = standing.rank(claim), standing.rank(ahead)
    theirs = f"team {ahead.request.team}'s requests" if ahead.request.team else "a request"
    if mine.against_priority != other.against_priority:
        return f"Goes after {theirs}: priority {-other.against_priority} goes before {-mine.against_priority}."
    if mine.not_overdue != other.not_overdue:
        bound = show_duration(policy_of(ahead, seen).queue.longest_wait_seconds)
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
    """Return ``31 % more``, or ``much more`` if the other used next to nothing."""
    percent = inf if other <= 0 else 100 * (mine - other) / other
    return f"{max(1, round(percent))} % more" if percent < 1000 else "much more"  # noqa: PLR2004 - ten times as much
