"""The API of quotas and usage: what people have left and have used, and what administrators change."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core import events
from gpuspawner.core.calendar import date_of, milliseconds, parse_day
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.rules import Account, QuotaGrant
from gpuspawner.service.api.rest import PageQuery
from gpuspawner.service.api.rest.models import page
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.quotas import models
from gpuspawner.service.quotas.models import Grant, GrantInput, ReasonInput
from gpuspawner.service.quotas.presenter import event_of_grant, present_grant, present_quota, present_usage
from gpuspawner.service.store.ledger import GROUPS
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
    teams = teams_of(state.catalog.rules, await state.members.lately(name, owner))
    if isinstance(whose, frozenset) and whose.isdisjoint(teams):
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
    """Return the grants of extra quota, newest first."""
    whose = actor.whose(Permission.SEE_GRANTS)
    grants = enumerate(actor.state.accounting.all_grants())  # they are appended, never removed
    numbered = [one for one in grants if whose is None or one[1].account.team in whose][::-1]
    shown, following = page(numbered, query, lambda one: (0, -one[0], one[1].id))
    return models.GrantList(grants=[present_grant(actor.state, grant) for _, grant in shown], next=following)


@router.post("/api/v1/quota-grants", Permission.GRANT, status=201, audit="grant")
async def grant_quota(actor: Actor, *, body: GrantInput) -> Grant:
    """Grant extra quota. It is in force at once, or from ``since``."""
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
    shown = present_grant(state, grant)
    actor.store_answer(shown)
    event = event_of_grant(actor.state, grant, events.QuotaGranted, body.why)
    await state.accounting.give(grant, actor.audit_entry(event, grant.user or account.team))
    await apply_at_once(state.allocator)
    return shown


@router.delete("/api/v1/quota-grants/{grant}", Permission.GRANT, audit="take a grant back")
async def take_grant_back(actor: Actor, grant: str, *, body: ReasonInput) -> Grant:
    """Take a grant back. Running workspaces continue to their end, but no workspace is extended or started by it."""
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


async def account_of(actor: Actor, user: str | None, team: str | None) -> Account:
    """Return the account of a user, a team, or a user in a team. Raises RequestRefused for an unknown user."""
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
