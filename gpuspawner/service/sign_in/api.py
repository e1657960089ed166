"""The API of sign-in: a login by a code, and the tokens of the command line."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import Answer, PageQuery, Query, route
from gpuspawner.service.api.rest.paging import page
from gpuspawner.service.sign_in.device_login import LOGIN_SECONDS, Login
from gpuspawner.service.sign_in.tokens import make_token, revoke
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()

SCHEME = "login"
"""``Authorization: login SECRET``: how who began a login asks what came of it."""
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
    """Where its user signs in to the hub, types the code and presses Allow."""
    seconds: float
    """How long it waits."""
    ask_every_seconds: float


class Token(Answer):
    """A token of the command line; never the token itself."""

    id: str
    device: str
    made_at: float
    until: float
    admin_until: float | None
    """Until when it acts as an administrator; null where it does not."""
    now: float


class TokenList(Answer):
    """Tokens, the newest first."""

    tokens: list[Token]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class Allowed(Answer):
    """The result of a login. ``token`` is null until its user presses Allow."""

    token: str | None
    user: str | None
    about: Token | None


class Begin(ApiHandler):
    """A login by a code."""

    async def prepare(self) -> None:
        """Answer without authentication."""

    @route(answer=Begun, status=201, everybody=True, keyed=False)
    def post(self, *, query: LoginQuery) -> None:
        """Begin a sign-in of the command line."""
        parts = self.parts
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
        """Return the login. Raises 403 where it does not wait."""
        scheme, secret = self._authorization()
        found = self.parts.logins.of_secret(secret, self.parts.clock.now()) if scheme == SCHEME else None
        if found is None or found.denied:
            raise HTTPError(403, reason=NOT_WAITING)
        return found

    @route(answer=Allowed, everybody=True, keyed=False)
    async def post(self) -> None:
        """Return the token of an allowed sign-in, once. Send ``Authorization: login SECRET``."""
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


ROUTES: list[Any] = [(r"/api/v1/login", Begin), (r"/api/v1/login/token", Taken)]
