"""The API of quotas and usage: what people have left and have used, and what administrators change."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core import events
from gpuspawner.core.calendar import HOUR_MS, date_of, milliseconds, parse_day
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine, QuotaAmount, show_grant_amount
from gpuspawner.core.rules import Account, BudgetUnit, QuotaGrant, Rate
from gpuspawner.service.api.rest import PageQuery
from gpuspawner.service.api.rest.paging import page
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.quotas import models
from gpuspawner.service.quotas.models import Correction, CorrectionInput, Grant, GrantInput, ReasonInput
from gpuspawner.service.quotas.presenter import event_of_grant, present_grant, present_quota, present_usage
from gpuspawner.service.store.ledger import GROUPS
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.parsing import refused_as
from gpuspawner.service.web.permissions import Permission, Reach, refusal_words

log = logging.getLogger("gpuspawner")

router = Router()


@router.get("/api/v1/quota", Permission.SEE_QUOTAS)
async def get_quota(actor: Actor, *, query: models.QuotaQuery) -> models.Quota:
    """Answer each limit and budget: used, set aside, left, its next reset and its end at the present use."""
    state, name, owner = actor.state, actor.person.name, actor.person.owner
    of_other = bool(query.user) and query.user != name
    whose = actor.whose(Permission.SEE_QUOTAS, everybody=of_other)
    if query.user:
        name, owner = query.user, await actor.find_user(query.user)
    teams = teams_of(state.catalog.rules, await state.members.lately(name, owner))
    if isinstance(whose, frozenset) and whose.isdisjoint(teams):
        raise HTTPError(
            403, reason=f"{name} is in no team that you lead. {refusal_words(Permission.SEE_QUOTAS, Reach.ALL)}"
        )
    return present_quota(state, name, owner, teams)


@router.get("/api/v1/usage", Permission.SEE_USAGE)
async def get_usage(actor: Actor, *, query: models.UsageQuery) -> models.Usage:
    """Answer GPU hours and money, of these days: by default of this month."""
    whose = actor.whose(Permission.SEE_USAGE, everybody=query.all)
    if query.by not in GROUPS:
        raise RequestRefused("by", quoted(query.by), ", ".join(GROUPS), "Choose one of them.")
    today = date_of(milliseconds(actor.now), actor.state.accounting.zone)
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
    """Answer the grants, the newest first."""
    whose = actor.whose(Permission.SEE_GRANTS)
    grants = enumerate(actor.state.accounting.all_grants())  # they are appended, never removed
    numbered = [one for one in grants if whose is None or one[1].account.team in whose][::-1]
    shown, following = page(numbered, query, lambda one: (0, -one[0], one[1].id))
    return models.GrantList(grants=[present_grant(actor.state, grant) for _, grant in shown], next=following)


@router.post("/api/v1/quota-grants", Permission.GRANT, status=201, audit="grant")
async def grant_quota(actor: Actor, *, body: GrantInput) -> Grant:
    """Grant more. The grant is in force at once, or from ``since``."""
    whose, teams = actor.whose(Permission.GRANT), ", ".join(actor.teams_led)
    if isinstance(whose, frozenset) and (body.team not in whose or not body.user):
        raise RequestRefused("team", quoted(body.team), f"teams that you lead: {teams}", "Name the team and a member.")
    state, account = actor.state, await _account(actor, body.user, body.team)
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
    shown = present_grant(state, grant)
    actor.store_answer(shown)
    event = event_of_grant(actor.state, grant, events.QuotaGranted, body.why)
    await state.accounting.give(grant, actor.audit_entry(event, grant.user or account.team))
    await apply_at_once(state.allocator)
    return shown


@router.delete("/api/v1/quota-grants/{grant}", Permission.GRANT, audit="take a grant back")
async def take_grant_back(actor: Actor, grant: str, *, body: ReasonInput) -> Grant:
    """Take a grant back. Running workspaces go on to their end. The grant extends and starts no other."""
    whose = actor.whose(Permission.GRANT)
    found = next((one for one in actor.state.accounting.all_grants() if one.id == grant), None)
    if found is None or not (whose is None or (found.account.team in whose and found.user)):
        raise HTTPError(404, reason=f"There is no grant with the id {grant[:40]}.")
    if found.taken_back_at is not None:
        raise Conflict(f"{found.taken_back_by} has taken it back already.")
    if actor.now >= found.until:
        raise Conflict("This extra quota has ended already.")
    taken = replace(found, taken_back_at=actor.now, taken_back_by=actor.person.name, taken_back_why=body.why)
    shown = present_grant(actor.state, taken)
    actor.store_answer(shown)
    event = event_of_grant(actor.state, taken, events.QuotaTakenBack, body.why)
    await actor.state.accounting.take_back(taken, actor.audit_entry(event, found.user or found.account.team))
    return shown


@router.post("/api/v1/usage/corrections", Permission.CORRECT, status=201, audit="correct the use")
async def correct_usage(actor: Actor, *, body: CorrectionInput) -> Correction:
    """Charge or credit by a line of its own. The line counts in the present day, week and month."""
    state, now, user, by = actor.state, actor.now, body.user or "", actor.person.name
    account = await _account(actor, user, body.team)
    what, number = body.amount.what, abs(body.amount.number)
    sign = -1 if body.amount.number < 0 else 1
    rate = Rate(gpus=number) if what is BudgetUnit.GPU_HOURS else Rate(price_per_hour=number)
    at_ms = milliseconds(now)
    line = LedgerLine(
        now, "", account, state.hub_id, user, "", LedgerKind.CORRECTION, date_of(at_ms, state.accounting.zone), at_ms,
        at_ms,
        sign * HOUR_MS, rate, by, body.why,
    )  # fmt: skip
    event = events.UsageCorrected(show_grant_amount(QuotaAmount(what, "", number)), sign < 0, user, body.why)
    shown = Correction(
        user=user,
        team=account.team or None,
        amount=float(body.amount.number),
        limit=what.value,
        why=body.why,
        by=by,
        at=now,
        words=event.correction,
        note=await _uncorrected_note(actor, account, user, what),  # before the write: the hub may not answer
    )
    actor.store_answer(shown)
    await state.accounting.correct(line, actor.audit_entry(event, user))
    await apply_at_once(state.allocator)
    return shown


async def _uncorrected_note(actor: Actor, account: Account, user: str, what: object) -> str:
    """Return in sentences which amounts a correction does not change, though one might expect it."""
    catalog, sentences = actor.state.catalog, list[str]()
    if what is BudgetUnit.GPU_HOURS and any(kind.price_per_hour is not None for kind in catalog.gpus.values()):
        sentences.append("The cost stays as it was: correct it by an amount of cost.")
    if not account.team:
        groups = await actor.state.members.lately(user, Owner(actor.state.hub_id, account.user_created))
        if teams := teams_of(catalog.rules, groups):
            named = " and team ".join(teams)
            sentences.append(f"What team {named} used stays as it was: name the team to correct both.")
    return " ".join(sentences)


async def _account(actor: Actor, user: str | None, team: str | None) -> Account:
    return Account(team or "", (await actor.find_user(user)).user_created if user else "")


async def apply_at_once(allocator: Allocator) -> None:
    """Extend the workspaces that a budget ends early, and grant to those who wait.

    The act is stored already. An error here would make the administrator repeat it. The next rounds make up for it.
    """
    try:
        await allocator.bounds.lengthen()
        await allocator.give()
    except Unavailable as error:
        log.warning("what follows from a grant or a correction is done later: %s", error)
