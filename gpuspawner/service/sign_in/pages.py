"""The pages Command line and Tokens, and the reference of the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError

from gpuspawner.catalog.models import SSH
from gpuspawner.core.authentication import CONFIRM_PATH, is_confirmed
from gpuspawner.core.leases.lease import UP
from gpuspawner.service.api.routes import document_of_all
from gpuspawner.service.sign_in.api import present_token
from gpuspawner.service.sign_in.device_login import LOGIN_SECONDS, Login, code_of
from gpuspawner.service.sign_in.tokens import ADMIN_SECONDS, ALLOWED, TOKEN_SECONDS, revoke
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.permissions import Person, Role
from gpuspawner.service.workspaces.links import ssh_line
from gpuspawner.service.workspaces.presenter import opens_of

UNKNOWN = (
    "No login waits with this code. Look at your terminal again. A code is valid for five minutes, and once. Run "
    "gpuspawner login for a new one."
)
TRIED = "Too many wrong codes. Try again in five minutes."
ALLOWED_MANY = "You allowed many logins. Try again in five minutes."
NOT_CONFIRMED = "Your sign-in for this login is over. Type the code again."


class SignedInPage(PageHandler):
    """A page for who has signed in to the hub by a browser: no token may let another act."""

    def signed_in(self) -> Person:
        """Return the reader. Raises 403 for a token, and for a service."""
        person = self.viewer()
        if self._authorization()[0] or not person.owner.user_created:
            raise HTTPError(403, reason="Only a user who has signed in to the hub in a browser may do this.")
        return person


class LoginCode(SignedInPage):
    """GET: the field for the code. POST: show the login with the code that was typed, then allow or deny it.

    No link fills the code in: a click on an address from elsewhere must not be all that a token takes.
    """

    def get(self) -> None:
        """Answer the field; after a fresh sign-in for a login, that login."""
        confirmed = self.get_query_argument("confirmed", "")
        if not confirmed:
            self._show()
            return
        code = code_of(self.get_query_argument("code", ""))
        if not self._is_confirmed(confirmed, code):
            self._show(problem=NOT_CONFIRMED, status=403)
            return
        login, problem = self._found(code)
        self._show(login, problem, 404 if problem else 200, confirmed=confirmed)

    def post(self) -> None:
        """Do it, once; what can't be done is told."""
        person, login, problem = self.signed_in(), *self._found(self.get_body_argument("code", ""))
        answer = self.get_body_argument("answer", "")
        if login is None:
            self._show(problem=problem, status=404)
        elif not answer:
            self._show(login)
        elif answer != "allow":
            self.parts.logins.decide(login, None)
            self._show(done="The machine was refused and cannot log in")
        elif login.admin and person.roles == {Role.USER}:
            raise HTTPError(403, reason="It asks for an administrator's rights, which you have not. Run it without.")
        elif login.admin and not self._is_confirmed(self.get_body_argument("confirmed", ""), login.code):
            query = urlencode({"code": login.code})
            self.redirect(f"{self.hub_prefix.rstrip('/')}{CONFIRM_PATH}?{query}", status=303)
        elif not self.parts.logins.may_allow(person.owner, self.parts.clock.now()):
            self._show(problem=ALLOWED_MANY, status=429)
        else:
            self.parts.logins.decide(login, person.owner, person.name, person.scopes)
            self._show(done=f"{login.device} is logged in")

    def _is_confirmed(self, confirmed: str, code: str) -> bool:
        created = self.signed_in().owner.user_created
        return is_confirmed(self.parts.secret, confirmed, created, code, self.parts.clock.wall())

    def _found(self, code: str) -> tuple[Login | None, str]:
        owner, now = self.signed_in().owner, self.parts.clock.now()
        login = self.parts.logins.find(code, owner, now)
        if login is not None:
            return login, ""
        return None, UNKNOWN if self.parts.logins.tries_left(owner) else TRIED

    def _show(
        self,
        login: Login | None = None,
        problem: str = "",
        status: int = 200,
        done: str = "",
        confirmed: str = "",
    ) -> None:
        person = self.signed_in()
        self.render_page(
            "login_code.html",
            status,
            login=login,
            confirmed=confirmed,
            may=login is None or not login.admin or person.roles != {Role.USER},
            ends_at=None if login is None else login.at + LOGIN_SECONDS,
            days=round(TOKEN_SECONDS / 86400),
            admin_hours=round(ADMIN_SECONDS / 3600),
            problem=problem,
            done=done,
            tries_left=self.parts.logins.tries_left(person.owner),
        )


class Tokens(SignedInPage):
    """GET: one's own tokens of the command line. POST: revoke one."""

    async def get(self) -> None:
        """Answer the page."""
        owner, now = self.signed_in().owner, self.parts.clock.now()
        rows = await self.parts.store.read(self.parts.store.tokens.of, owner, now)
        up = (x for x in self.parts.registry if self.viewer().owns(x) and x.phase in UP)
        ssh = [(x.name, ssh_line(x, self.address)) for x in up if SSH in opens_of(self.parts, x)]
        tokens = [present_token(row, now) for row in rows]
        self.render_page("tokens.html", address=self.address, tokens=tokens, ssh=ssh)

    async def post(self) -> None:
        """Do it and return to the page; one that is gone already is as it should be."""
        person = self.signed_in()
        await revoke(self.parts, person.owner, person.name, self.get_body_argument("token", ""), ALLOWED)
        self.redirect(f"{self.parts.prefix.rstrip('/')}/tokens", status=303)


class Reference(PageHandler):
    """GET: the API's document as a page."""

    def get(self) -> None:
        """Answer it."""
        self.viewer()
        self.render_page("reference.html", api=document_of_all(), address=self.address)


ROUTES: list[Any] = [(r"/login-code", LoginCode), (r"/tokens", Tokens), (r"/reference", Reference)]
