"""The order of the queue: of two requests, the first of these in which they differ decides.

1. Priority: the sum of the team's and the template's. The higher goes first.
2. A request that has waited longer than the policy's ``longest_wait`` goes first. So does a preempted workspace that
   comes back. Rules 3 and 4 do not apply among these.
3. A request within its guaranteed share goes before one beyond it. The share is given by the soft quotas of user and
   team. Without a soft quota nothing is guaranteed.
4. Beyond the share, the smaller use of the last days goes first: use of the team divided by its weight, then use of the
   user in the team (``core.queue.fair_share``).
5. The earlier request goes first.
6. The lease's id decides.

The order is total and transitive. Rules 3 and 4 are applied again after each grant of a pass. A grant can only move its
own user and team back. A pass therefore takes less than quadratic time. The results of rules 1 to 3 before a pass are
kept between passes (``core.queue.index``). For rule 4 only the teams that come to the top are sorted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
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
        """Order by the quotas and uses that a pass updates."""
        self.tally = tally
        self._seen, self._uses = seen, uses
        self.use_of_user = uses.of_user
        """Returns the use of a request's user in its team. It is called so often that one more call counts."""
        self._longest: dict[str, float] = {}

    def rank(self, claim: Claim) -> QueueRank:
        """Return the rank of a request now."""
        overdue = self.is_overdue(claim)
        beyond = not overdue and not self.is_guaranteed(claim)
        team, user = (self._uses.of_team(claim), self._uses.of_user(claim)) if beyond else (0.0, 0.0)
        return QueueRank(-self.priority(claim), not overdue, beyond, team, user, claim.asked_at, claim.id)

    def priority(self, claim: Claim) -> int:
        """Return the sum of the priorities of a request's team and template."""
        team = self._seen.rules.teams.get(claim.request.team)
        return claim.request.priority + (team.priority if team is not None else 0)

    def is_overdue(self, claim: Claim) -> bool:
        """Return whether a request has waited longer than the ``longest_wait`` of its policy."""
        policy = claim.request.policy
        if policy not in self._longest:
            self._longest[policy] = policy_of(claim, self._seen).queue.longest_wait_seconds
        return claim.waited_seconds(self._seen.now) > self._longest[policy]

    def overdue_at(self, claim: Claim) -> float:
        """Return about when a request becomes overdue. It is infinite while a rule holds the request back."""
        at = claim.waiting_since + policy_of(claim, self._seen).queue.longest_wait_seconds
        return at if at < claim.waiting_until else inf

    def is_guaranteed(self, claim: Claim) -> bool:
        """Return whether a request is within the guaranteed share, by the kind that it prefers."""
        return self.tally.is_guaranteed(claim, self._seen.kinds.get(claim.request.gpu or ""))

    def uses(self, claim: Claim) -> tuple[float, float]:
        """Return the use of a request's team and of its user."""
        return self._uses.of_team(claim), self._uses.of_user(claim)

    def use_of_team(self, claim: Claim) -> float:
        """Return the use of a request's team."""
        return self._uses.of_team(claim)


_DEFAULT_POLICY = LifecyclePolicy()


def policy_of(claim: Claim, seen: Snapshot) -> LifecyclePolicy:
    """Return the policy of a request, or the default policy if its own has left the catalog."""
    return seen.policies.get(claim.request.policy) or seen.policies.get("default") or _DEFAULT_POLICY


_Asked = tuple[float, str, Claim]
_Key = tuple[float | str, ...]


class _Names:
    """A heap of names with changeable keys. Only the newest entry of a name counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[_Key, str]] = []
        self._key_of: dict[str, _Key] = {}

    def put(self, name: str, key: _Key) -> None:
        if self._key_of.get(name) != key:
            self._key_of[name] = key
            heappush(self._heap, (key, name))

    def put_all(self, keys: dict[str, _Key]) -> None:
        """Replace all names."""
        self._key_of = keys
        self._heap = [(key, name) for name, key in keys.items()]
        heapify(self._heap)

    def remove(self, name: str) -> None:
        self._key_of.pop(name, None)

    def first(self) -> tuple[_Key, str] | None:
        while self._heap:
            key, name = self._heap[0]
            if self._key_of.get(name) == key:
                return key, name
            heappop(self._heap)
        return None


@dataclass
class _Kept:
    """The requests of one priority by id. Those beyond the share are also by team and user."""

    overdue: dict[str, _Asked] = field(default_factory=dict)
    guaranteed: dict[str, _Asked] = field(default_factory=dict)
    beyond: dict[str, dict[str, dict[str, _Asked]]] = field(default_factory=dict)


class SortedClaims:
    """The waiting requests by priority, share, team and user, as they were when each was last ordered."""

    def __init__(self) -> None:
        """Begin with no request."""
        self.levels: dict[int, _Kept] = {}
        self._priority: dict[str, int] = {}

    def add(self, claim: Claim, standing: QueueOrder) -> None:
        """Add a request, or order it again."""
        self.remove(claim)
        priority = self._priority[claim.id] = standing.priority(claim)
        level = self.levels.setdefault(priority, _Kept())
        if standing.is_overdue(claim):
            among = level.overdue
        elif standing.is_guaranteed(claim):
            among = level.guaranteed
        else:
            among = level.beyond.setdefault(_team_of(claim), {}).setdefault(claim.user_created, {})
        among[claim.id] = claim.asked_at, claim.id, claim

    def remove(self, claim: Claim) -> None:
        """Remove a request."""
        if (priority := self._priority.pop(claim.id, None)) is None:
            return
        level, team, user = self.levels[priority], _team_of(claim), claim.user_created
        if level.overdue.pop(claim.id, None) is None and level.guaranteed.pop(claim.id, None) is None:
            users = level.beyond[team]
            del users[user][claim.id]
            if not users[user]:
                del users[user]
            if not users:
                del level.beyond[team]
        if level == _Kept():
            del self.levels[priority]


@dataclass
class _Team:
    """The requests of one team beyond the share: users by use, each with a heap of requests."""

    users: _Names = field(default_factory=_Names)
    claims: dict[str, list[_Asked]] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, _Asked]] | None = None
    """The requests that are not sorted yet. Most teams never come to the top."""


@dataclass
class _Level:
    """Those of one priority."""

    overdue: list[_Asked] = field(default_factory=list)
    guaranteed: list[_Asked] = field(default_factory=list)
    teams: _Names = field(default_factory=_Names)
    of_team: dict[str, _Team] = field(default_factory=dict)


class QueueLine:
    """The waiting requests in order, while a pass grants to them."""

    def __init__(self, lined: SortedClaims, standing: QueueOrder) -> None:
        """Begin with all requests. ``lined`` is not changed."""
        self._standing = standing
        self._levels: dict[int, _Level] = {}
        self._order = sorted(lined.levels, reverse=True)
        for priority, kept in lined.levels.items():
            level = self._levels[priority] = _Level(list(kept.overdue.values()), list(kept.guaranteed.values()))
            heapify(level.overdue)
            heapify(level.guaranteed)
            for name, users in kept.beyond.items():
                level.of_team[name] = _Team(kept=users)
                *_, some = next(iter(next(iter(users.values())).values()))
                level.teams.put(name, (standing.use_of_team(some),))  # before all keys that begin so

    def _push(self, among: list[_Asked], claim: Claim) -> None:
        heappush(among, (claim.asked_at, claim.id, claim))
        level = self._levels[self._standing.priority(claim)]
        if among is not level.overdue and among is not level.guaranteed:
            self._put(level, _team_of(claim), claim.user_created)

    def _beyond(self, level: _Level, claim: Claim) -> list[_Asked]:
        """Return the heap of a user's requests beyond the share."""
        team = level.of_team.setdefault(_team_of(claim), _Team())
        self._line_up(team)
        return team.claims.setdefault(claim.user_created, [])

    def pop(self) -> Claim | None:
        """Remove and return the first request, or None if there is no more."""
        for priority in self._order:
            level = self._levels[priority]
            if level.overdue:
                return heappop(level.overdue)[2]
            while level.guaranteed:
                claim = heappop(level.guaranteed)[2]
                if self._standing.is_guaranteed(claim):
                    return claim
                self._push(self._beyond(level, claim), claim)
            if (first := self._pop_beyond(level)) is not None:
                return first
        return None

    def _pop_beyond(self, level: _Level) -> Claim | None:
        """Remove and return the first request of the first user of the first team.

        A user or team whose use has grown since it was sorted is moved first. No use shrinks during a pass.
        """
        while (top := level.teams.first()) is not None:
            stood, name = top
            team = level.of_team[name]
            self._line_up(team)
            user, key = self._first_of(team)
            if key != stood:
                level.teams.put(name, key)
                continue
            claim = heappop(team.claims[user])[2]
            self._put(level, name, user)
            return claim
        return None

    def _line_up(self, team: _Team) -> None:
        """Sort the requests of a team, if they are not sorted yet."""
        kept, team.kept = team.kept, None
        if kept is None:
            return
        for user, asked in kept.items():
            team.claims[user] = claims = list(asked.values())
            heapify(claims)
        team.users.put_all({user: self._key_of(claims) for user, claims in team.claims.items()})

    def _first_of(self, team: _Team) -> tuple[str, _Key]:
        """Return the first user of a team, and the key of the team."""
        while True:
            top = team.users.first()
            assert top is not None, "a team that stands in line has somebody"
            stood, user = top
            asked_at, name, claim = team.claims[user][0]
            team_usage, user_usage = self._standing.uses(claim)
            key = (user_usage, asked_at, name)
            if key == stood:
                return user, (team_usage, *key)
            team.users.put(user, key)

    def _put(self, level: _Level, name: str, user: str) -> None:
        """Update the keys of a user and its team. Remove them if they have no request."""
        team = level.of_team[name]
        if claims := team.claims[user]:
            team.users.put(user, self._key_of(claims))
        else:
            team.users.remove(user)
        if team.users.first() is None:
            level.teams.remove(name)
        else:
            level.teams.put(name, self._first_of(team)[1])

    def _key_of(self, asked: list[_Asked]) -> _Key:
        """Return the key of a user in the team."""
        asked_at, name, claim = asked[0]
        return self._standing.use_of_user(claim), asked_at, name


def _team_of(claim: Claim) -> str:
    return claim.request.team or f"\0{claim.user_created}"  # no team has such a name


# --- reasons


MOST_PASSED = 5
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
    """Return why a request stands behind another. The text names teams, but no users."""
    mine, other = standing.rank(claim), standing.rank(ahead)
    theirs = f"team {ahead.request.team}'s requests" if ahead.request.team else "a request"
    if mine.negated_priority != other.negated_priority:
        return f"Goes after {theirs}: priority {-other.negated_priority} goes before {-mine.negated_priority}."
    if mine.not_overdue != other.not_overdue:
        bound = show_duration(policy_of(ahead, seen).queue.longest_wait_seconds)
        return f"Goes after a request that has waited longer than {bound}."
    if mine.beyond_share != other.beyond_share:
        return "Goes after a request within its guaranteed share: this one is beyond yours."
    return _by_use(claim, theirs, mine, other)


def _by_use(claim: Claim, theirs: str, mine: QueueRank, other: QueueRank) -> str:
    if mine.team_usage != other.team_usage:
        more = _more(mine.team_usage, other.team_usage)
        used = f"your team used {more} for its weight" if claim.request.team else f"you used {more}"
        return f"Goes after {theirs}: {used} lately."
    if mine.user_usage != other.user_usage:
        more = _more(mine.user_usage, other.user_usage)
        return f"Goes after a colleague's request: you used {more} of the team's lately."
    earlier = show_duration(max(1.0, mine.asked_at - other.asked_at))
    return f"Goes after a request that was made {earlier} earlier."


def _more(mine: float, other: float) -> str:
    """Return ``31 % more``, or ``much more`` if the other used next to nothing."""
    percent = inf if other <= 0 else 100 * (mine - other) / other
    return f"{max(1, round(percent))} % more" if percent < 1000 else "much more"  # noqa: PLR2004 - ten times as much
