"""The order of the queue: of two requests, the first of these in which they differ decides.

1. priority: the team's and the template's, added; the higher first;
2. who has waited longer than the policy's ``longest_wait`` goes first, and so does what others ended and comes back;
   among these 3 and 4 count no more;
3. what stays within the guaranteed share, which is the soft quotas of user and team with what is asked, goes before
   what is beyond it. Where no soft quota binds a request, nothing is guaranteed to it;
4. beyond the share, the use of the last days: of the team, divided by its weight, then of the user in it
   (``core.queue.shares``). The smaller goes first; within the share it does not count;
5. when it was asked: the earlier first;
6. the lease's id.

The order is total and transitive. 3 and 4 are judged anew after each grant of a pass: a grant can only worsen them, of
its user and its team alone. No request is asked anew more than once for 3; and of 4 only a team's and a user's place in
a heap change. So a pass takes no square of the number that waits. What 1 to 3 say before a pass is kept between passes
(``core.queue.waiting``), and of 4 only those teams are lined up that come to the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.queue.shares import Uses
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.quotas import Tally


class Rank(NamedTuple):
    """Where a claim stands: the smaller first."""

    against_priority: int
    not_overdue: bool
    beyond_share: bool
    team_use: float
    user_use: float
    asked_at: float
    id: str


class Standing:
    """What the order goes by: of one snapshot, and what a pass has granted since."""

    def __init__(self, seen: Snapshot, tally: Tally, uses: Uses) -> None:
        """Judge by the quotas and uses that a pass keeps up."""
        self.tally = tally
        self._seen, self._uses = seen, uses
        self.use_of_user = uses.of_user
        """Returns the use of a claim's user for its team: asked for so often that a call more counts."""
        self._longest: dict[str, float] = {}

    def rank(self, claim: Claim) -> Rank:
        """Return where a claim stands now."""
        overdue = self.is_overdue(claim)
        beyond = not overdue and not self.is_guaranteed(claim)
        team, user = (self._uses.of_team(claim), self._uses.of_user(claim)) if beyond else (0.0, 0.0)
        return Rank(-self.priority(claim), not overdue, beyond, team, user, claim.asked_at, claim.id)

    def priority(self, claim: Claim) -> int:
        """Return the priority of a claim's team and of its template together."""
        team = self._seen.rules.teams.get(claim.request.team)
        return claim.request.priority + (team.priority if team is not None else 0)

    def is_overdue(self, claim: Claim) -> bool:
        """Whether a claim has waited longer than its policy lets others go first."""
        policy = claim.request.policy
        if policy not in self._longest:
            self._longest[policy] = policy_of(claim, self._seen).queue.longest_wait_seconds
        return claim.waited_seconds(self._seen.now) > self._longest[policy]

    def overdue_at(self, claim: Claim) -> float:
        """Return about when a claim will have waited too long, as things are; infinite where it never will."""
        at = claim.waiting_since + policy_of(claim, self._seen).queue.longest_wait_seconds
        return at if at < claim.waiting_until else inf

    def is_guaranteed(self, claim: Claim) -> bool:
        """Whether what a claim asks for is within the guaranteed share, by the kind that it asks for first."""
        return self.tally.is_guaranteed(claim, self._seen.kinds.get(claim.request.gpu or ""))

    def uses(self, claim: Claim) -> tuple[float, float]:
        """Return the use of a claim's team and of its user."""
        return self._uses.of_team(claim), self._uses.of_user(claim)

    def use_of_team(self, claim: Claim) -> float:
        """Return the use of a claim's team."""
        return self._uses.of_team(claim)


_DEFAULT_POLICY = LifecyclePolicy()


def policy_of(claim: Claim, seen: Snapshot) -> LifecyclePolicy:
    """Return the policy of a claim; the default one where its own left the catalog."""
    return seen.policies.get(claim.request.policy) or seen.policies.get("default") or _DEFAULT_POLICY


_Asked = tuple[float, str, Claim]
_Key = tuple[float | str, ...]


class _Names:
    """A heap of names, each with one key that may be changed; of the entries in it only the newest counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[_Key, str]] = []
        self._key_of: dict[str, _Key] = {}

    def put(self, name: str, key: _Key) -> None:
        if self._key_of.get(name) != key:
            self._key_of[name] = key
            heappush(self._heap, (key, name))

    def put_all(self, keys: dict[str, _Key]) -> None:
        """Take these for all."""
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
    """Those of one priority, by id; who is beyond the share by team and user."""

    overdue: dict[str, _Asked] = field(default_factory=dict)
    guaranteed: dict[str, _Asked] = field(default_factory=dict)
    beyond: dict[str, dict[str, dict[str, _Asked]]] = field(default_factory=dict)


class Lined:
    """Those who wait by priority, share, team and user, as they stood when each was judged last."""

    def __init__(self) -> None:
        """Hold nobody yet."""
        self.levels: dict[int, _Kept] = {}
        self._priority: dict[str, int] = {}

    def add(self, claim: Claim, standing: Standing) -> None:
        """Judge one more, or one anew."""
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
        """Hold one no more."""
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
    """Those of one team who are beyond their share: users by use, each with a heap of claims."""

    users: _Names = field(default_factory=_Names)
    claims: dict[str, list[_Asked]] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, _Asked]] | None = None
    """Those who are not lined up yet: most teams do not come to the top before nothing is left."""


@dataclass
class _Level:
    """Those of one priority."""

    overdue: list[_Asked] = field(default_factory=list)
    guaranteed: list[_Asked] = field(default_factory=list)
    teams: _Names = field(default_factory=_Names)
    of_team: dict[str, _Team] = field(default_factory=dict)


class Line:
    """Those who wait, in order, while a pass grants to them."""

    def __init__(self, lined: Lined, standing: Standing) -> None:
        """Line up; ``lined``, as they stand now, is not changed."""
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
        """Return the heap of a user's claims that are beyond the share."""
        team = level.of_team.setdefault(_team_of(claim), _Team())
        self._line_up(team)
        return team.claims.setdefault(claim.user_created, [])

    def pop(self) -> Claim | None:
        """Take out the first; None where nobody is left."""
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
        """Take the first claim of the first user of the first team.

        Who is at the top of a heap with a smaller use than by now is put where they belong first: all below have, by
        now, no less than they stand with.
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
        """Line up those of a team, where that is not done."""
        kept, team.kept = team.kept, None
        if kept is None:
            return
        for user, asked in kept.items():
            team.claims[user] = claims = list(asked.values())
            heapify(claims)
        team.users.put_all({user: self._key_of(claims) for user, claims in team.claims.items()})

    def _first_of(self, team: _Team) -> tuple[str, _Key]:
        """Return the first user of a team, and the key by which it stands among the teams."""
        while True:
            top = team.users.first()
            assert top is not None, "a team that stands in line has somebody"
            stood, user = top
            asked_at, name, claim = team.claims[user][0]
            team_use, user_use = self._standing.uses(claim)
            key = (user_use, asked_at, name)
            if key == stood:
                return user, (team_use, *key)
            team.users.put(user, key)

    def _put(self, level: _Level, name: str, user: str) -> None:
        """Let a user and its team stand by the first claim that they have; without one they leave."""
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
        """Return the key by which a user stands in the team."""
        asked_at, name, claim = asked[0]
        return self._standing.use_of_user(claim), asked_at, name


def _team_of(claim: Claim) -> str:
    return claim.request.team or f"\0{claim.user_created}"  # no team has such a name
