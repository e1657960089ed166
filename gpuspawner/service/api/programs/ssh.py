"""SSH by a login of the command line: a ticket for one workspace, which the workspace has checked here.

A login is a token of this service, which the workspace's Jupyter server does not know. So nothing of the hub is sent.
"""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.authentication import TICKET_SECONDS, read_ssh_ticket, sign_ssh_ticket
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import ssh as shapes
from gpuspawner.service.workspaces.presenter import opens_of


class Ticket(ApiHandler):
    """A ticket by which its user gets into a workspace by SSH."""

    @route(answer=shapes.SshTicket, keyed=False)
    async def post(self, workspace: str) -> None:
        """Answer a ticket, good for a minute; 409 where the workspace does not run, or does not open SSH."""
        lease, person = await self.own(workspace), self.must()
        if person.lease is not None or not person.owns(lease):
            raise HTTPError(403, reason="Only its user gets into a workspace by SSH.")
        if lease.phase not in UP:
            raise Conflict("This workspace does not run now.")
        if "ssh" not in opens_of(self.parts, lease):
            raise Conflict(f"This workspace does not open SSH: its template {lease.request.template} has no ssh.")
        ticket = sign_ssh_ticket(self.parts.secret, lease.id, person.name, self.parts.clock.wall())
        self.answer({"ticket": ticket, "seconds": TICKET_SECONDS})


class TicketCheck(ApiHandler):
    """Whether a ticket is good, for the workspace that it was sent to."""

    @route(answer=shapes.SshTicketUser, body=shapes.SshTicketBody, keyed=False)
    async def post(self, workspace: str) -> None:
        """Answer whose ticket it is; 403 where it is over, forged or another workspace's."""
        body = self.fields(*shapes.SshTicketBody.model_fields)
        lease, person = await self.own(workspace), self.must()
        if person.lease != lease.id:
            raise HTTPError(403, reason="Only the workspace itself has its tickets checked.")
        user = read_ssh_ticket(self.parts.secret, lease.id, str(body.get("ticket", "")), self.parts.clock.wall())
        if user is None:
            raise HTTPError(403, reason="This ticket is over, or is none of this workspace.")
        self.answer({"user": user})


ROUTES: list[Any] = [
    (r"/api/v1/workspaces/([^/]+)/ssh", Ticket),
    (r"/api/v1/workspaces/([^/]+)/ssh/check", TicketCheck),
]
