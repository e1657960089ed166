"""The API of statements: usage and cost of a team in a month."""

from __future__ import annotations

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.events import StatementMailed
from gpuspawner.core.quotas.months import month_of, previous_month, read_month
from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.notifications.recipients import recipients_of
from gpuspawner.service.quotas.presenter import today_of
from gpuspawner.service.store.outbox import write_outbox
from gpuspawner.service.usage.alerts import rows_of_statement
from gpuspawner.service.usage.statements import Statement, StatementList, find_statement, find_statements
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import MAX_NAME_LETTERS, allows, refused_as
from gpuspawner.service.web.permissions import Permission, Reach, refusal_words

router = Router()


class MonthQuery(Query):
    """The month of statements."""

    month: str = ""
    """The month, for example ``2026-10`` (default: the last one)."""


class StatementQuery(MonthQuery):
    """The team and the month of a statement."""

    team: str | None = None
    """The team. Without one: usage that is charged to no team."""


class MailInput(Body):
    """The statement to mail."""

    team: str = allows("a team", "Name a team of the catalog.", min_length=1, max_length=MAX_NAME_LETTERS)
    month: str = ""
    """The month, for example ``2026-10`` (default: the last one)."""


class MailedStatement(Answer):
    """A mailed statement, and the leads that get it."""

    number: str
    leads: list[str]


@router.get("/api/v1/statements", Permission.SEE_USAGE)
async def list_statements(actor: Actor, *, query: MonthQuery) -> StatementList:
    """Return the totals of the statements of a month, for all teams or for those that you lead."""
    return await find_statements(actor.state, _month(actor, query.month), teams_with_statements(actor))


@router.get("/api/v1/statement", Permission.SEE_USAGE)
async def get_statement(actor: Actor, *, query: StatementQuery) -> Statement:
    """Return the statement of a team for a month. The statement of a closed month never changes."""
    team, teams = query.team or "", teams_with_statements(actor)
    if actor.person.reach(Permission.SEE_USAGE) is not Reach.ALL and team not in teams:
        led = f"{team[:40]} is not a team that you lead. " if team else ""
        raise HTTPError(403, reason=f"{led}{refusal_words(Permission.SEE_USAGE, Reach.ALL)}")
    month = _month(actor, query.month)
    found = await find_statement(actor.state, team, month)
    if team not in teams and not found.lines:
        raise RequestRefused("team", quoted(team), ", ".join(filter(None, teams)) or "none", "Name a team.")
    return found


@router.post("/api/v1/statement/mail", Permission.ANNOUNCE, idempotent=False, audit="mail a statement")
async def mail_statement(actor: Actor, *, body: MailInput) -> MailedStatement:
    """Send the statement of a team to its leads and its chat, once more. They get it on the first day of a month."""
    state, leads = actor.state, recipients_of(actor.state, body.team)
    if not leads:
        raise Conflict("This team has no leads. Name them in the catalog, for example leads: [carol].")
    if not state.settings.notify_users and body.team not in state.settings.notify_teams:
        raise Conflict("Messages to users are not set up. Set notify_users in the settings of the service.")
    found = await find_statement(state, body.team, _month(actor, body.month))
    rows = rows_of_statement(state, found)
    entry = actor.audit_entry(StatementMailed(found.number, tuple(leads)), target=f"team {body.team}")
    await state.registry.save(audit=[entry], others=[lambda connection: write_outbox(connection, rows)])
    state.notifier.wake()
    return MailedStatement(number=found.number, leads=leads)


def teams_with_statements(actor: Actor) -> list[str]:
    """Return the teams whose statements the actor sees; those who see all also see "", which is usage without a team.

    Raises:
        HTTPError: 403 for those who see their own usage only.
    """
    whose = actor.whose(Permission.SEE_USAGE)
    return sorted(whose) if isinstance(whose, frozenset) else [*sorted(actor.state.catalog.rules.teams), ""]


def _month(actor: Actor, text: str) -> str:
    """Return the wanted month. Raises RequestRefused for a wrong one, and for one to come."""
    this = month_of(today_of(actor.state))
    month: str = refused_as("month", read_month, text or previous_month(this))
    if month > this:
        raise RequestRefused("month", month, f"up to {this}", "Choose a month that has begun.")
    return month
