"""Why a request stands behind another: a sentence for each difference that the order goes by."""

from __future__ import annotations

from math import inf

from gpuspawner.core.queue.order import Rank, Standing, policy_of
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.units import show_duration


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
