"""Corrections of what a user was charged: a line of the ledger of its own, after a dry run that shows both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.calendar import HOUR_MS, date_of, milliseconds
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.events import UsageCorrected
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine, QuotaAmount, show_grant_amount
from gpuspawner.core.quotas.months import closes_at, first_day, last_day, month_of, month_span, month_words
from gpuspawner.core.rules import Account, BudgetUnit, Rate
from gpuspawner.core.units import show_money
from gpuspawner.service.quotas.api import account_of, apply_at_once
from gpuspawner.service.quotas.models import CorrectedSide, Correction, CorrectionInput
from gpuspawner.service.quotas.presenter import present_quota, present_usage
from gpuspawner.service.store.rows import Whose
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

MAX_AMOUNT = 100_000
"""The largest correction, in GPU hours or money. Arbitrary: more is a typing error."""
CREDITED_MONTHS = 12
"""A credit is at most what was charged in the present month and in so many before. The ledger is kept as long."""

router = Router()


@dataclass(frozen=True)
class _Corrected:
    """What is corrected: an account and its user's name, in GPU hours or money."""

    account: Account
    owner: Owner
    user: str
    unit: BudgetUnit
    currency: str

    def text(self, number: float) -> str:
        """Return an amount for display."""
        return f"{number:,.1f} GPU hours" if self.unit is BudgetUnit.GPU_HOURS else show_money(number, self.currency)


@router.post("/api/v1/usage/corrections", Permission.CORRECT, status=201, other_status=200, audit="correct the use")
async def correct_usage(actor: Actor, *, body: CorrectionInput) -> tuple[Correction, int]:
    """Charge or credit by a line of its own, in the present month or in one that is still open."""
    async with actor.state.accounting.correcting:
        return await _correct(actor, body)


async def _correct(actor: Actor, body: CorrectionInput) -> tuple[Correction, int]:
    """Check a correction, and store it unless it is a dry run."""
    state, now, user, number = actor.state, actor.now, body.user or "", body.amount.number
    account = await account_of(actor, user, body.team)
    owner = Owner(state.hub_id, account.user_created)
    one = _Corrected(account, owner, user, BudgetUnit(body.amount.what.value), state.catalog.rules.currency)
    month, day, at_ms, notes = _moment(actor, body.month)
    await _check_bounds(actor, one, float(number))
    sides = [side async for side in _sides(actor, one, month, float(number))]
    rate = Rate(gpus=abs(number)) if one.unit is BudgetUnit.GPU_HOURS else Rate(price_per_hour=abs(number))
    of_month = body.month if body.month not in {"", month} else ""
    why = f"{body.why} (for {month_words(of_month)})" if of_month else body.why
    line = LedgerLine(
        now, "", account, state.hub_id, user, "", LedgerKind.CORRECTION, day, at_ms, at_ms,
        HOUR_MS if number > 0 else -HOUR_MS, rate, actor.person.name, why,
    )  # fmt: skip
    event = UsageCorrected(show_grant_amount(QuotaAmount(one.unit, "", abs(number))), number < 0, user, why)
    shown = Correction(
        dry_run=body.dry_run,
        month=month,
        sides=sides,
        user=user,
        team=account.team or None,
        amount=float(number),
        limit=one.unit.value,
        why=why,
        by=actor.person.name,
        at=now,
        words=event.correction,
        note=" ".join([*notes, *await _uncorrected(actor, one)]),  # before the write: the hub may not answer
    )
    if body.dry_run:
        return shown, 200
    actor.store_answer(shown)
    await state.accounting.correct(line, actor.audit_entry(event, user))
    await apply_at_once(state.allocator)
    return shown, 201


def _moment(actor: Actor, wanted: str) -> tuple[str, str, int, list[str]]:
    """Return month, day and moment in which a correction counts, and a sentence if the wanted month is closed."""
    zone, at_ms = actor.state.accounting.zone, milliseconds(actor.now)
    today = date_of(at_ms, zone)
    this = month_of(today)
    if wanted in {"", this}:
        return this, today, at_ms, []
    if wanted > this:
        raise RequestRefused("month", wanted, f"up to {this}", "Name a month that has begun.")
    if wanted <= actor.state.accounting.closed_month or actor.now >= closes_at(wanted, zone):
        words = f"{month_words(wanted)} is closed: the correction counts in {month_words(this)}."
        return this, today, at_ms, [words]
    return wanted, last_day(wanted).isoformat(), month_span(wanted, zone).end_ms - 1, []


async def _check_bounds(actor: Actor, one: _Corrected, number: float) -> None:
    """Raise RequestRefused for a credit of more than was charged, and for an amount that is a typing error."""
    if abs(number) > MAX_AMOUNT:
        raise RequestRefused("amount", one.text(number), f"up to {one.text(MAX_AMOUNT)}", "Correct less at a time.")
    if number > 0:
        return
    today = date.fromisoformat(date_of(milliseconds(actor.now), actor.state.accounting.zone))
    since = date(today.year - CREDITED_MONTHS // 12, today.month, 1)
    charged = await _charged(actor, one, since.isoformat(), today.isoformat(), one.owner)
    if -number > charged + 1e-9:
        whose = f"{one.user} in {one.account.team}" if one.account.team else one.user
        remedy = f"{whose} was charged {one.text(max(0.0, charged))} since {since}. Credit no more than that."
        raise RequestRefused("amount", one.text(-number), f"up to {one.text(max(0.0, charged))}", remedy)


async def _charged(actor: Actor, one: _Corrected, since: str, until: str, whose: Whose) -> float:
    """Return what was charged on some days to the team of the correction, without one to all."""
    usage = await present_usage(actor.state, "team", since, until, whose)
    rows = [row for row in usage.rows if row.key == one.account.team or not one.account.team]
    hours = one.unit is BudgetUnit.GPU_HOURS
    return sum((row.charged_gpu_hours if hours else row.cost or 0.0) for row in rows)


async def _sides(actor: Actor, one: _Corrected, month: str, number: float) -> AsyncIterator[CorrectedSide]:
    """Yield what changes for the user, for the team, and in their budgets."""
    state, first, last = actor.state, first_day(month).isoformat(), last_day(month).isoformat()
    team = one.account.team
    title = f"Team {team_title(state.catalog, team)}"
    charged_to: list[tuple[str, Whose]] = [(f"{one.user} in {title}" if team else one.user, one.owner)]
    if team:
        charged_to.append((title, frozenset({team})))
    for whose, which in charged_to:
        before = await _charged(actor, one, first, last, which)
        what = f"charged in {month_words(month)}"
        words = f"{whose}: {one.text(before)} {what}, {one.text(before + number)} after it"
        yield CorrectedSide(whose=whose, what=what, before=before, after=before + number, words=words)
    if month != month_of(date_of(milliseconds(actor.now), state.accounting.zone)):
        return
    for budget in present_quota(state, one.user, one.owner, [team] if team else []).budgets:
        if budget.limit == one.unit.value:
            of_user = budget.whose.startswith("you")
            whose = one.user + budget.whose.removeprefix("you") if of_user else budget.whose.capitalize()
            after = budget.used + number
            words = f"{whose}, {budget.what}: {one.text(budget.used)} used, {one.text(after)} after it"
            yield CorrectedSide(whose=whose, what=budget.what, before=budget.used, after=after, words=words)


async def _uncorrected(actor: Actor, one: _Corrected) -> list[str]:
    """Return in sentences which amounts a correction does not change, though one might expect it."""
    catalog, sentences = actor.state.catalog, list[str]()
    if one.unit is BudgetUnit.GPU_HOURS and any(kind.price_per_hour is not None for kind in catalog.gpus.values()):
        sentences.append("The cost stays as it was: correct it by an amount of cost.")
    if not one.account.team:
        groups = await actor.state.members.lately(one.user, one.owner)
        if teams := teams_of(catalog.rules, groups):
            named = " and team ".join(teams)
            sentences.append(f"What team {named} used stays as it was: name the team to correct both.")
    return sentences
