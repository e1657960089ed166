"""Login of the command line by a code, and the tokens that it got."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.service.api.base import ApiHandler, BaseHandler, Person
from gpuspawner.service.api.rest import Answer, PageQuery, Query, route
from gpuspawner.service.api.rest.paging import page
from gpuspawner.service.login.logins import LOGIN_SECONDS, Login
from gpuspawner.service.login.tokens import make_token, revoke, token_view

SCHEME = "login"
"""``Authorization: login SECRET``: how who began a login asks what came of it."""
ASK_SECONDS = 2
NOT_WAITING = "This login was denied, was used already, or its five minutes are over. Run gpuspawner login again."


class LoginQuery(Query):
    """For what a login is."""

    device: str = Field(default="", max_length=80)
    """What the machine calls itself: its user reads it before they allow it."""
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
    """What came of a login: ``token`` is null while nobody pressed Allow."""

    token: str | None
    user: str | None
    about: Token | None


class Begin(ApiHandler):
    """A login by a code."""

    async def prepare(self) -> None:
        """Ask nobody who they are: that is what this is for."""

    @route(answer=Begun, status=201, everybody=True, keyed=False)
    def post(self, *, query: LoginQuery) -> None:
        """Begin one."""
        parts = self.parts
        device = "".join(one for one in query.device if one.isprintable()) or "a machine without a name"
        login = parts.logins.begin(device, parts.clock.now(), admin=query.admin)
        told = {"secret": login.secret, "code": login.code, "page": f"{self.address}/login-code"}
        self.answer({**told, "seconds": LOGIN_SECONDS, "ask_every_seconds": ASK_SECONDS}, 201)


class Taken(ApiHandler):
    """What came of a login."""

    async def prepare(self) -> None:
        """Know by the secret which one it is."""

    def login(self) -> Login:
        """Return the login. Raises 403 where it does not wait."""
        scheme, secret = self._authorization()
        found = self.parts.logins.of_secret(secret, self.parts.clock.now()) if scheme == SCHEME else None
        if found is None or found.denied:
            raise HTTPError(403, reason=NOT_WAITING)
        return found

    @route(answer=Allowed, everybody=True, keyed=False)
    async def post(self) -> None:
        """Get the token of an allowed login, once. It is asked with ``Authorization: login SECRET``."""
        login = self.login()
        if login.owner is None:
            self.answer({"token": None, "user": None, "about": None})
            return
        self.parts.logins.take(login)
        token, row = await make_token(self.parts, login, login.owner)
        self.answer({"token": token, "user": login.user, "about": token_view(self.parts, row)})


def person_of_tokens(handler: BaseHandler) -> Person:
    """Return who asks for their tokens. Raises 403 for a workspace: it may run anybody's code."""
    person = handler.must()
    if person.lease is not None:
        raise HTTPError(403, reason="A workspace's own token may not see or end others: use the hub's pages.")
    return person


class Tokens(ApiHandler):
    """One's own tokens of the command line."""

    @route(answer=TokenList)
    async def get(self, *, query: PageQuery) -> None:
        """Answer them, the newest first."""
        person = person_of_tokens(self)
        rows = await self.parts.store.read(self.parts.store.tokens.of, person.owner, self.parts.clock.now())
        shown, following = page(rows, query, lambda row: (0, -row.made_at, row.id))
        self.answer({"tokens": [token_view(self.parts, row) for row in shown], "next": following})


class OneToken(ApiHandler):
    """One of one's own tokens; ``this`` is the one that it is asked by."""

    @route(answer=TokenList)
    async def delete(self, token: str) -> None:
        """Revoke it, and answer those that are left."""
        person = person_of_tokens(self)
        self.fields()
        wanted = person.token if token == "this" else token  # noqa: S105 - a word for it
        if not await revoke(self.parts, person.owner, person.name, wanted, self.where):
            raise HTTPError(404, reason=f"You have no token with the id {token[:40]}. See gpuspawner tokens.")
        rows = await self.parts.store.read(self.parts.store.tokens.of, person.owner, self.parts.clock.now())
        self.answer({"tokens": [token_view(self.parts, row) for row in rows], "next": None})


ROUTES: list[Any] = [
    (r"/api/v1/login", Begin),
    (r"/api/v1/login/token", Taken),
    (r"/api/v1/tokens", Tokens),
    (r"/api/v1/tokens/([^/]+)", OneToken),
]
