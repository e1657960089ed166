"""The effects of extra quota before it is given: the new limits, what is left then, and what still limits its user."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gpuspawner.core.calendar import milliseconds, split_by_period
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.quotas.budgets import BudgetBalance, budget_amount_text, budget_text, period_text
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.quotas.limits import Requester, effective_limits, granted_amount, show_amount
from gpuspawner.core.rules import Account, Quota, QuotaGrant, QuotaScope
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.models import GrantEffect
from gpuspawner.service.quotas.presenter import NO_EFFECT, grantee, present_grant
from gpuspawner.service.quotas.standing import whose_words

SHARED = frozenset({QuotaScope.TEAM, QuotaScope.EVERYBODY})


def effects_of(state: Parts, grant: QuotaGrant) -> list[GrantEffect]:
    """Return the effects of extra quota at its beginning, those on its user or team first."""
    at, account = max(state.clock.now(), grant.since), grant.account
    is_of_all_teams = account.user_created and not account.team
    teams = ["", *state.catalog.rules.teams] if is_of_all_teams else [account.team]
    found = [
        effect
        for asker in (Requester(grant.user, account.user_created, team) for team in teams)
        for effect in (*_limits(state, grant, asker, at), *_budgets(state, grant, asker, at))
    ]
    if not found:
        return [GrantEffect(kind="warn", words=NO_EFFECT.format(grantee(grant)))]
    return [*{effect.words: effect for effect in found}.values(), *_others(state, grant)]


def added_for_limit(state: Parts, grant: QuotaGrant) -> Fraction:
    """Return what makes the amount of extra quota the whole limit or budget of its account at its beginning.

    Raises:
        RequestRefused: there is no such limit, or it is the same.
    """
    at, account = max(state.clock.now(), grant.since), grant.account
    asker = Requester(grant.user, account.user_created, account.team)
    limits = effective_limits(asker, state.catalog.rules, state.accounting.grants, at)
    found = [
        one.hard
        for one in limits
        if (one.limit.what, one.limit.kind, one.limit_key.account) == (grant.what, grant.kind, account)
    ]
    balances = state.allocator.bounds.balances().of(asker, at)
    found += [one.hard for one in balances if (one.budget.what, one.account) == (grant.what, account)]
    present = min((Fraction(hard) for hard in found if hard is not None), default=None)
    if present is None:
        raise RequestRefused("what", show_grant(grant), f"limits of {grantee(grant)}", "Name what the catalog limits.")
    if present == grant.amount:
        remedy = f"The limit of {grantee(grant)} is the same now."
        raise RequestRefused("what", show_grant(grant), "another limit than now", remedy)
    return grant.amount - present


def _whose(state: Parts, grant: QuotaGrant, entry: Quota, account: Account) -> str:
    """Return the user or team of a limit or budget as an administrator reads it."""
    if entry.whom in SHARED:
        return whose_words(entry, account, state.catalog)
    return f"{grant.user} in {account.team}" if account.team else grant.user


def _limits(state: Parts, grant: QuotaGrant, asker: Requester, at: float) -> Iterator[GrantEffect]:
    rules, grants, kinds = state.catalog.rules, state.accounting.grants, state.catalog.gpus
    before, after = (effective_limits(asker, rules, some, at) for some in (grants, [*grants, grant]))
    about = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if (new.limit.what, new.limit.kind) == (grant.what, grant.kind)
    ]
    raised = [new.hard for old, new in about if new != old]
    for old, new in about:
        whose = _whose(state, grant, new.entry, new.limit_key.account)
        if new == old:
            if new.hard is not None and any(hard is None or new.hard < hard for hard in raised):
                yield _warn(f"The limit of {whose} stays {show_amount(new.limit, new.hard, kinds)} at once.")
        elif old.hard is not None and new.hard is not None:
            most, earlier = (show_amount(new.limit, number, kinds) for number in (new.hard, old.hard))
            yield _good(f"{whose}: up to {most} at once instead of {earlier}.")
        else:
            share, earlier = (show_amount(new.limit, one.soft or 0, kinds) for one in (new, old))
            yield _good(f"{whose}: a share of {share} at once instead of {earlier}.")


def _budgets(state: Parts, grant: QuotaGrant, asker: Requester, at: float) -> Iterator[GrantEffect]:
    balances = state.allocator.bounds.balances()
    about = [one for one in balances.of(asker, at) if one.budget.what is grant.what]
    added = [granted_amount([grant], one.account, one.budget.what, at) for one in about]
    for balance, more in zip(about, added, strict=True):
        if more:
            whose = _whose(state, grant, balance.entry, balance.account)
            yield _of_budget(whose, balance, more, balances.now)
            yield from _each_period(state, grant, balance, at)
        elif any(added) and balance.left is not None and balance.left < grant.amount:
            left, budget = budget_amount_text(balance.left, balance), budget_text(balance, balances.now)
            yield _warn(f"Only {left} are left of {budget}.")


def _of_budget(whose: str, balance: BudgetBalance, more: Fraction, now: float) -> GrantEffect:
    period = period_text(balance, now)
    if balance.hard is None or balance.left is None:
        share, before = (budget_amount_text((balance.soft or 0) + x, balance) for x in (more, Fraction(0)))
        return _good(f"{whose}: a share of {share} {period} instead of {before}.")
    after = max(Fraction(0), balance.hard + more - balance.used - balance.reserved)
    left, before = budget_amount_text(after, balance), budget_amount_text(balance.left, balance)
    return _good(f"{whose}: {left} left {period} instead of {before}.")


def _each_period(state: Parts, grant: QuotaGrant, balance: BudgetBalance, at: float) -> Iterator[GrantEffect]:
    per, zone = balance.budget.per, state.accounting.zone
    count = sum(1 for _ in split_by_period(milliseconds(at), milliseconds(grant.until), per, zone))
    if count > 1:
        yield GrantEffect(kind="info", words=f"The amount is added in each of {count} {per.value}s.")


def _others(state: Parts, grant: QuotaGrant) -> Iterator[GrantEffect]:
    """Yield the extra quota for the same user or team that adds up with this."""
    for one in state.accounting.grants:
        is_same = (one.account, one.what, one.kind) == (grant.account, grant.what, grant.kind)
        if is_same and one.since < grant.until and grant.since < one.until:
            yield GrantEffect(kind="info", words=f"{present_grant(state, one).words} already. Both add up.")


def _good(words: str) -> GrantEffect:
    return GrantEffect(kind="good", words=f"{words[:1].upper()}{words[1:]}")


def _warn(words: str) -> GrantEffect:
    return GrantEffect(kind="warn", words=words)
