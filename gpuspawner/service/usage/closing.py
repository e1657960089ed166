"""The close of a month: running workspaces are billed to its end, and its statements are stored for good."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import sqlalchemy as sa

from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import MonthClosed
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.quotas.ledger import LEDGER_AUTHOR, LedgerLine
from gpuspawner.core.quotas.months import closes_at, first_day, last_day, month_of, month_span
from gpuspawner.service.clock import settled_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.usage_sums import TeamSum
from gpuspawner.service.usage.statements import StatementContext

CLOSE_SECONDS = 60.0
"""How often it is looked whether a month closes. Arbitrary."""


async def close_months(state: Parts) -> None:
    """Close each month whose time has come for certain and that has usage, the oldest first.

    Raises:
        Unavailable: it can't be stored now. Nothing was closed.
    """
    while (month := await _month_to_close(state)) is not None:
        await _close(state, month)


async def _month_to_close(state: Parts) -> str | None:
    now, zone = settled_time(state.clock), state.accounting.zone
    if now is None:
        return None
    months = {*await state.store.read(state.store.statements.months_with_usage)}
    months |= {month_of(date_of(milliseconds(since), zone)) for _, since in _running(state)}
    due = (month for month in months if month > state.accounting.closed_month and now >= closes_at(month, zone))
    return min(due, default=None)


def _running(state: Parts) -> list[tuple[Lease, float]]:
    """Return the running workspaces, each with the time since when it is not billed."""
    return [(x, x.unbilled_since) for x in state.registry if x.phase in UP and x.unbilled_since is not None]


async def _close(state: Parts, month: str) -> None:
    alerts = await state.store.read(state.store.team_alerts.all)
    now, accounting = state.clock.now(), state.accounting
    end = month_span(month, accounting.zone).end
    billed = [replace(lease, billed_until=end) for lease, since in _running(state) if since < end]
    teams = {"", *state.catalog.rules.teams}
    context = StatementContext(state.catalog, month, now, alerts, is_closed=True)

    def write(connection: sa.Connection) -> None:
        store, (first, last) = state.store, (first_day(month).isoformat(), last_day(month).isoformat())
        sums, credits_ = defaultdict[str, list[TeamSum]](list), defaultdict[str, list[LedgerLine]](list)
        for one in store.statements.sums_of_month(connection, month):
            sums[one.team].append(one)
        for line in store.ledger.credits_of_all(connection, first, last):
            credits_[line.account.team].append(line)
        documents = {
            team: context.build(team, sums[team], credits_[team]).as_json() for team in sorted(teams | sums.keys())
        }
        store.statements.add(connection, month, documents)

    event = MonthClosed(month)
    stored = state.registry.save(*billed, audit=[AuditLine(now, "", "", LEDGER_AUTHOR, event)], others=[write])
    before, accounting.closed_month = accounting.closed_month, month  # what is saved from now on is not in it
    try:
        await stored
    except Unavailable:
        accounting.closed_month = before
        raise
