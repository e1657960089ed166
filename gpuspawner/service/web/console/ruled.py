"""The lists of what is taken of each quota, and of all grants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuspawner.core.quotas.budgets import Balance
from gpuspawner.core.quotas.grant_text import Amount, amount_text
from gpuspawner.core.quotas.quotas import Taken
from gpuspawner.core.rules import Used, What
from gpuspawner.core.units import GIBIBYTE
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.console.listing import Row
from gpuspawner.service.tell.console.people import person_page
from gpuspawner.service.tell.console.ruled import GRANTS, LIMITS, grant_rows, limit_row
from gpuspawner.service.tell.rules.quota_lines import unit
from gpuspawner.service.tell.rules.quota_view import grant_view, whom
from gpuspawner.service.web.console.base import ListPage
from gpuspawner.service.web.quota_rows import BEFORE, Seen, balances_of, everybody, names_of, taken_of

SWITCH = (("quotas", "Entries and rules"), ("console/limits", "All limits"), ("console/grants", "All grants"))


class LimitsPage(ListPage):
    """GET: every limit and budget of everybody whom it counts: what is taken of it, and until when it lasts."""

    here, table, title, switch = "quotas", LIMITS, "What is taken of each quota", SWITCH
    empty = "The catalog has no quotas, or nobody uses anything of them."

    async def rows(self) -> Sequence[Row]:
        """Return them, of some seconds ago where there are thousands."""
        return await self.parts.queue.seldom_beside("limits", lambda: _rows(self.parts))


async def _rows(parts: Parts) -> list[dict[str, Any]]:
    seen, rows = Seen.of(parts, await names_of(parts)), []
    async for entry, asker, who in everybody(seen):
        page = person_page(parts, asker.user) if asker.user and not asker.user.endswith(BEFORE) else ""
        found = [
            *(_of_limit(seen, one) for one in taken_of(seen, entry, asker)),
            *(_of_budget(seen, one) for one in balances_of(seen, entry, asker)),
        ]
        rows += [limit_row(who, page, entry.name, what, numbers) for what, numbers in found]
    return rows


def _of_limit(seen: Seen, one: Taken) -> tuple[str, dict[str, float | None]]:
    """Return of what a limit is, and its amounts: memory in GiB."""
    bound, held, waiting = one
    is_memory = bound.limit.what is What.MEMORY
    left = None if bound.hard is None else max(0, bound.hard - held - waiting)
    amounts = {"used": held, "waiting": waiting, "share": bound.soft, "most": bound.hard, "left": left}
    of = "GiB memory" if is_memory else unit(bound.limit, seen.parts.catalog)
    scale = GIBIBYTE if is_memory else 1
    return f"{of} at once", {name: None if much is None else float(much / scale) for name, much in amounts.items()}


def _of_budget(seen: Seen, one: Balance) -> tuple[str, dict[str, float | None]]:
    amounts = {"used": one.used, "set_aside": one.set_aside, "share": one.soft, "most": one.hard, "left": one.left}
    numbers = {name: None if much is None else float(much) for name, much in amounts.items()}
    what = f"{'cost' if one.budget.what is Used.COST else 'GPU h'} a {one.budget.per.value}"
    return what, {**numbers, "lasts_until": one.lasts_until(seen.balances.now), "renews_at": one.period.end}


class GrantsPage(ListPage):
    """GET: every grant there was, the newest first."""

    here, table, title, switch = "quotas", GRANTS, "Grants", SWITCH
    empty = "Nothing was granted yet. Quotas and grants has the form for it."

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        rows = self.parts.allocator.accounting.rows()
        added = ((row, row.grant) for row in reversed(rows))
        return grant_rows(
            (grant_view(self.parts, row), amount_text(Amount(one.what, one.kind, one.amount)), whom(row))
            for row, one in added
        )
