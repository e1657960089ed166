"""Forecast when waiting requests start: repeat the grant decision at each predicted end of a workspace.

The forecast covers the first :data:`MOST_FORECAST` requests. It decides at each moment at which a decision may change.
After :data:`MOST_EXACT_STEPS` decisions it becomes coarse and takes moments that are close to each other together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.core.leases.lease import HOLDING, UP, Key, Lease, Phase
from gpuspawner.core.queue.class_holds import HeldGpus, class_hold_gpus
from gpuspawner.core.queue.decisions import Grant, decide
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.order import policy_of
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, NO_LIMIT, Claim, LiveLeases, Snapshot, end_at
from gpuspawner.core.quotas.budgets import BudgetBalances, ClaimBudgets
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS, decayed_gpu_seconds_of, rate_of
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import Accounts

MOST_FORECAST = 100
"""Number of requests that a forecast covers. Each one costs about one decision."""
MOST_EXACT_STEPS = 200
"""Number of decisions before a forecast becomes coarse. This bounds the time that a forecast takes."""
COARSE_STEP = 0.05
"""A coarse step is this share of the time until then: 3 minutes in an hour from now."""

EndOf = Callable[[Lease, float], float]
"""Returns the predicted end of a lease, in seconds since the epoch, as it is predicted at the given time."""


class PredictedStart(NamedTuple):
    """The predicted start of a request: its time in seconds since the epoch, and the GPU kind ("" for no GPU)."""

    at: float
    kind: str


class Future(NamedTuple):
    """What a forecast expects: the ends of workspaces, and later requests.

    ``end_of`` predicts the end of a workspace that holds something, also of one that starts in the forecast. Nothing is
    granted to the requests of ``later`` before their ``not_before``.
    """

    end_of: EndOf
    later: Sequence[Claim] = ()


def forecast_each(
    seen: Snapshot, index: Index, claims: Sequence[Claim], futures: Iterable[Future], horizon_seconds: float = inf
) -> list[dict[str, PredictedStart]]:
    """Return for each future the predicted start of each request by lease id, in the order of the starts.

    Args:
        seen: the queue and the cluster now.
        index: what is derived from ``seen``. It is the same again when the function returns.
        claims: the waiting requests to forecast. Other waiting requests are left out.
        futures: the expected ends and later requests.
        horizon_seconds: how far the forecast looks ahead.

    Returns:
        No entry for a request that does not start by any predicted end.
    """
    present, found = _Present(seen, claims), list[dict[str, PredictedStart]]()
    try:
        for future in futures:
            run = _Forecast(present, future)
            run.run(index, {claim.id for claim in claims}, seen.now + horizon_seconds)
            expected = {claim.id for claim in future.later}
            found.append({name: start for name, start in run.starts.items() if name not in expected})
    finally:
        index.see(seen)
    return found


class _Present:
    """The state from which all forecasts begin. They share its leases, so that an index compares only the others."""

    def __init__(self, seen: Snapshot, claims: Sequence[Claim]) -> None:
        self.seen = replace(
            seen, most_starts=NO_LIMIT, most_starts_each=NO_LIMIT, hub_answers=True, processes_known=True
        )
        self.holding = [_as_running(lease, seen) for lease in seen.leases if lease.phase in HOLDING]
        self.leases = [*self.holding, *(_lease_of(claim, seen.now) for claim in claims)]
        self.changes = _changes(seen, claims)
        self.needs_no_gpu = any(claim.request.gpu is None for claim in claims)


class _Forecast:
    """One forecast: the leases as they change with the predicted time."""

    def __init__(self, present: _Present, future: Future) -> None:
        seen = self._seen = present.seen
        self._end_of = future.end_of
        self.starts: dict[str, PredictedStart] = {}
        self._leases = LiveLeases([*present.leases, *(_lease_of(claim, seen.now) for claim in future.later)])
        self._ends = [(at, lease.id) for lease in present.holding if (at := future.end_of(lease, seen.now)) < inf]
        heapify(self._ends)
        self._held: tuple[HeldGpus, ...] = ()
        self._held_until = -inf
        self._changes = sorted(present.changes | _claim_changes(seen, future.later), reverse=True)
        self._pools = {kind.pool for kind in seen.kinds.values()}
        self._needs_no_gpu = present.needs_no_gpu or any(claim.request.gpu is None for claim in future.later)
        self._used = dict(seen.accounts.decayed_gpu_seconds)
        """The use of ended workspaces for the fair share, in GPU seconds as they count now."""
        self._balances = BudgetBalances(seen.now, present.holding, seen.rules, seen.accounts, seen.quota_grants)
        """Budgets by what runs now and in the forecast. A workspace that has ended in it stays, up to its end.

        So its use counts in the period in which it falls, and the charges of the present period in no other.
        """

    def run(self, index: Index, waiting: set[str], until: float) -> None:
        """Decide at each moment until all that are ``waiting`` have started."""
        at, steps = self._seen.now, 0
        while waiting and at <= until and at < inf:
            then = self._seen_at(at)
            index.see(then)
            for given in self._decide(then, index):
                self._start(given, at)
                waiting.discard(given.claim.id)
            at, steps = self._next(at, steps), steps + 1
            self._end_until(at)

    def _decide(self, then: Snapshot, index: Index) -> Sequence[Grant]:
        if not (self._needs_no_gpu or any(index.pools.has_free(pool) for pool in self._pools)):
            return ()
        return decide(then, index=index, balances=self._balances, held=self._held_at(then)).grants

    def _next(self, at: float, steps: int) -> float:
        following = min(self._ends[0][0] if self._ends else inf, self._changes[-1] if self._changes else inf)
        if following < inf and steps >= MOST_EXACT_STEPS:
            following = max(following, at + COARSE_STEP * (at - self._seen.now))
        return following

    def _seen_at(self, at: float) -> Snapshot:
        kept = tuple(one for one in self._seen.kept if one.until > at)
        factor = _decay(self._seen.now, at)
        accounts = Accounts(decayed_gpu_seconds={account: used * factor for account, used in self._used.items()})
        return replace(self._seen, now=at, leases=self._leases.seen(), kept=kept, accounts=accounts)

    def _held_at(self, then: Snapshot) -> tuple[HeldGpus, ...]:
        if then.now >= self._held_until:
            self._held = class_hold_gpus(then)
            edges = (at for held in self._held for at in held.opening if at > then.now)
            self._held_until = min(edges, default=inf)
        return self._held

    def _start(self, given: Grant, at: float) -> None:
        claim, lease = given.claim, self._leases.get(given.claim.id)
        assert lease is not None, "only a request that waits is granted"
        self.starts[claim.id] = PredictedStart(at, given.kind or "")
        bound = inf if given.latest_end is None else given.latest_end.at
        running = replace(
            lease, phase=Phase.RUNNING, slots=given.slots, given=given.substitute, granted_at=at, running_at=at,
            rate=rate_of(self._seen.kinds.get(given.kind or ""), claim.request.count),
            deadline_at=min(at + claim.request.lifetime_seconds, bound),
        )  # fmt: skip
        self._leases.put(running)
        self._balances.remove(running)  # what the decision has set aside
        self._balances.add(running)
        heappush(self._ends, (max(self._end_of(running, at), at + LEAST_WAIT_SECONDS), claim.id))

    def _end_until(self, at: float) -> None:
        while self._changes and self._changes[-1] <= at:
            self._changes.pop()
        while self._ends and self._ends[0][0] <= at < inf:
            end, name = heappop(self._ends)
            lease = self._leases.get(name)
            assert lease is not None, "a workspace ends once"
            used = decayed_gpu_seconds_of(lease, end) / _decay(self._seen.now, end)
            for account in accounts_of(lease.key.user_created, lease.request.team):
                self._used[account] = self._used.get(account, 0.0) + used
            self._balances.remove(lease)
            self._balances.add(replace(lease, deadline_at=end))
            self._leases.remove(name)


def _as_running(lease: Lease, seen: Snapshot) -> Lease:
    rate = lease.rate or rate_of(seen.kinds.get(lease.kind or ""), lease.request.count)
    if lease.phase is Phase.STOPPING or lease.phase in UP:
        return lease if lease.rate is not None else replace(lease, rate=rate)
    return replace(lease, phase=Phase.RUNNING, rate=rate, running_at=seen.now, deadline_at=end_at(lease, seen.now))


def _lease_of(claim: Claim, now: float) -> Lease:
    waited = claim.waited_seconds(now)
    return Lease(
        claim.id, Key("", claim.user_created, claim.id), claim.user, claim.request, {}, claim.asked_at,
        attempt=claim.attempt, not_before=claim.not_before, tried_nodes=claim.tried_nodes,
        waiting_since=None if waited == inf else max(now, claim.asked_at) - waited, came_back=waited == inf,
        queue_move=claim.queue_move,
    )  # fmt: skip


def _changes(seen: Snapshot, claims: Iterable[Claim]) -> set[float]:
    found = {kept.until for kept in seen.kept}
    found |= {at for grant in seen.quota_grants for at in (grant.since, grant.until)}
    found |= {at for held in class_hold_gpus(seen) for at in (held.opening.opens_at, held.opening.ends_at)}
    return {at for at in found if seen.now < at < inf} | _claim_changes(seen, claims)


def _claim_changes(seen: Snapshot, claims: Iterable[Claim]) -> set[float]:
    budgets, found = ClaimBudgets(seen), set[float]()
    for claim in claims:
        kinds: Sequence[GpuKind | None] = accepted_kinds(claim.request, seen.kinds) or (None,)
        until_overdue = policy_of(claim, seen).queue.longest_wait_seconds - claim.waited_seconds(seen.now)
        found |= {claim.not_before, budgets.opens_at(claim, kinds), nextafter(seen.now + until_overdue, inf)}
    return {at for at in found if seen.now < at < inf}


def _decay(since: float, until: float) -> float:
    return math.pow(0.5, (until - since) / HALF_LIFE_SECONDS)
