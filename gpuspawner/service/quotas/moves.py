"""Moves of hours or money between the budgets of two members of a team. One has less, the other as much more."""

from __future__ import annotations

import uuid
from dataclasses import replace
from fractions import Fraction

from gpuspawner.catalog import teams_of
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.events import QuotaMoved
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.budgets import BudgetBalance, budget_amount_text, period_text
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.quotas.limits import Requester, granted_amount
from gpuspawner.core.rules import Account, BudgetUnit, QuotaGrant
from gpuspawner.core.units import show_end
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.api import apply_at_once
from gpuspawner.service.quotas.grant_effects import effects_of
from gpuspawner.service.quotas.models import MoveInput, QuotaMove
from gpuspawner.service.quotas.presenter import grantee, present_grant
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()


@router.post("/api/v1/quota-moves", Permission.GRANT, status=201, other_status=200, audit="move quota")
async def move_quota(actor: Actor, *, body: MoveInput) -> tuple[QuotaMove, int]:
    """Move hours or money that one member has left to another member, until the budget resets or until a date."""
    async with actor.state.accounting.correcting:
        return await _move(actor, body)


async def _move(actor: Actor, body: MoveInput) -> tuple[QuotaMove, int]:
    state, less = actor.state, await _source_of(actor, body)
    target = await _member(actor, "user", body.user, body.team)
    account = Account(body.team or "", target.user_created)
    if actor.whose(Permission.GRANT) is not None and target.user_created == actor.person.owner.user_created:
        remedy = "Ask another lead of the team, or an administrator."
        raise RequestRefused("user", "hours for yourself", "other members of your team", remedy)
    more = replace(less, id=uuid.uuid4().hex, account=account, user=body.user, amount=-less.amount)
    balances = _balances(state, less)
    if not balances or not _balances(state, more):
        remedy = "Give extra quota instead."
        raise RequestRefused("what", show_grant(more), "a budget that each of both members has", remedy)
    least = min(balances, key=_left)
    if _left(least) < more.amount:
        limit = f"up to {budget_amount_text(_left(least), least)}"
        left = f"{grantee(less)} has no more left {period_text(least, actor.now)}."
        raise RequestRefused("what", show_grant(more), limit, left)
    until = body.until if body.until is not None else min(one.period.end for one in balances)
    less, more = replace(less, until=until), replace(more, until=until)
    whom = f"{grantee(more)}, from {less.user}"
    shown = QuotaMove(
        dry_run=body.dry_run,
        words=f"{show_grant(more)} for {whom}, until {show_end(until, actor.now, state.accounting.zone)}",
        less=present_grant(state, less),
        more=present_grant(state, more),
        effects=[*effects_of(state, more), *effects_of(state, less)],
    )
    if body.dry_run:
        return shown, 200
    actor.store_answer(shown)
    event = QuotaMoved(show_grant(more), whom, until, state.catalog.rules.timezone, body.why)
    await state.accounting.add_grants([less, more], [actor.audit_entry(event, one.user) for one in (less, more)])
    await apply_at_once(state.allocator)
    return shown, 201


async def _source_of(actor: Actor, body: MoveInput) -> QuotaGrant:
    """Return what the source loses, without its end. Raises RequestRefused if the actor may not move it."""
    whose, teams = actor.whose(Permission.GRANT), ", ".join(actor.teams_led)
    if isinstance(whose, frozenset) and body.team not in whose:
        raise RequestRefused("team", quoted(body.team or ""), f"teams that you lead: {teams}", "Name the team.")
    if body.source == body.user:
        raise RequestRefused("user", quoted(body.user), f"another member than {body.source}", "Name another member.")
    if not isinstance(body.what.what, BudgetUnit):
        limit = "GPU hours or cost, for example 20 GPU h"
        raise RequestRefused("what", "an amount that is no budget", limit, "Write hours or money.")
    source = await _member(actor, "source", body.source, body.team)
    return QuotaGrant(
        uuid.uuid4().hex,
        Account(body.team or "", source.user_created),
        body.what.what,
        -body.what.number,
        actor.now,
        actor.now + 1.0,
        user=body.source,
        why=body.why,
        by=actor.person.name,
        made_at=actor.now,
        move=uuid.uuid4().hex,
    )


async def _member(actor: Actor, field: str, name: str, team: str | None) -> Owner:
    """Return a user. Raises RequestRefused if the hub has no such user, or if they are not in the team."""
    owner = await actor.find_user(name)
    if team and team not in teams_of(actor.state.catalog.rules, await actor.state.members.fetch(name, owner)):
        raise RequestRefused(field, quoted(name), f"members of {team}", "Name a member of the team.")
    return owner


def _balances(state: Parts, grant: QuotaGrant) -> list[BudgetBalance]:
    """Return the balances of the budgets that a side of a move changes."""
    found = state.allocator.bounds.balances().of(Requester(grant.user, grant.account.user_created, grant.account.team))
    return [
        one
        for one in found
        if one.budget.what is grant.what and granted_amount([grant], one.account, grant.what, grant.since)
    ]


def _left(balance: BudgetBalance) -> Fraction:
    """Return what is left of a budget, or of the share if it has no limit."""
    bound = balance.soft if balance.hard is None else balance.hard
    return max(Fraction(0), (bound or Fraction(0)) - balance.used - balance.reserved)
