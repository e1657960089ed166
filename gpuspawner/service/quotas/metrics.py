"""The used part of each entry of ``quotas`` for Prometheus. An entry for each user has that of the user with most."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gpuspawner.core.quotas.limits import Amount, Requester, requester_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import QuotaScope
from gpuspawner.service.parts import Parts


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
