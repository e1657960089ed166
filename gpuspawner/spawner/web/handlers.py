"""The hub's handlers that gpuspawner adds or replaces: Home, Start, tickets, fresh sign-in, and the service's domain.

With ``c.JupyterHub.subdomain_host`` each user and each service has a domain of its own, so that no script of one user's
server acts for another. The hub answers on every domain that belongs to no user and no service.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlparse

from jupyterhub import handlers as hub_handlers
from jupyterhub.handlers import BaseHandler
from jupyterhub.handlers.pages import HomeHandler, SpawnHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import isoformat, subdomain_hook_idna, subdomain_hook_legacy
from tornado.web import HTTPError, RequestHandler, StaticFileHandler, authenticated

from gpuspawner.core.authentication import CONFIRM_PATH, sign_confirmation, sign_ticket
from gpuspawner.look import BROWSER_FILES, LOOK
from gpuspawner.spawner.web.pages import ServiceView

HOOKS = {"idna": subdomain_hook_idna, "legacy": subdomain_hook_legacy}
"""JupyterHub's own, by the names that its configuration has for them."""


def service_origin(c: Any, service: str) -> str:
    """Return scheme and host of a service as JupyterHub makes them, "" where it shares the hub's.

    Args:
        c: the hub's configuration.
        service: the service's name.
    """
    host = str(c.JupyterHub.get("subdomain_host", ""))
    if not host:
        return ""
    of_hub = urlparse(host if "://" in host else f"https://{host}")  # as JupyterHub reads it
    hook = c.JupyterHub.get("subdomain_hook", "idna")
    named = HOOKS[hook] if isinstance(hook, str) and hook in HOOKS else hook
    domain = named(service, of_hub.hostname, kind="service")
    return f"{of_hub.scheme}://{domain}" + (f":{of_hub.port}" if of_hub.port else "")


def domain_handlers(service: str, origin: str) -> list[Any]:
    """Return the handlers for ``c.JupyterHub.extra_handlers``: none if the service shares the hub's domain."""
    if not origin:
        return []
    return [(rf"/services/{service}(/.*)?", ServiceRedirect, {"origin": origin})]


class ServiceRedirect(RequestHandler):
    """GET: redirect an address of the service on the hub's domain to the service's own domain.

    Links in messages have no domain. The hub routes ``/services/...`` below its own prefix, where this handler is.
    """

    def initialize(self, origin: str) -> None:
        """Store the service's scheme and host."""
        self._origin = origin

    def get(self, _path: str | None = None) -> None:
        """Redirect to the same address on the service's domain."""
        self.redirect(f"{self._origin}{self.request.uri.replace('/hub/services/', '/services/', 1)}")


WRONG = "The name or the password is wrong, or it is not yours. Nothing was allowed."
LONGEST_CODE = 20


def extra_handlers(secret_file: Path, service_prefix: str) -> list[Any]:
    """Return the handlers for ``c.JupyterHub.extra_handlers``.

    Args:
        secret_file: with the secret shared with the service.
        service_prefix: where browsers find the service, ending in ``/``.
    """
    keep = {"secret_file": secret_file}
    return [
        (r"/gpuspawner/look/(.*)", LookFile, {"path": str(LOOK)}),
        (r"/gpuspawner/ticket", Ticket, keep),
        (r"/gpuspawner/ticket/(?P<user_name>[^/]+)/(?P<server_name>[^/]*)", FormTicket, keep),
        (CONFIRM_PATH, Confirm, {**keep, "service_prefix": service_prefix}),
    ]


def route_first(secret_file: Path, service_url: str, service_prefix: str, *, replace_home: bool) -> None:
    """Have the hub serve :class:`Start` and :class:`Home` before its own pages.

    Routes that the hub's configuration adds come after all of the hub's own.
    """
    of_service = {"secret_file": secret_file, "service_url": service_url, "service_prefix": service_prefix}
    ours: list[Any] = [(r"/spawn", Start), (r"/spawn/([^/]+)", Start)]
    if replace_home:
        ours.append((r"/home", Home, of_service))
    routes: list[Any] = hub_handlers.default_handlers
    routes[:] = [*ours, *(route for route in routes if route[1] not in {Start, Home})]


class LookFile(StaticFileHandler):
    """GET: a file of BROWSER_FILES. Everybody may read it, because the sign-in page uses it."""

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        """Refuse other files of the folder."""
        if Path(absolute_path).name not in BROWSER_FILES:
            raise HTTPError(404)
        found: str | None = super().validate_absolute_path(root, absolute_path)
        return found


class Home(HomeHandler):
    """GET: redirect to the service's workspaces. While it is away, and for ``?hub``, show the hub's own page."""

    def initialize(self, secret_file: Path, service_url: str, service_prefix: str) -> None:
        """Store the paths of the secret and the service."""
        self._secret_file, self._service_url, self._service_prefix = secret_file, service_url, service_prefix

    @authenticated
    async def get(self) -> None:
        """Redirect if the service answers."""
        if "hub" not in self.request.query_arguments and await self._answers():
            self.redirect(self._service_prefix)
        else:
            await super().get()

    async def _answers(self) -> bool:
        secret, user = _read_secret(self._secret_file), self.current_user
        ticket = sign_ticket(secret, user.name, isoformat(user.orm_user.created), time.time())
        return await ServiceView(self._service_url, ticket, secret).workspaces() is not None


class Start(SpawnHandler):
    """GET: the hub's own page to start a default server. If that server runs, offer to open it or to start another.

    Without this page, the hub would open the running server again without a message.
    """

    @needs_scope("servers")
    async def _get(self, user_name: str, server_name: str, **more: Any) -> None:  # 6.x also gives a display name
        user = self.current_user
        asked = self.get_argument("next", "")  # a page of the running server was requested
        if user.name != user_name or not self.allow_named_servers or asked or not user.spawner.ready:
            await super()._get(user_name=user_name, server_name=server_name, **more)
            return
        taken = {one.name for one in user.all_spawners(include_default=False)}
        limit = await self.get_current_user_named_server_limit()
        html = await self.render_template(
            "gpuspawner/second.html",
            user=user,
            open_url=user.server_url(""),
            second=free_name(taken),
            full=limit if 0 < limit <= len(taken) else None,
            query=self.request.query,
        )
        self.finish(html)


def free_name(taken: set[str]) -> str:
    """Return the first name for a second workspace, or a third one, that no server of the user has."""
    return next(name for number in itertools.count(2) if (name := f"workspace-{number}") not in taken)


class Ticket(BaseHandler):
    """GET: a ticket of the person who is signed in. Like every page of the hub it takes the cookie, never a token."""

    def initialize(self, secret_file: Path) -> None:
        """Store the path of the secret."""
        self._secret_file = secret_file

    def get(self) -> None:
        """Answer with a ticket, or with 403 without a signed-in user."""
        if self.current_user is None:
            raise HTTPError(403, "Sign in to the hub.")
        self.answer(self.current_user, form=False)

    def answer(self, user: Any, *, form: bool) -> None:
        """Write a ticket for ``user``."""
        created = isoformat(user.orm_user.created)
        self.set_header("Cache-Control", "no-store")
        self.write({"ticket": sign_ticket(_read_secret(self._secret_file), user.name, created, time.time(), form=form)})

    def write_error(self, status_code: int, **_kwargs: Any) -> None:
        """Answer with JSON: only scripts send this request."""
        self.set_header("Cache-Control", "no-store")
        self.finish({"status": status_code})


class FormTicket(Ticket):
    """GET: the ticket of a server's form, for people who may see the form."""

    @needs_scope("servers")
    def get(self, user_name: str, server_name: str) -> None:  # noqa: ARG002 - needs_scope reads both
        """Answer with a ticket, with 403 without the right to start this server, or with 404 for an unknown user."""
        user = self.find_user(user_name)
        if user is None:
            raise HTTPError(404, "There is no such user.")
        self.answer(user, form=True)


def asks_for_password(authenticator: Any) -> bool:
    """Return whether an authenticator uses the hub's own sign-in form."""
    return not authenticator.auto_login and bool(authenticator.login_url("/hub/") == "/hub/login")


class Confirm(BaseHandler):
    """GET: the form to sign in again. POST: sign in, and go back to the service with the confirmation.

    The service asks for it before it makes an administrator's token for the command line. Where servers and hub share
    a domain, a page of another user's server may act for its visitor, but it knows no password.
    """

    def initialize(self, secret_file: Path, service_prefix: str) -> None:
        """Store the paths of the secret and the service."""
        self._secret_file, self._service_prefix = secret_file, service_prefix

    @authenticated
    async def get(self) -> None:
        """Show the form. If the authenticator has no form, the present sign-in counts."""
        if asks_for_password(self.authenticator):
            await self._show()
        else:
            self._go_back()

    @authenticated
    async def post(self) -> None:
        """Check name and password. They must be those of the signed-in user."""
        if asks_for_password(self.authenticator):
            names = ("username", "password", "otp")
            data = {name: self.get_body_argument(name, "", strip=name != "password") for name in names}
            signed_in = await self.authenticate(data)
            if not signed_in or signed_in["name"] != self.current_user.name:
                self.log.warning("a fresh sign-in of %s failed", self.current_user.name)
                self.set_status(403)
                await self._show(WRONG)
                return
        self._go_back()

    async def _show(self, problem: str = "") -> None:
        self.finish(
            await self.render_template(
                "gpuspawner/confirm.html",
                code=self._code(),
                problem=problem,
                otp=getattr(self.authenticator, "request_otp", False),
                otp_prompt=getattr(self.authenticator, "otp_prompt", "OTP:"),
                xsrf=self.xsrf_token.decode("ascii"),
            )
        )

    def _code(self) -> str:
        return str(self.get_argument("code", ""))[:LONGEST_CODE]

    def _go_back(self) -> None:
        secret = _read_secret(self._secret_file)
        created, code = isoformat(self.current_user.orm_user.created), self._code()
        query = urlencode({"code": code, "confirmed": sign_confirmation(secret, created, code, time.time())})
        self.redirect(f"{self._service_prefix}login-code?{query}", status=303)


def _read_secret(file: Path) -> bytes:
    return bytes.fromhex(file.read_text(encoding="ascii").strip())
