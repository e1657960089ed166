"""The used ratio of each entry of ``quotas``, for Prometheus. An entry for each user has the ratio of the fullest."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.quotas.limits import Amount, Who, who_of
from gpuspawner.core.quotas.usage import Tally
from gpuspawner.core.rules import Whom
from gpuspawner.service.parts import Parts


def used_ratios(parts: Parts) -> dict[tuple[str, str], float]:
    """Return how much of each limit and budget is used, of 1, by entry and limit: of its ``hard``, else its ``soft``.

    A limit is ``gpus``, ``workspaces``, ``cpu``, ``memory`` or a kind's name, of which is used what is held: what waits
    is not. A budget is ``gpu_hours/week``, of which is used what was used and is set aside. What bounds
    nothing has none.
    """
    if not parts.catalog.rules.quotas:
        return {}
    tally, balances = Tally(parts.allocator.observed.snapshot()), parts.allocator.bounds.balances()
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


def _whos(parts: Parts) -> Iterator[Who]:
    """Yield all whose use may be in an entry: each has at least one to be counted by."""
    yield from map(who_of, parts.registry)
    yield Who("", "", "")
    for entry in parts.catalog.rules.quotas:
        yield Who(entry.subject if entry.whom is Whom.USER else "", "", "")
        if entry.whom not in {Whom.USER, Whom.EACH_USER, Whom.EVERYBODY}:
            yield Who("", "", entry.subject)
    for account, _, _ in parts.allocator.accounting.accounts.charged:
        if account.user_created:
            yield Who("", account.user_created, account.team)
