"""Messages to leads and administrators: budgets of money, idle GPUs, and on the first day the statements of a month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from fractions import Fraction
from urllib.parse import quote

from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.calendar import date_of, show_moment
from gpuspawner.core.events import BudgetReached, Event, StatementMailed, WasteFound
from gpuspawner.core.quotas.budgets import BudgetBalance, bare_amount_text, budget_text
from gpuspawner.core.quotas.ledger import LEDGER_AUTHOR
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.quotas.months import first_day, month_of, month_words, previous_month
from gpuspawner.core.rules import BudgetUnit, QuotaScope
from gpuspawner.core.units import show_money
from gpuspawner.service.notifications.recipients import recipients_of, rows_about_team
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import today_of
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.usage_sums import BUDGET_PERCENTS, STATEMENT, WASTE, TeamAlert, budget_kind
from gpuspawner.service.usage.statements import Statement, find_statement

ALERT_SECONDS = 60.0
"""How often it is looked whether there is something to tell. Arbitrary."""
LEAST_MEASURED_HOURS = 10.0
"""Less is no pattern: a team with fewer measured GPU hours in a week is not told of its idle share. Arbitrary."""
EVERYBODY = ""

Key = tuple[str, str, str]


async def send_alerts(state: Parts) -> None:
    """Send each due message once. Raises Unavailable. Then the next round sends it."""
    told = state.team_alerts.keys
    await _tell_of_budgets(state, told)
    await _tell_of_waste(state, told)
    await _mail_statements(state, told)


async def _send(state: Parts, alerts: Sequence[TeamAlert], kind: str, event: Event) -> None:
    """Store alerts of one team with the messages about the last one, which has the text."""
    told = alerts[-1]
    text = f"{told.text}\n\n{state.public_url}/{told.page}\n"
    rows = rows_about_team(state, told.team, kind, told.title, text)
    await _store(state, alerts, rows, event)


async def _store(state: Parts, alerts: Sequence[TeamAlert], rows: Sequence[OutboxRow], event: Event) -> None:
    target = f"team {alerts[-1].team}" if alerts[-1].team else "everybody"
    await state.team_alerts.add(alerts, rows, [AuditLine(state.clock.now(), "", "", LEDGER_AUTHOR, event, "", target)])
    state.notifier.wake()


# Budgets


async def _tell_of_budgets(state: Parts, told: set[Key]) -> None:
    """Tell of each budget of money of a team or of everybody that has reached one of BUDGET_PERCENTS.

    If several are reached at once, the highest is told.
    """
    now, zone = state.clock.now(), state.accounting.zone
    for balance in _money_budgets(state):
        bound = balance.hard if balance.hard is not None else balance.soft
        reached = [percent for percent in BUDGET_PERCENTS if bound and balance.used * 100 >= bound * percent]
        period, team = date_of(balance.period.start_ms, zone), balance.account.team
        name, per = balance.entry.name, balance.budget.per
        alerts = [TeamAlert(team, budget_kind(name, per, percent), period, now) for percent in reached]
        new = [alert for alert in alerts if alert.key not in told]
        if bound and new:
            percent, budget = max(reached), budget_text(balance, now, bound)
            title, text = f"{percent} % of {budget} are used", _budget_words(balance, bound, now)
            new[-1] = replace(new[-1], title=title, text=text, page="console/quotas")
            await _send(state, new, "budget", BudgetReached(percent, budget))


def _money_budgets(state: Parts) -> list[BudgetBalance]:
    """Return the budgets of money of teams and of everybody."""
    entries = [one for one in state.catalog.rules.quotas if one.whom in {QuotaScope.TEAM, QuotaScope.EVERYBODY}]
    balances = state.allocator.bounds.balances() if any(one.budgets for one in entries) else None
    return [
        balance
        for entry in entries
        if balances is not None
        for balance in balances.of(Requester("", "", entry.subject))
        if balance.entry is entry and balance.budget.what is BudgetUnit.COST
    ]


def _budget_words(balance: BudgetBalance, bound: Fraction, now: float) -> str:
    used, most, reserved = (bare_amount_text(number, balance) for number in (balance.used, bound, balance.reserved))
    sentences = [f"{used} of {most} are used"]
    if balance.reserved:
        sentences.append(f"{reserved} are reserved by running workspaces")
    if balance.hard is not None and not balance.left:
        sentences.append("Nothing can start with it until it resets")
    elif (until := balance.lasts_until(now)) is not None:
        sentences.append(f"At this rate it lasts until {show_moment(until, now, balance.zone)}")
    return ". ".join([*sentences, f"It resets {balance.renews(now)}"]) + "."


# Idle GPUs


async def _tell_of_waste(state: Parts, told: set[Key]) -> None:
    """Tell of each team whose idle share was above the catalog's bound in the last whole week."""
    bound, now = state.catalog.rules.alerts.idle_percent, state.clock.now()
    today = date.fromisoformat(today_of(state))
    monday = today - timedelta(days=today.weekday() + 7)
    looked = TeamAlert(EVERYBODY, WASTE, monday.isoformat(), now)
    if bound is None or looked.key in told:
        return
    sunday = (monday + timedelta(days=6)).isoformat()
    for one in await state.store.read(state.store.usage_sums.of_days, "team", monday.isoformat(), sunday):
        measured = one.amounts.active + one.amounts.idle
        percent = 100 * one.amounts.idle / measured if measured else 0.0
        alert = TeamAlert(one.key, WASTE, monday.isoformat(), now)
        if not one.key or measured < LEAST_MEASURED_HOURS or percent <= bound or alert.key in told:
            continue
        name = team_title(state.catalog, one.key)
        title = f"{name}: GPUs were idle for {percent:.0f} % of the week"
        text = (
            f"{one.amounts.idle:.1f} of {measured:.1f} measured GPU hours were idle from {monday} to {sunday}. "
            f"The bound is {bound:g} %."
        )
        alert = replace(alert, title=title, text=text, page=f"console/usage?since={monday}&until={sunday}")
        await _send(state, [alert], WASTE, WasteFound(round(percent), monday.isoformat()))
    await state.team_alerts.add([looked], (), ())


# Statements


async def _mail_statements(state: Parts, told: set[Key]) -> None:
    """Send the statements of the last month to the leads and the chat of each team that has used something."""
    now, month = state.clock.now(), previous_month(month_of(today_of(state)))
    first = first_day(month).isoformat()
    for team in state.catalog.rules.teams:
        alert, recipients = TeamAlert(team, STATEMENT, first, now), recipients_of(state, team)
        if alert.key in told or not recipients:
            continue
        found = await find_statement(state, team, month)
        if not found.lines:
            continue
        title, text, page = _statement_words(state, found)
        alert = replace(alert, title=title, text=text.partition("\n")[0], page=page)
        event = StatementMailed(found.number, tuple(recipients))
        await _store(state, [alert], rows_of_statement(state, found), event)


def rows_of_statement(state: Parts, found: Statement) -> list[OutboxRow]:
    """Return a statement as messages to the leads of its team, and to its chat."""
    title, text, page = _statement_words(state, found)
    text = f"{text}\n{state.public_url}/{page}\n"
    return rows_about_team(state, found.team, STATEMENT, title, text, to_admins=False)


def _statement_words(state: Parts, found: Statement) -> tuple[str, str, str]:
    """Return the title and the text of the message of a statement, and its page. The first line has the sum."""
    total, now = found.total, state.clock.now()
    cost = "" if total.cost is None else f", {show_money(total.cost, found.currency)}"
    closes = show_moment(found.closes_at, now, state.accounting.zone)
    until = f"It closes on {closes}. Until then, an administrator can correct it.\n" if now < found.closes_at else ""
    page = f"console/statements?team={quote(found.team, safe='')}&month={found.month}"
    text = (
        f"Charged: {total.charged:,.1f} GPU hours{cost}.\nAllocated: {total.allocated:,.1f}, of which "
        f"{total.active:,.1f} active, {total.idle:,.1f} idle and {total.not_measured:,.1f} not measured.\n"
        f"Credited: {total.credited:,.1f}. Reclaimed: {total.reclaimed:,.1f}.\n\n{until}"
    )
    return f"Statement of {found.title} for {month_words(found.month)}", text, page
