"""What a whole start costs if it runs to its end, and what that leaves of budgets."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gpuspawner.core.calendar import HOUR_MS, milliseconds
from gpuspawner.core.leases.lease import Key
from gpuspawner.core.leases.request import Request
from gpuspawner.core.quotas.budgets import BudgetBalance, budget_amount_text, budget_text
from gpuspawner.core.quotas.ledger import amount_per_hour
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import Rate
from gpuspawner.core.units import show_duration, show_money
from gpuspawner.service.parts import Parts


def cost_view(parts: Parts, request: Request, key: Key, kind: str | None, seconds: float) -> dict[str, Any]:
    """Return what ``seconds`` of a request on GPUs of ``kind`` cost, null where no price is set, and it all in words.

    Budgets of GPU hours are told too: of each with a bound, what is left of its present period once this is set aside.
    """
    found, now = parts.catalog.gpus.get(kind or ""), parts.clock.now()
    rate = parts.allocator.bounds.rate(kind, request.count)
    mine = parts.book.of_key(key)
    balances = parts.allocator.bounds.balances("" if mine is None else mine.id)
    asker = Requester(request.user, key.user_created, request.team)
    left = list(_left(balances.of(asker), rate, now, seconds))
    currency = parts.catalog.rules.currency
    if found is None or found.price_per_hour is None:
        return {"amount": None, "currency": currency or None, "words": left}
    amount = float(rate.price_per_hour) * seconds / 3600
    an_hour = show_money(float(rate.price_per_hour), currency)
    whole = f"Costs {show_money(amount, currency)} if it runs for all of its {show_duration(seconds)}"
    return {"amount": amount, "currency": currency or None, "words": [f"{whole}: {an_hour} an hour.", *left]}


def _left(balances: list[BudgetBalance], rate: Rate, now: float, seconds: float) -> Iterator[str]:
    """Yield for each bound what it leaves; where the start goes on in the next period, of the present one alone."""
    for balance in balances:
        takes = amount_per_hour(rate, balance.budget.what)
        if balance.left is None or not takes:
            continue
        now_ms = milliseconds(now)
        here_ms = min(milliseconds(now + seconds), balance.period.end_ms) - now_ms
        left = max(Fraction(0), balance.left - takes * here_ms / HOUR_MS)
        yield f"Leaves {budget_amount_text(left, balance)} of {budget_text(balance, now)}."
