"""The API of requests for extra quota: users send and withdraw them, leads and administrators answer them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.quotas.ledger import QuotaAmount, show_grant
from gpuspawner.core.quotas.quota_requests import MAX_A_DAY, MAX_OPEN, QuotaRequest, RequestOutcome, is_approved_by_rule
from gpuspawner.core.rules import Account, QuotaGrant
from gpuspawner.service.api.rest.models import page
from gpuspawner.service.notifications.messages import CHANGES_NOTHING
from gpuspawner.service.notifications.recipients import rows_about_team
from gpuspawner.service.notifications.sender import Message
from gpuspawner.service.parts import Parts
from gpuspawner.service.quota_requests import models
from gpuspawner.service.quota_requests.models import ApprovalInput, RequestInput, RequestsQuery
from gpuspawner.service.quota_requests.presenter import (
    choices_of,
    cost_words,
    is_own,
    present_request,
    request_words,
    sees,
    why_not_answer,
)
from gpuspawner.service.quotas.api import apply_at_once
from gpuspawner.service.quotas.grant_effects import effects_of
from gpuspawner.service.quotas.models import GrantEffect, ReasonInput
from gpuspawner.service.quotas.presenter import event_of_grant, grantee, raises_a_bound, shortest_period_raised
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.administration import closed_words
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()
SERVICE, RULE = "gpuspawner", "a rule of the catalog"
"""The actor of an approval by the catalog's rule, and the origin in its audit entries."""
DAY_SECONDS = 86400.0
LOOK_SECONDS = 600.0
"""The time between two searches for due reminders. Arbitrary."""


@router.get("/api/v1/quota-requests", Permission.SEE_REQUESTS)
async def list_requests(actor: Actor, *, query: RequestsQuery) -> models.QuotaRequestList:
    """Answer requests for extra quota, the newest first: your own, or with ``all`` those that you may see."""
    actor.whose(Permission.SEE_REQUESTS, everybody=query.all)
    state, person = actor.state, actor.person
    found = [
        one
        for one in state.quota_requests.all()
        if (sees(person, one, state) if query.all else is_own(person, one))
        and (one.is_open(actor.now) or not query.open)
    ]
    found.sort(key=_newest_first)
    shown, following = page(found, query, _newest_first)
    return models.QuotaRequestList(requests=[present_request(state, one, person) for one in shown], next=following)


def _newest_first(one: QuotaRequest) -> tuple[int, float, str]:
    return 0, -one.made_at, one.id


@router.post("/api/v1/quota-requests", Permission.ASK_FOR_QUOTA, status=201, audit="ask for extra quota")
async def send_request(actor: Actor, *, body: RequestInput) -> models.QuotaRequest:
    """Send a request for extra quota. Leads and administrators are told."""
    account = await _account(actor, body)
    async with actor.state.quota_requests.sending:
        return await _send(actor, body, account)


async def _send(actor: Actor, body: RequestInput, account: Account) -> models.QuotaRequest:
    """Store a request, or approve it at once by the catalog's rule."""
    state, person, now = actor.state, actor.person, actor.now
    own = [one for one in state.quota_requests.all() if is_own(person, one)]
    if sum(one.is_open(now) for one in own) >= MAX_OPEN:
        raise Conflict(f"You have {MAX_OPEN} open requests, the most that you can have. Withdraw one first.")
    if sum(one.made_at > now - DAY_SECONDS for one in own) >= MAX_A_DAY:
        raise Conflict(f"You sent {MAX_A_DAY} requests in a day, the most that you can send. Try again tomorrow.")
    owner, what = person.owner, body.what
    one = QuotaRequest(
        uuid.uuid4().hex,
        owner.hub,
        owner.user_created,
        person.name,
        account,
        what,
        body.since,
        body.until,
        body.why,
        now,
    )
    entry = actor.audit_entry(event_of_grant(state, one.grant_of(), events.QuotaRequested, one.why), one.user)
    grant = _granted_by_rule(state, one, now)
    if grant is None:
        shown = present_request(state, one, person)
        actor.store_answer(shown)
        mails = _mails_of_open(state, one, f"{one.user} asks for {one.words} more")
        await state.quota_requests.change(one, [entry], mails)
        state.notifier.wake()
        return shown
    one = one.close(RequestOutcome.APPROVED, now, "", grant=grant.id)
    shown = present_request(state, one, person, grant)
    actor.store_answer(shown)
    by_rule = [
        AuditLine(now, "", one.user, SERVICE, event_of_grant(state, grant, kind, one.why), RULE)
        for kind in (events.QuotaRequestApproved, events.QuotaGranted)
    ]
    await state.quota_requests.change(one, [entry, *by_rule], grant=grant)
    await apply_at_once(state.allocator)
    return shown


def _granted_by_rule(state: Parts, one: QuotaRequest, now: float) -> QuotaGrant | None:
    """Return the extra quota of a request that the catalog's rule approves, None if a person answers it."""
    since = max(now, one.since or now)
    grant = replace(one.grant_of(since=since), id=uuid.uuid4().hex, by=SERVICE, made_at=now)
    before = {x.grant for x in state.quota_requests.all() if x.is_by_rule and x.user_created == one.user_created}
    given = [x for x in state.accounting.all_grants() if x.id in before]
    rule = state.catalog.rules.approve
    period = partial(shortest_period_raised, state)
    return grant if is_approved_by_rule(rule, grant, given, period, state.accounting.zone) else None


async def _account(actor: Actor, body: RequestInput) -> Account:
    """Return the account whose quota is raised. Raises RequestRefused if no rule of the catalog bounds it."""
    state, person = actor.state, actor.person
    teams = teams_of(state.catalog.rules, await actor.groups())
    if body.team and body.team not in teams:
        raise RequestRefused("team", quoted(body.team), ", ".join(teams) or "none", "Name a team that you are in.")
    if body.whole_team and not body.team:
        raise RequestRefused("team", "none", ", ".join(teams) or "none", "Name the team that the request is for.")
    created = person.owner.user_created
    accounts = [Account(body.team or "", "" if body.whole_team else created)]
    accounts += [] if body.whole_team or not body.team else [Account("", created)]
    one = QuotaRequest("", "", created, person.name, accounts[0], body.what, None, body.until, body.why, 0.0)
    for account in accounts:
        if raises_a_bound(state, replace(one, account=account).grant_of()):
            return account
    choices = [choice.title for choice in choices_of(state, person.name, created, teams)]
    limit = "; ".join(choices) or "nothing, because no quota limits you"
    others = [
        words
        for team in teams
        for account, words in (
            (Account(team, created), f"for yourself in team {team} (--team {team})"),
            (Account(team, ""), f"for the whole team {team} (--team {team} --whole-team)"),
        )
        if raises_a_bound(state, replace(one, account=account).grant_of())
    ]
    remedy = f"You can ask for it {' or '.join(others)}." if others else "No quota limits this amount."
    raise RequestRefused("what", one.words, limit, remedy)


@router.post("/api/v1/quota-requests/{request}/approve", Permission.ANSWER_REQUESTS, audit="approve a request")
async def approve_request(actor: Actor, request: str, *, body: ApprovalInput) -> models.Approval:
    """Approve a request, as it is or changed. The extra quota begins and ends by itself."""
    one, state, now = _answerable(actor, request), actor.state, actor.now
    since = body.since if body.since is not None else max(now, one.since or now)
    grant = replace(one.grant_of(body.what, since, body.until), id=uuid.uuid4().hex, by=actor.person.name, made_at=now)
    if grant.until <= since:
        raise RequestRefused("until", "the end before the beginning", "a time after it", "Give a later end.")
    if body.what is not None and not raises_a_bound(state, grant):
        raise _refusal_of_amount(state, one, grant)
    changed = (body.what or one.amount, body.since, grant.until) != (one.amount, None, one.until)
    if changed and not body.why:
        raise RequestRefused("why", "none", "a sentence", f"You changed the request: tell {one.user} why.")
    grant = replace(grant, why=body.why or one.why)
    answered = one.close(RequestOutcome.APPROVED, now, actor.person.name, body.why or "", grant.id)
    told = vars(present_request(state, one if body.dry_run else answered, actor.person, grant))
    shown = models.Approval(**told, dry_run=body.dry_run, effects=_effects(state, one, grant))
    if not body.dry_run:
        actor.store_answer(shown)
        await _approve(actor, one, answered, grant)
    return shown


def _refusal_of_amount(state: Parts, one: QuotaRequest, grant: QuotaGrant) -> RequestRefused:
    """Return the refusal of a changed amount that no quota of the account limits, as in a request."""
    place = one.account.team, one.is_for_team
    choices = choices_of(state, one.user, one.user_created, [one.account.team] if one.account.team else [])
    limit = "; ".join(x.title for x in choices if (x.team, x.whole_team) == place) or "nothing"
    return RequestRefused("what", show_grant(grant), limit, "Give more of a quota that limits the user.")


def _effects(state: Parts, one: QuotaRequest, grant: QuotaGrant) -> list[GrantEffect]:
    cost = cost_words(state, replace(one, amount=QuotaAmount(grant.what, grant.kind, grant.amount)))
    return [*effects_of(state, grant), *([GrantEffect(kind="info", words=f"{cost}.")] if cost else [])]


async def _approve(actor: Actor, one: QuotaRequest, answered: QuotaRequest, grant: QuotaGrant) -> None:
    """Store an approval with its extra quota, and tell its user."""
    state, said = actor.state, answered.answer
    given = [
        actor.audit_entry(event_of_grant(state, grant, kind, grant.why), grant.user or grant.account.team)
        for kind in (events.QuotaRequestApproved, events.QuotaGranted)
    ]
    instead = f" You asked for {one.words}." if show_grant(grant) != one.words else ""
    text = f"{actor.person.name} gave {show_grant(grant)} more to {grantee(grant)}.{instead}{_said(said)}"
    await state.quota_requests.change(answered, given, _mail_of_answer(state, one, "was approved", text), grant)
    state.notifier.wake()
    await apply_at_once(state.allocator)


@router.post("/api/v1/quota-requests/{request}/decline", Permission.ANSWER_REQUESTS, audit="decline a request")
async def decline_request(actor: Actor, request: str, *, body: ReasonInput) -> models.QuotaRequest:
    """Decline a request, with a sentence that its user reads."""
    one, state = _answerable(actor, request), actor.state
    declined = one.close(RequestOutcome.DECLINED, actor.now, actor.person.name, body.why)
    shown = present_request(state, declined, actor.person)
    actor.store_answer(shown)
    entry = actor.audit_entry(event_of_grant(state, one.grant_of(), events.QuotaRequestDeclined, body.why), one.user)
    text = f"{actor.person.name} declined it.{_said(body.why)}"
    await state.quota_requests.change(declined, [entry], _mail_of_answer(state, one, "was declined", text))
    state.notifier.wake()
    return shown


@router.delete("/api/v1/quota-requests/{request}", Permission.ASK_FOR_QUOTA, audit="withdraw a request")
async def withdraw_request(actor: Actor, request: str) -> models.QuotaRequest:
    """Withdraw a request of your own. Your quota stays as it is."""
    one, state = _find(actor, request), actor.state
    if not is_own(actor.person, one):
        raise HTTPError(403, reason=f"Only {one.user} may withdraw this request.")
    _check_open(one, actor.now)
    withdrawn = one.close(RequestOutcome.WITHDRAWN, actor.now, actor.person.name)
    shown = present_request(state, withdrawn, actor.person)
    actor.store_answer(shown)
    event = event_of_grant(state, one.grant_of(), events.QuotaRequestWithdrawn, one.why)
    await state.quota_requests.change(withdrawn, [actor.audit_entry(event, one.user)])
    return shown


def _find(actor: Actor, request: str) -> QuotaRequest:
    one = actor.state.quota_requests.get(request)
    if one is None or not sees(actor.person, one, actor.state):
        raise HTTPError(404, reason=f"There is no request for extra quota with the id {request[:40]}.")
    return one


def _answerable(actor: Actor, request: str) -> QuotaRequest:
    one = _find(actor, request)
    if why_not := why_not_answer(actor.person, one, actor.state):
        raise HTTPError(403, reason=why_not)
    _check_open(one, actor.now)
    return one


def _check_open(one: QuotaRequest, now: float) -> None:
    if one.state(now) is RequestOutcome.EXPIRED:
        raise Conflict("The requested time is over. Nothing can be changed any more.")
    if not one.is_open(now):
        raise Conflict(closed_words(one))


# Messages


def _said(why: str | None) -> str:
    return f" “{why}”" if why else ""


async def remind(state: Parts) -> None:
    """Remind the people who answer of requests that wait for long. Raises Unavailable: they are reminded later."""
    now = state.clock.now()
    for one in state.quota_requests.all():
        if one.is_reminder_due(now):
            title = f"{one.user} still waits for an answer: {one.words} more"
            with suppress(Conflict):  # it was answered meanwhile
                await state.quota_requests.change(replace(one, reminded_at=now), [], _mails_of_open(state, one, title))
    state.notifier.wake()


def _mails_of_open(state: Parts, one: QuotaRequest, title: str) -> list[OutboxRow]:
    """Return the messages about an open request, to administrators, to leads who may answer it, and to their chat."""
    console = f"{state.public_url}/console"
    text = (
        f"“{one.why}”\n\n{request_words(state, one)}.\n\nApprove: {console}/act/approve?request={one.id}\n"
        f"Change or decline: {console}/requests#r-{one.id}\n\n{CHANGES_NOTHING}\n"
    )
    team = "" if one.is_for_team else one.account.team
    return rows_about_team(state, team, "quota requested", title, text, sender=one.user)


def _mail_of_answer(state: Parts, one: QuotaRequest, outcome: str, text: str) -> Sequence[OutboxRow]:
    title = f"Your request for {one.words} {outcome}"
    mail = Message("", one.user, "quota answered", title, f"{text}\n\n{state.public_url}/quota/request\n")
    return state.notifier.rows_of(mail)
