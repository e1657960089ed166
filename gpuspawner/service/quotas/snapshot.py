"""All limits and budgets at one instant, for the pages, lists and exports of administrators, and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.quotas.budgets import BudgetBalances
from gpuspawner.core.quotas.limits import Amount, Requester, requester_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import Quota, QuotaScope
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.standing import Standing, budget_standing, limit_standing
from gpuspawner.service.waiting.shared_results import yield_to_others

USERS_AT_A_TIME = 20
"""After this many users, other work has its turn. Some milliseconds."""
FORMER = " (before)"
"""Added to the name of a user if another user has the name now."""


@dataclass(frozen=True)
class QuotaSnapshot:
    """All limits and budgets at one instant. ``names`` are the names of users by their ``created``."""

    state: Parts
    tally: QuotaTally
    balances: BudgetBalances
    names: dict[str, str]

    @classmethod
    async def take(cls, state: Parts) -> QuotaSnapshot:
        """Return the present snapshot."""
        names = await names_of(state)
        seen = state.allocator.observed.snapshot()
        tally = QuotaTally(seen, state.allocator.observed.holdings(seen))
        return cls(state, tally, state.allocator.bounds.balances(), names)

    def standings(self, entry: Quota, asker: Requester, whose: str) -> list[Standing]:
        """Return the limits and budgets of an entry for one user or team."""
        catalog, now = self.state.catalog, self.balances.now
        user = "" if asker.user.endswith(FORMER) else asker.user
        uses = self.tally.uses(Requester(asker.user, asker.user_created, asker.team))
        limits = [limit_standing(one, catalog, whose, user) for one in uses if one.bound.entry is entry]
        balances = [one for one in self.balances.of(asker) if one.entry is entry]
        return [*limits, *(budget_standing(one, catalog, now, whose, user) for one in balances)]

    async def all_standings(self) -> list[Standing]:
        """Return the limits and budgets of everybody. Other work goes on meanwhile."""
        found = []
        for entry in self.state.catalog.rules.quotas:
            for number, (asker, whose) in enumerate(self.counted(entry)):
                if number % USERS_AT_A_TIME == 0:
                    await yield_to_others()
                found += self.standings(entry, asker, whose)
        return found

    def counted(self, entry: Quota) -> Iterator[tuple[Requester, str]]:
        """Yield each user or team that an entry counts, with their name."""
        state, names = self.state, self.names
        if entry.whom is QuotaScope.EVERYBODY:
            yield Requester("", "", ""), "everybody"
        elif entry.whom is QuotaScope.TEAM:
            yield Requester("", "", entry.subject), f"team {team_title(state.catalog, entry.subject)}"
        elif entry.whom is QuotaScope.USER:
            created = next((created for created, name in names.items() if name == entry.subject), "")
            yield Requester(entry.subject, created, ""), entry.subject
        else:
            team = entry.subject if entry.whom is QuotaScope.EACH_OF_TEAM else ""
            charged = state.accounting.accounts.charged
            users = {account.user_created for (account, _, _), much in charged.items() if much and account.team == team}
            users |= {lease.key.user_created for lease in state.registry if not team or lease.request.team == team}
            for created in sorted(users & names.keys(), key=names.__getitem__):
                yield Requester(names[created], created, team), names[created]


async def standings_of_all(state: Parts) -> list[Standing]:
    """Return the limits and budgets of everybody. With thousands of them they are some seconds old."""

    async def make() -> list[Standing]:
        snapshot = await QuotaSnapshot.take(state)
        return await snapshot.all_standings()

    return await state.queue.compute_in_background("standings", make)


async def names_of(state: Parts) -> dict[str, str]:
    """Return the names of all users who have or had a workspace or usage, by their ``created``."""
    used = await state.store.read(state.store.usage_sums.latest_names)
    live = {lease.key.user_created: lease.user for lease in state.registry}
    now = {name: created for created, name in sorted({**used, **live}.items())} | {v: k for k, v in live.items()}
    former = {created: f"{name}{FORMER}" for created, name in used.items() if now[name] != created}
    return {**used, **live, **former}


def used_ratios(parts: Parts) -> dict[tuple[str, str], float]:
    """Return the used part of each limit and budget by entry and limit: of its ``hard``, else of its ``soft``.

    A limit is ``gpus``, ``workspaces``, ``cpu``, ``memory`` or the name of a kind. Waiting requests do not use it. A
    budget is for example ``gpu_hours/week``. Its used part includes the reserved one. An entry without a bound has no
    part.
    """
    if not parts.catalog.rules.quotas:
        return {}
    seen = parts.allocator.observed.snapshot()
    tally = QuotaTally(seen, parts.allocator.observed.holdings(seen))
    balances = parts.allocator.bounds.balances()
    found: dict[tuple[str, str], Fraction] = {}

    def note(entry: str, limit: str, used: Amount, most: Amount | None) -> None:
        if most:
            found[entry, limit] = max(found.get((entry, limit), Fraction(0)), Fraction(used) / most)

    for who in set(_whos(parts)):
        for bound, held, _ in tally.uses(who):
            limit = bound.limit.kind or bound.limit.what.value
            note(bound.entry.name, limit, held, bound.soft if bound.hard is None else bound.hard)
        for one in balances.of(Requester(*who)) if balances.bind else ():
            limit = f"{one.budget.what.value}/{one.budget.per.value}"
            note(one.entry.name, limit, one.used + one.reserved, one.soft if one.hard is None else one.hard)
    return {key: float(ratio) for key, ratio in found.items()}


def _whos(parts: Parts) -> Iterator[Requester]:
    """Yield every user and team whose usage an entry may count."""
    yield from map(requester_of, parts.registry)
    yield Requester("", "", "")
    for entry in parts.catalog.rules.quotas:
        yield Requester(entry.subject if entry.whom is QuotaScope.USER else "", "", "")
        if entry.whom not in {QuotaScope.USER, QuotaScope.EACH_USER, QuotaScope.EVERYBODY}:
            yield Requester("", "", entry.subject)
    for account, _, _ in parts.allocator.accounting.accounts.charged:
        if account.user_created:
            yield Requester("", account.user_created, account.team)
