"""Messages to leads and administrators: budgets of money, idle GPUs, and on the first day the statements of a month."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from gpuspawner.service.notifications.sender import Message
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import today_of
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.usage_sums import BUDGET_PERCENTS, TeamAlert, budget_kind
from gpuspawner.service.usage.statements import Statement, find_statement
from gpuspawner.service.web.permissions import Role

ALERT_SECONDS = 60.0
"""How often it is looked whether there is something to tell. Arbitrary."""
LEAST_MEASURED_HOURS = 10.0
"""Less is no pattern: a team with fewer measured GPU hours in a week is not told of its idle share. Arbitrary."""
STATEMENT, WASTE = "statement", "waste"
EVERYBODY = ""

Key = tuple[str, str, str]


async def send_alerts(state: Parts) -> None:
    """Send each due message once. Raises Unavailable. Then the next round sends it."""
    told = {one.key for one in await state.store.read(state.store.team_alerts.all)}
    await _tell_of_budgets(state, told)
    await _tell_of_waste(state, told)
    await _mail_statements(state, told)


def leads_of(state: Parts, team: str) -> list[str]:
    """Return the users who get the messages about a team: those in the catalog, and leads who used their right."""
    rules = state.catalog.rules
    used = {one.name for one in state.roles_used.values() if Role.LEAD in one.roles and team in one.teams_led(rules)}
    return sorted(used | (rules.teams[team].leads if team in rules.teams else frozenset()))


async def _send(
    state: Parts, alerts: Sequence[TeamAlert], messages: Iterable[Message], event: Event | None = None
) -> None:
    """Store that something is told, with the messages."""
    rows = [row for message in messages for row in state.notifier.rows_of(message)]
    team = alerts[0].team
    target = f"team {team}" if team else "everybody"
    audit = [] if event is None else [AuditLine(state.clock.now(), "", "", LEDGER_AUTHOR, event, "", target)]
    await state.store.write(state.store.team_alerts.add, alerts, rows, audit)
    state.notifier.wake()


def _messages(state: Parts, team: str, kind: str, title: str, text: str) -> Iterator[Message]:
    """Yield a message to each lead of a team and to the administrators."""
    for lead in leads_of(state, team):
        yield Message("", lead, kind, title, text)
    yield Message("", "", kind, title, text, to_admins=True)


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
            title = f"{percent} % of {budget} are used"
            text = _budget_words(balance, bound, now)
            link = f"{state.public_url}/console/quotas"
            await _send(
                state,
                new,
                _messages(state, team, "budget", title, f"{text}\n\n{link}\n"),
                BudgetReached(percent, budget),
            )


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
            f"The bound is {bound:g} %.\n\n{state.public_url}/console/usage?since={monday}&until={sunday}\n"
        )
        event = WasteFound(round(percent), monday.isoformat())
        await _send(state, [alert], _messages(state, one.key, WASTE, title, text), event)
    await _send(state, [looked], ())


# Statements


async def _mail_statements(state: Parts, told: set[Key]) -> None:
    """Mail the statements of the last month to the leads of each team that has used something."""
    now, month = state.clock.now(), previous_month(month_of(today_of(state)))
    first = first_day(month).isoformat()
    for team in state.catalog.rules.teams:
        alert = TeamAlert(team, STATEMENT, first, now)
        leads = leads_of(state, team)
        if alert.key in told or not leads:
            continue
        found = await find_statement(state, team, month)
        if not found.lines:
            continue
        mails = statement_mails(state, found, leads)
        await _send(state, [alert], mails, StatementMailed(found.number, tuple(leads)))


def statement_mails(state: Parts, found: Statement, leads: Sequence[str]) -> list[Message]:
    """Return a statement as a message to each lead."""
    total, now = found.total, state.clock.now()
    cost = "" if total.cost is None else f", {show_money(total.cost, found.currency)}"
    closes = show_moment(found.closes_at, now, state.accounting.zone)
    until = f"It closes on {closes}. Until then, an administrator can correct it.\n" if now < found.closes_at else ""
    page = f"{state.public_url}/console/statements?team={quote(found.team, safe='')}&month={found.month}"
    text = (
        f"Charged: {total.charged:,.1f} GPU hours{cost}.\nAllocated: {total.allocated:,.1f}, of which "
        f"{total.active:,.1f} active, {total.idle:,.1f} idle and {total.not_measured:,.1f} not measured.\n"
        f"Credited: {total.credited:,.1f}. Reclaimed: {total.reclaimed:,.1f}.\n\n{until}\n{page}\n"
    )
    title = f"Statement of {found.title} for {month_words(found.month)}"
    return [Message("", lead, STATEMENT, title, text) for lead in leads]
