"""The effects of budgets on leases: at a request, a grant, a start, an extension, or new extra quota."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpuspawner.catalog import Catalog
from gpuspawner.core import events
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.placement import is_wanted_by_others
from gpuspawner.core.leases.lease import UP, WAITING, Key, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.step_results import Extension
from gpuspawner.core.queue.index import BudgetBalancesCache
from gpuspawner.core.quotas.budgets import (
    BudgetBalances,
    BudgetVerdict,
    budget_refusal,
    budget_text,
    min_start_seconds,
    with_latest_end,
)
from gpuspawner.core.quotas.ledger import BUDGET_RULE, rate_of
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import LatestEnd, Rate
from gpuspawner.core.units import show_duration
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine

_AS_THEY_ARE: Mapping[str, Lease] = MappingProxyType({})


def requester_of(lease: Lease) -> Requester:
    """Return the user and team that are charged for a lease."""
    return Requester(lease.user, lease.key.user_created, lease.request.team)


class BudgetBounds:
    """Computes bounds from the present budget balances."""

    def __init__(
        self, registry: LeaseRegistry, clock: Clock, catalog: Callable[[], Catalog], accounting: Accounting
    ) -> None:
        """Compute bounds for leases of ``registry`` from the usage in ``accounting``."""
        self._registry, self._clock, self._catalog, self._accounting = registry, clock, catalog, accounting
        self._kept = BudgetBalancesCache()
        self._owes = False
        """Whether extensions after new extra quota could not be stored yet."""

    def balances(self, without: str = "", instead: Mapping[str, Lease] = _AS_THEY_ARE) -> BudgetBalances:
        """Return the budget balances now, without one lease, and with the leases of ``instead`` in place of theirs."""
        now, rules, accounts, grants = (
            self._clock.now(), self._catalog().rules, self._accounting.accounts, self._accounting.grants
        )  # fmt: skip
        left_out = self._registry.get(without)
        if not instead and (left_out is None or left_out.phase in WAITING):  # a waiting request reserves nothing
            return self._kept.of(now, self._registry.view(), rules, accounts, grants)
        leases = (instead.get(lease.id, lease) for lease in self._registry if lease.id != without)
        return BudgetBalances(now, leases, rules, accounts, grants)

    def rate(self, kind: str | None, count: int) -> Rate:
        """Return the present charge rate of ``count`` GPUs of a kind."""
        return rate_of(self._catalog().gpus.get(kind or ""), count)

    def with_rate(self, lease: Lease) -> Lease:
        """Return a lease with its granted rate, or with the present rate if it has none."""
        return lease if lease.rate is not None else replace(lease, rate=self.rate(lease.kind, lease.request.count))

    def check(self, request: Request, key: Key, kind: str = "") -> LatestEnd | None:
        """Return the bound that a budget would set on the end of a start, None without a bound.

        It is for ``kind`` if the granted kind is known, otherwise for the first accepted kind with enough budget left,
        because substitutes may cost less.

        Raises:
            RequestRefused: no kind has enough budget left for a start.
        """
        mine = self._registry.of_key(key)
        balances = self.balances("" if mine is None else mine.id)
        kinds = (kind,) if kind else (request.gpu, *request.substitutes)
        verdicts = [self._verdict(balances, request, key, one) for one in kinds]
        enough = (one for one in verdicts if one.balance is None or one.seconds >= self._least(request))
        found = next(enough, None)
        if found is None:
            raise self._refusal(request, verdicts[0])
        return found.latest_end

    def _verdict(self, balances: BudgetBalances, request: Request, key: Key, kind: str | None) -> BudgetVerdict:
        asker = Requester(request.user, key.user_created, request.team)
        return balances.verdict(asker, self.rate(kind, request.count), balances.now, request.lifetime_seconds)

    def _refusal(self, request: Request, verdict: BudgetVerdict) -> RequestRefused:
        asked = f"{request.count or 'no'} GPU{'' if request.count == 1 else 's'}"
        fewer = math.floor(request.count * verdict.seconds / self._least(request))
        template = self._catalog().templates.get(request.template)
        offered = template is not None and template.gpus.get(request.gpu or "", (1, 1))[0] <= fewer
        limit, remedy = budget_refusal(
            verdict, fewer if offered else 0, self._catalog().rules.contact, self._clock.now()
        )
        return RequestRefused(
            verdict.balance.budget.what.value if verdict.balance else "",
            f"{asked} for {show_duration(request.lifetime_seconds)}",
            limit,
            remedy,
            status=403,
        )

    def _least(self, request: Request) -> float:
        catalog = self._catalog()
        template = catalog.templates.get(request.template)
        least = 0.0 if template is None else float(template.bounds.lifetime_seconds[0])
        return min_start_seconds(least, request.lifetime_seconds, catalog.fast or 1.0)

    def with_grant_bound(self, lease: Lease, fixed: LatestEnd | None) -> Lease | None:
        """Return a granted lease with its rate and the bounds on its end, None if a budget leaves too little.

        ``fixed`` is the bound of another rule.
        """
        request = lease.request
        rate = self.rate(lease.kind, request.count)
        verdict = self.balances(lease.id).verdict(
            requester_of(lease), rate, self._clock.now(), request.lifetime_seconds
        )
        least = min_start_seconds(
            0, request.lifetime_seconds, self._catalog().fast or 1.0
        )  # the same as in the order of the queue
        if verdict.balance is not None and verdict.seconds < least:
            return None
        return with_latest_end(replace(lease, rate=rate, fixed_end=fixed), verdict.latest_end)

    def with_running_bound(self, lease: Lease) -> Lease:
        """Return a lease whose server now answers, with the present bound on its end.

        The start itself used no budget. The lease ends no earlier than its user was told. An adopted lease is charged,
        but no budget ends it.
        """
        lease = self.with_rate(lease)
        if lease.adopted or lease.rate is None or lease.granted_at is None:
            return with_latest_end(lease, None)
        now, seconds = self._clock.now(), float(lease.request.lifetime_seconds)
        verdict = self.balances(lease.id).verdict(requester_of(lease), lease.rate, now, seconds)
        before, found = lease.latest_end, verdict.latest_end
        if found is None:
            return with_latest_end(lease, None)
        if before is not None and before.rule == BUDGET_RULE:
            return with_latest_end(lease, max(found, before, key=lambda one: one.at))
        told = lease.granted_at + seconds
        return with_latest_end(lease, found if found.at >= told else replace(found, at=told))

    def of_extension(
        self, lease: Lease, seconds: float, others: Mapping[str, Lease] = _AS_THEY_ARE
    ) -> LatestEnd | None:
        """Return the bound on the end of a lease if it runs ``seconds`` longer, None without a bound.

        ``others`` are leases by their id, as they will be then.
        """
        verdict = self._longer(lease, seconds, others)
        return with_latest_end(lease, verdict.latest_end).latest_end

    def earlier_extension(self, lease: Lease) -> Extension | None:
        """Return the run that an administrator granted before the workspace came back; None if no time is left."""
        at, until = lease.deadline_at, lease.granted_until or 0.0
        if lease.phase not in UP or at is None or at >= until:
            return None
        latest = self.of_extension(lease, until - at)
        end = until if latest is None else min(until, latest.at)
        return Extension(at, end, latest) if end > at else None

    def _longer(self, lease: Lease, seconds: float, others: Mapping[str, Lease] = _AS_THEY_ARE) -> BudgetVerdict:
        if lease.adopted or lease.rate is None or lease.deadline_at is None:
            return BudgetVerdict(seconds)
        balances = self.balances(instead=others)
        return balances.verdict(requester_of(lease), lease.rate, lease.deadline_at, seconds)

    def reason_not_to_extend(self, lease: Lease) -> str:
        """Return in a sentence why a lease may not be extended while others wait, "" if it may."""
        catalog = self._catalog()
        policy = policy_of(catalog, lease, self._clock.now())
        if policy.extend.others_wait or not is_wanted_by_others(lease, self._registry, catalog.gpus):
            return ""
        return (
            f"Extend: others wait for these GPUs, and the policy {policy.name} gives them to waiting requests. "
            "Save your work before the end. Your files are kept, and you can start again."
        )

    async def extend_shortened(self) -> None:
        """Extend leases that a budget shortened, as far as budgets allow after new extra quota."""
        self._owes = True
        await step_each("giving back what a budget cut", self._registry, self._lengthened, self._registry.failures)
        self._owes = False

    def _lengthened(self, lease: Lease) -> asyncio.Future[None] | None:
        bound, deadline_at = lease.latest_end, lease.deadline_at
        if lease.phase not in UP or bound is None or bound.rule != BUDGET_RULE:
            return None
        if deadline_at is None or lease.running_at is None:
            return None
        asked_end = lease.running_at + lease.request.lifetime_seconds + lease.extended_seconds
        latest = self.of_extension(lease, asked_end - deadline_at) if asked_end > deadline_at else bound
        end = asked_end if latest is None else min(asked_end, latest.at)
        if end <= deadline_at:
            return None
        longer = replace(lease, deadline_at=end, latest_end=latest, warned_seconds=())
        line = AuditLine(self._clock.now(), lease.id, lease.user, "gpuspawner", events.Extended(end - deadline_at))
        return self._registry.save(longer, audit=[line])

    async def catch_up(self) -> None:
        """Store extensions that could not be stored at the time of new extra quota."""
        if self._owes:
            await self.extend_shortened()

    def used_up_sentence(self, lease: Lease) -> str:
        """Return in a sentence which budget ends a lease, and when the budget resets."""
        name, now = "" if lease.latest_end is None else lease.latest_end.name, self._clock.now()
        found = [
            one for one in self.balances().of(requester_of(lease)) if one.entry.name == name and one.hard is not None
        ]
        if not found:
            return f"The budget {name} was used up."
        balance = min(found, key=lambda one: one.hard - one.used if one.hard is not None else 0)
        words = budget_text(balance, now)
        return f"{words[0].upper()}{words[1:]} are used up. They reset {balance.renews(now)}."
