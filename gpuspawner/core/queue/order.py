"""The order of the queue: of two requests, the first of these in which they differ decides.

1. An administrator's order (``core.queue.changes``): the request that was moved up goes first.
2. Priority: the sum of the team's and the template's. The higher goes first.
3. A request that has waited longer than the policy's ``longest_wait`` goes first. So does a preempted workspace that
   comes back. Rules 4 and 5 do not apply among these.
4. A request within its guaranteed share goes before one beyond it. The share is given by the soft quotas of user and
   team. Without a soft quota nothing is guaranteed.
5. Beyond the share, the smaller use of the last days goes first: use of the team divided by its weight, then use of the
   user in the team (``core.queue.fair_share``).
6. The earlier request goes first.
7. The lease's id decides.

The order is total and transitive. Rules 4 and 5 are applied again after each grant of a pass. A grant can only move its
own user and team back. A pass therefore takes less than quadratic time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace, nsmallest
from math import inf
from typing import NamedTuple

from gpuspawner.core.gpus.placement import pools_of
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases.lease import WAITING, Lease, Phase
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.units import show_duration


class QueueRank(NamedTuple):
    """The rank of a request. The smaller goes first."""

    negated_move: int
    negated_priority: int
    not_overdue: bool
    beyond_share: bool
    team_usage: float
    user_usage: float
    asked_at: float
    id: str


class QueueOrder:
    """The order of the requests of one snapshot, with the grants of a pass so far."""

    def __init__(self, seen: Snapshot, tally: QuotaTally, uses: FairShareUsage) -> None:
        self.tally = tally
        self._seen, self._uses = seen, uses
        self._longest: dict[str, float] = {}

    def rank(self, claim: Claim) -> QueueRank:
        """Return the rank of a request now."""
        overdue = self.is_overdue(claim)
        beyond = not overdue and not self.is_guaranteed(claim)
        team, user = (self._uses.of_team(claim), self._uses.of_user(claim)) if beyond else (0.0, 0.0)
        moved, priority = -claim.queue_move, -self._seen.priority_of(claim.request)
        return QueueRank(moved, priority, not overdue, beyond, team, user, claim.asked_at, claim.id)

    def is_overdue(self, claim: Claim) -> bool:
        """Return whether a request has waited longer than the ``longest_wait`` of its policy."""
        policy = claim.request.policy
        if policy not in self._longest:
            self._longest[policy] = policy_of(claim, self._seen).queue.longest_wait_seconds
        return claim.waited_seconds(self._seen.now) > self._longest[policy]

    def overdue_at(self, claim: Claim) -> float:
        """Return about when a request becomes overdue. While a rule holds the request back, the time is infinite."""
        at = claim.waiting_since + policy_of(claim, self._seen).queue.longest_wait_seconds
        return at if at < claim.waiting_until else inf

    def is_guaranteed(self, claim: Claim) -> bool:
        """Return whether a request is within the guaranteed share, by the kind that it prefers."""
        return self.tally.is_guaranteed(claim, self._seen.kinds.get(claim.request.gpu or ""))


_DEFAULT_POLICY = LifecyclePolicy()


def policy_of(claim: Claim, seen: Snapshot) -> LifecyclePolicy:
    """Return the policy of a request, or the default policy if its own has left the catalog."""
    return seen.policies.get(claim.request.policy) or seen.policies.get("default") or _DEFAULT_POLICY


class QueueLine:
    """The waiting requests in order, while a pass grants to them.

    A grant only moves its own user and team back. So a request that has kept its rank at the top is still the first.
    """

    def __init__(self, claims: Iterable[Claim], order: QueueOrder) -> None:
        self._order = order
        self._ranked = [(order.rank(claim), claim) for claim in claims]
        heapify(self._ranked)

    def pop(self) -> Claim | None:
        """Remove and return the first request, or None if there is no more."""
        while self._ranked:
            rank, claim = self._ranked[0]
            present = self._order.rank(claim)
            if present == rank:
                return heappop(self._ranked)[1]
            heapreplace(self._ranked, (present, claim))
        return None


# --- reasons


MOST_PASSED = 5
"""The most passed requests that are reported for a grant, those with the longest wait. Each is a line in the store."""


def longest_waiting(seen: Snapshot, granted: Collection[Claim]) -> Mapping[str | None, Sequence[Claim]]:
    """Return the requests that have waited longest for each pool and could be granted, the earliest first.

    Args:
        seen: everything before the grants of a pass.
        granted: the requests that this pass grants. Requests made after all of them are left out.
    """
    names, before = {claim.id for claim in granted}, max((claim.asked_at for claim in granted), default=0.0)
    found: dict[str | None, list[Lease]] = {}
    for lease in seen.leases:
        if lease.asked_at >= before or lease.phase not in WAITING:
            continue
        if lease.id in names or lease.not_before > seen.now:
            continue
        if lease.wait_reason is not None or lease.impossible_since is not None:
            continue
        if lease.phase is not Phase.PARKED or seen.hub_answers:
            for pool in pools_of(lease, seen.kinds):
                found.setdefault(pool, []).append(lease)
    first = {pool: nsmallest(MOST_PASSED, leases, key=_shown_request) for pool, leases in found.items()}
    return {pool: [claim_of(lease) for lease in leases] for pool, leases in first.items()}


def passed_requests(
    claim: Claim, waiting: Mapping[str | None, Sequence[Claim]], seen: Snapshot, standing: QueueOrder
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
    for one in nsmallest(MOST_PASSED, earlier, key=_shown_request):
        if rank < standing.rank(one):
            yield one.id, explain_order(one, claim, standing, seen)


def _shown_request(one: Claim | Lease) -> tuple[float, str]:
    return one.asked_at, one.id


def explain_order(claim: Claim, ahead: Claim, standing: QueueOrder, seen: Snapshot) -> str:
    """Return why a request goes after another. The text names teams, but no users."""
    mine, other = standing.rank(claim), standing.rank(ahead)
    theirs = f"A request of team {ahead.request.team}" if ahead.request.team else "Another request"
    if mine.negated_move != other.negated_move:
        return f"{theirs} goes first, because an administrator moved it."
    if mine.negated_priority != other.negated_priority:
        priorities = f"it has priority {-other.negated_priority} and yours has {-mine.negated_priority}"
        return f"{theirs} goes first, because {priorities}."
    if mine.not_overdue != other.not_overdue:
        bound = show_duration(policy_of(ahead, seen).queue.longest_wait_seconds)
        return f"A request that has waited longer than {bound} goes first."
    if mine.beyond_share != other.beyond_share:
        return "A request within its guaranteed share goes first. Yours is beyond its share."
    return _by_use(claim, theirs, mine, other)


def _by_use(claim: Claim, theirs: str, mine: QueueRank, other: QueueRank) -> str:
    if mine.team_usage != other.team_usage:
        more = _more(mine.team_usage, other.team_usage)
        used = f"your team used {more} for its weight" if claim.request.team else f"you used {more}"
        return f"{theirs} goes first, because {used} lately."
    if mine.user_usage != other.user_usage:
        more = _more(mine.user_usage, other.user_usage)
        return f"A colleague's request goes first, because you used {more} of the team's GPU hours lately."
    earlier = show_duration(max(1.0, mine.asked_at - other.asked_at))
    return f"A request that was made {earlier} earlier goes first."


def _more(mine: float, other: float) -> str:
    percent = inf if other <= 0 else 100 * (mine - other) / other
    return f"{max(1, round(percent))} % more" if percent < 1000 else "much more"  # noqa: PLR2004 - ten times as much
