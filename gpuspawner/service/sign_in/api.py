"""The API of sign-in: a login by a code, the tokens of the command line, and tickets for SSH."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.core.authentication import TICKET_SECONDS, read_ssh_ticket, sign_ssh_ticket
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest.document import read_arguments, route
from gpuspawner.service.api.rest.models import Answer, Body, PageQuery, Query, page
from gpuspawner.service.sign_in.tokens import LOGIN_SECONDS, Login, make_token, revoke
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import parse_input
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces.presenter import opens_of

router = Router()

SCHEME = "login"
"""The scheme of ``Authorization: login SECRET``, by which a program asks for the result of its login."""
ASK_SECONDS = 2.0
NOT_WAITING = "This login was denied, was used already, or its five minutes are over. Run gpuspawner login again."


class LoginQuery(Query):
    """The machine of a login, and its rights."""

    device: str = Field(default="", max_length=80)
    """The name of the machine. Its user reads it before they press Allow."""
    admin: bool = False
    """With an administrator's rights, for 12 hours."""


class Begun(Answer):
    """A login that waits for its user: ``secret`` is for the program, ``code`` for people."""

    secret: str
    code: str
    page: str
    """The page on which its user signs in to the hub, types the code and presses Allow."""
    seconds: float
    """The time until it expires."""
    ask_every_seconds: float


class Token(Answer):
    """A token of the command line, without its secret."""

    id: str
    device: str
    made_at: float
    until: float
    admin_until: float | None
    """The end of its administrator's rights, null without them."""
    now: float


class TokenList(Answer):
    """Tokens, the newest first."""

    tokens: list[Token]
    next: str | None
    """The cursor of the next part, null after the last one."""


class Allowed(Answer):
    """The result of a login. ``token`` is null until its user presses Allow."""

    token: str | None
    user: str | None
    about: Token | None


class Begin(ApiHandler):
    """A login by a code."""

    async def prepare(self) -> None:
        """Answer without authentication."""

    @route(answer=Begun, status=201, query=LoginQuery, everybody=True)
    def post(self) -> None:
        """Begin a sign-in of the command line."""
        parts, query = self.parts, parse_input(LoginQuery, read_arguments(self, LoginQuery))
        device = "".join(one for one in query.device if one.isprintable()) or "a machine without a name"
        login = parts.logins.begin(device, parts.clock.now(), admin=query.admin)
        begun = Begun(
            secret=login.secret,
            code=login.code,
            page=f"{self.address}/login-code",
            seconds=LOGIN_SECONDS,
            ask_every_seconds=ASK_SECONDS,
        )
        self.answer(begun.as_json(), 201)


class Taken(ApiHandler):
    """The result of a login."""

    async def prepare(self) -> None:
        """Answer without authentication. The secret names the login."""

    def login(self) -> Login:
        """Return the login. Raises 403 if it does not wait."""
        scheme, secret = self._authorization()
        found = self.parts.logins.of_secret(secret, self.parts.clock.now()) if scheme == SCHEME else None
        if found is None or found.denied:
            raise HTTPError(403, reason=NOT_WAITING)
        return found

    @route(answer=Allowed, everybody=True)
    async def post(self) -> None:
        """Return the token of an allowed sign-in, once. Send ``Authorization: login SECRET``."""
        read_arguments(self, None)
        login = self.login()
        if login.owner is None:
            self.answer(Allowed(token=None, user=None, about=None).as_json())
            return
        self.parts.logins.take(login)
        token, row = await make_token(self.parts, login, login.owner)
        about = present_token(row, self.parts.clock.now())
        self.answer(Allowed(token=token, user=login.user, about=about).as_json())


@router.get("/api/v1/tokens", Permission.SEE_TOKENS)
async def list_tokens(actor: Actor, *, query: PageQuery) -> TokenList:
    """Return the API tokens, newest first."""
    rows = await _tokens_of(actor)
    shown, following = page(rows, query, lambda row: (0, -row.made_at, row.id))
    return TokenList(tokens=[present_token(row, actor.now) for row in shown], next=following)


@router.delete("/api/v1/tokens/{token}", Permission.SEE_TOKENS)
async def revoke_token(actor: Actor, token: str) -> TokenList:
    """Revoke a token, and return the remaining ones. ``this`` is the token of the request."""
    person = actor.person
    wanted = person.token if token == "this" else token  # noqa: S105 - a word for it
    if not await revoke(actor.state, person.owner, person.name, wanted, actor.origin):
        raise HTTPError(404, reason=f"You have no token with the id {token[:40]}. See gpuspawner tokens.")
    return TokenList(tokens=[present_token(row, actor.now) for row in await _tokens_of(actor)], next=None)


async def _tokens_of(actor: Actor) -> list[TokenRow]:
    return await actor.state.store.read(actor.state.store.tokens.of, actor.person.owner, actor.now)


def present_token(row: TokenRow, now: float) -> Token:
    """Return a token, without its secret."""
    is_admin = row.admin_until is not None and now < row.admin_until
    return Token(
        id=row.id,
        device=row.device,
        made_at=row.made_at,
        until=row.until,
        admin_until=row.admin_until if is_admin else None,
        now=now,
    )


# Tickets for SSH by a login. A workspace's Jupyter server does not know our tokens. It has each ticket checked here.


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


ROUTES: list[Any] = [(r"/api/v1/login", Begin), (r"/api/v1/login/token", Taken)]
