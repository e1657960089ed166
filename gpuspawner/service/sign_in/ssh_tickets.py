"""Tickets for SSH by a login of the command line. The workspace has each ticket checked here.

A login is a token of this service, which the workspace's Jupyter server does not know. So no token of the hub is sent.
"""

from __future__ import annotations

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.core.authentication import TICKET_SECONDS, read_ssh_ticket, sign_ssh_ticket
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP
from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces.presenter import opens_of

router = Router()


class SshTicket(Answer):
    """A ticket for one workspace, and for how long it is valid."""

    ticket: str
    seconds: float


class SshTicketBody(Body):
    """A ticket to check."""

    ticket: str = Field(min_length=1, max_length=2000)


class SshTicketUser(Answer):
    """The user of a valid ticket."""

    user: str


@router.post("/api/v1/workspaces/{workspace}/ssh", Permission.OPEN_SSH, idempotent=False)
async def make_ticket(actor: Actor, workspace: str) -> SshTicket:
    """Make a ticket that is valid for a minute. 409 if the workspace does not run or does not open SSH."""
    state, lease = actor.state, await actor.find_lease(workspace, Permission.OPEN_SSH)
    if lease.phase not in UP:
        raise Conflict("This workspace does not run now.")
    if "ssh" not in opens_of(state, lease):
        raise Conflict(f"This workspace does not open SSH: its template {lease.request.template} has no ssh.")
    ticket = sign_ssh_ticket(state.secret, lease.id, actor.person.name, state.clock.wall())
    return SshTicket(ticket=ticket, seconds=TICKET_SECONDS)


@router.post("/api/v1/workspaces/{workspace}/ssh/check", Permission.REPORT, idempotent=False)
async def check_ticket(actor: Actor, workspace: str, *, body: SshTicketBody) -> SshTicketUser:
    """Check the ticket of a workspace. 403 if it is expired, forged or for another workspace."""
    lease = await actor.find_lease(workspace, Permission.REPORT)
    user = read_ssh_ticket(actor.state.secret, lease.id, body.ticket, actor.state.clock.wall())
    if user is None:
        raise HTTPError(403, reason="This ticket has expired, or it is for another workspace.")
    return SshTicketUser(user=user)
