"""What is sent and answered for SSH by a login."""

from __future__ import annotations

from pydantic import Field

from gpuspawner.service.api.rest.models import Answer, Body


class SshTicket(Answer):
    """A ticket for one workspace, and for how long it is good."""

    ticket: str
    seconds: float


class SshTicketBody(Body):
    """The ticket that a workspace was sent."""

    ticket: str = Field(min_length=1, max_length=2000)


class SshTicketUser(Answer):
    """Whose ticket it is."""

    user: str
