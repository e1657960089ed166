"""The API of quotas and usage: what users have left and have used, extra quota, and corrections of charges.

A correction is a line of the ledger. Its dry run shows the charges before and after it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import date

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core import events
from gpuspawner.core.calendar import HOUR_MS, date_of, milliseconds, parse_day
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.events import UsageCorrected
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine, QuotaAmount, show_grant_amount
from gpuspawner.core.quotas.months import closes_at, first_day, last_day, month_of, month_span, month_words
from gpuspawner.core.rules import Account, BudgetUnit, QuotaGrant, Rate
from gpuspawner.core.units import show_money
from gpuspawner.service.api.rest import PageQuery
from gpuspawner.service.api.rest.models import page
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.quotas import models
from gpuspawner.service.quotas.grant_effects import added_for_limit, effects_of
from gpuspawner.service.quotas.models import (
    CorrectedSide,
    Correction,
    CorrectionInput,
    GivenGrant,
    Grant,
    GrantInput,
    ReasonInput,
)
from gpuspawner.service.quotas.presenter import (
    event_of_grant,
    is_priced,
    present_grant,
    present_quota,
    present_usage,
    today_of,
)
from gpuspawner.service.store.ledger import GROUPS
from gpuspawner.service.store.rows import Whose
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import refused_as
from gpuspawner.service.web.permissions import Permission, Reach, refusal_words

log = logging.getLogger("gpuspawner")

router = Router()


@router.get("/api/v1/quota", Permission.SEE_QUOTAS)
async def get_quota(actor: Actor, *, query: models.QuotaQuery) -> models.Quota:
    """Return each limit and budget: used, reserved, left, its next reset, and when it ends at the present usage."""
    state, name, owner = actor.state, actor.person.name, actor.person.owner
    of_other = bool(query.user) and query.user != name
    whose = actor.whose(Permission.SEE_QUOTAS, everybody=of_other)
    if query.user:
        name, owner = query.user, await actor.find_user(query.user)
    teams = teams_of(state.catalog.rules, await state.members.fetch_recent(name, owner))
    if isinstance(whose, frozenset):
        teams = tuple(team for team in teams if team in whose)
        if not teams:
            raise HTTPError(
                403, reason=f"{name} is in no team that you lead. {refusal_words(Permission.SEE_QUOTAS, Reach.ALL)}"
            )
    return present_quota(state, name, owner, teams)


@router.get("/api/v1/usage", Permission.SEE_USAGE)
async def get_usage(actor: Actor, *, query: models.UsageQuery) -> models.Usage:
    """Return GPU hours and money of some days, by default of this month."""
    whose = actor.whose(Permission.SEE_USAGE, everybody=query.all)
    if query.by not in GROUPS:
        raise RequestRefused("by", quoted(query.by), ", ".join(GROUPS), "Choose one of them.")
    today = today_of(actor.state)
    since = _day(actor, "since", query.since or f"{today[:-2]}01")
    until = _day(actor, "until", query.until or today)
    if since > until:
        raise RequestRefused("since", since, f"up to {until}", "Write the earlier day as since.")
    return await present_usage(actor.state, query.by, since, until, whose)


def _day(actor: Actor, name: str, text: str) -> str:
    day: str = refused_as(name, parse_day, text, actor.now, actor.state.accounting.zone)
    return day


@router.get("/api/v1/quota-grants", Permission.SEE_GRANTS)
async def list_grants(actor: Actor, *, query: PageQuery) -> models.GrantList:
    """Return the grants of extra quota, newest first."""
    whose = actor.whose(Permission.SEE_GRANTS)
    grants = enumerate(actor.state.accounting.all_grants())  # they are appended, never removed
    numbered = [one for one in grants if whose is None or one[1].account.team in whose][::-1]
    shown, following = page(numbered, query, lambda one: (0, -one[0], one[1].id))
    return models.GrantList(grants=[present_grant(actor.state, grant) for _, grant in shown], next=following)


@router.post("/api/v1/quota-grants", Permission.GRANT, status=201, other_status=200, audit="grant")
async def grant_quota(actor: Actor, *, body: GrantInput) -> tuple[GivenGrant, int]:
    """Grant extra quota. The grant is in force at once, or from ``since``."""
    whose, teams = actor.whose(Permission.GRANT), ", ".join(actor.teams_led)
    if isinstance(whose, frozenset) and (body.team not in whose or not body.user):
        raise RequestRefused("team", quoted(body.team), f"teams that you lead: {teams}", "Name the team and a member.")
    state, account = actor.state, await account_of(actor, body.user, body.team)
    if whose is not None and account.user_created == actor.person.owner.user_created:
        remedy = "Ask another lead of the team, or an administrator."
        raise RequestRefused("user", "extra quota for yourself", "other members of your team", remedy)
    grant = QuotaGrant(
        uuid.uuid4().hex,
        account,
        body.what.what,
        body.what.number,
        actor.now if body.since is None else body.since,
        body.until,
        body.what.kind,
        body.user or "",
        body.why,
        actor.person.name,
        actor.now,
    )
    if body.as_limit:
        grant = replace(grant, amount=added_for_limit(state, grant))
    shown = GivenGrant(**vars(present_grant(state, grant)), dry_run=body.dry_run, effects=effects_of(state, grant))
    if body.dry_run:
        return shown, 200
    actor.store_answer(shown)
    kind = events.QuotaLimitSet if body.as_limit else events.QuotaGranted
    event = event_of_grant(actor.state, replace(grant, amount=body.what.number), kind, body.why)
    await state.accounting.add_grants([grant], [actor.audit_entry(event, grant.user or account.team)])
    await apply_at_once(state.allocator)
    return shown, 201


@router.delete("/api/v1/quota-grants/{grant}", Permission.GRANT, audit="take a grant back")
async def take_grant_back(actor: Actor, grant: str, *, body: ReasonInput) -> Grant:
    """Take a grant back. Running workspaces continue to their end, but no workspace is extended or started by it.

    Of hours that were moved between members, both sides are taken back.
    """
    whose = actor.whose(Permission.GRANT)
    found = next((one for one in actor.state.accounting.all_grants() if one.id == grant), None)
    if found is None or not (whose is None or (found.account.team in whose and found.user)):
        raise HTTPError(404, reason=f"There is no grant with the id {grant[:40]}.")
    if actor.now >= found.until:
        raise Conflict("This extra quota has ended already.")
    sides = [x for x in actor.state.accounting.all_grants() if found.move and x.move == found.move] or [found]
    name = actor.person.name
    taken = [replace(x, taken_back_at=actor.now, taken_back_by=name, taken_back_why=body.why) for x in sides]
    shown = next(present_grant(actor.state, one) for one in taken if one.id == found.id)
    actor.store_answer(shown)
    told = [(event_of_grant(actor.state, one, events.QuotaTakenBack, body.why), one) for one in taken]
    entries = [actor.audit_entry(event, one.user or one.account.team) for event, one in told]
    await actor.state.accounting.take_back(taken, entries)
    return shown


async def account_of(actor: Actor, user: str | None, team: str | None) -> Account:
    """Return the account of a user, a team, or a user in a team. Raises RequestRefused for an unknown user."""
    return Account(team or "", (await actor.find_user(user)).user_created if user else "")


async def apply_at_once(allocator: Allocator) -> None:
    """Extend the workspaces that a budget ends early, and grant to those who wait.

    The act is stored already. An error here would make the administrator repeat it. The next rounds make up for it.
    """
    try:
        await allocator.bounds.extend_shortened()
        await allocator.grant_waiting()
    except Unavailable as error:
        log.warning("what follows from a grant or a correction is done later: %s", error)


MAX_AMOUNT = 100_000
"""The largest correction, in GPU hours or money. Arbitrary: more is a typing error."""
CREDITED_MONTHS = 12
"""A credit is at most the sum of the charges of the present month and of this number of earlier months.

The ledger is kept as long.
"""


@dataclass(frozen=True)
class _Corrected:
    """The account of a correction, the name of its user, and the unit: GPU hours or money."""

    account: Account
    owner: Owner
    user: str
    unit: BudgetUnit
    currency: str

    def text(self, number: float) -> str:
        """Return an amount for display."""
        return f"{number:,.1f} GPU hours" if self.unit is BudgetUnit.GPU_HOURS else show_money(number, self.currency)


@router.post("/api/v1/usage/corrections", Permission.CORRECT, status=201, other_status=200, audit="correct usage")
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
    today = date.fromisoformat(today_of(actor.state))
    since = date(today.year - CREDITED_MONTHS // 12, today.month, 1)
    charged = await _charged(actor, one, since.isoformat(), today.isoformat(), one.owner)
    if -number > charged + 1e-9:
        whose = f"{one.user} in {one.account.team}" if one.account.team else one.user
        remedy = f"{whose} was charged {one.text(max(0.0, charged))} since {since}. Credit no more than that."
        raise RequestRefused("amount", one.text(-number), f"up to {one.text(max(0.0, charged))}", remedy)


async def _charged(actor: Actor, one: _Corrected, since: str, until: str, whose: Whose) -> float:
    """Return the charges of some days to the team of the correction, or to all teams if it names no team."""
    usage = await present_usage(actor.state, "team", since, until, whose)
    rows = [row for row in usage.rows if row.key == one.account.team or not one.account.team]
    hours = one.unit is BudgetUnit.GPU_HOURS
    return sum((row.charged_gpu_hours if hours else row.cost or 0.0) for row in rows)


async def _sides(actor: Actor, one: _Corrected, month: str, number: float) -> AsyncIterator[CorrectedSide]:
    """Yield the charges of the user and the team, and the use of their budgets, before and after the correction."""
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
    if month != month_of(today_of(state)):
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
    if one.unit is BudgetUnit.GPU_HOURS and is_priced(catalog):
        sentences.append("The cost stays as it was: correct it by an amount of cost.")
    if not one.account.team:
        groups = await actor.state.members.fetch_recent(one.user, one.owner)
        if teams := teams_of(catalog.rules, groups):
            named = " and team ".join(teams)
            sentences.append(f"What team {named} used stays as it was: name the team to correct both.")
    return sentences
