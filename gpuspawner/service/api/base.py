"""The base class of request handlers: authentication and error responses."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable
from typing import Any

from jupyterhub.utils import get_browser_protocol
from tornado.httputil import HTTPHeaders
from tornado.web import HTTPError, RequestHandler

from gpuspawner.catalog import AllRefused, what_is_wrong
from gpuspawner.core.authentication import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    SCHEME,
    TIME_HEADER,
    RequestTarget,
    proofs_match,
    prove_answer,
    prove_request,
    read_ticket,
)
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Superseded, Unavailable, quoted
from gpuspawner.core.leases.lease import NOBODY, Owner
from gpuspawner.service.engine.allocation.start_attempts import WORKSPACE_TOKEN_PREFIX, hash_token
from gpuspawner.service.hub_sign_in import HubOAuth, HubOAuthenticated
from gpuspawner.service.parts import Parts
from gpuspawner.service.sign_in.tokens import TOKEN_PREFIX, holder_of_token
from gpuspawner.service.web.permissions import SCOPES, Person, Role, roles_of

log = logging.getLogger("gpuspawner.api")

USE = SCOPES[Role.USER]
COMMAND_LINE = "gpuspawner/"
"""The beginning of the command line's ``User-Agent``."""
WORDLESS = {
    400: "A value in the address is missing, or no text in UTF-8.",
    405: "This address does not take {method}.",
}
"""Messages for errors that Tornado raises without a text for users."""


def authorization(headers: HTTPHeaders) -> tuple[str, str]:
    """Return the lower-case scheme and the credential of the ``Authorization`` header, both empty without one."""
    scheme, _, credential = headers.get("Authorization", "").partition(" ")
    return scheme.lower(), credential.strip()


def is_spawner(secret: bytes, headers: HTTPHeaders) -> bool:
    """Return whether the headers of a request prove that it comes from the hub's spawner."""
    scheme, proof = authorization(headers)
    nonce = headers.get(NONCE_HEADER, "")
    due = prove_request(secret, nonce, headers.get(TIME_HEADER, ""), headers.get(DIGEST_HEADER, ""))
    return scheme == SCHEME and bool(nonce) and proofs_match(proof, due)


class BaseHandler(HubOAuthenticated, RequestHandler):
    """Authenticates the sender before anything else, and turns the errors of ``core`` into answers with a reason."""

    serves_forms = False
    """Whether the ticket of a form is enough. People other than its user may hold such a ticket too."""
    person: Person | None = None
    hub_model: dict[str, Any] | None = None
    """The hub's model of the sender, also without the right to use GPUs. None if the hub was not asked."""
    held: tuple[int, str] | None = None
    """The status and text of an answer that :func:`gpuspawner.service.api.rest.keys.once` stores before it is sent."""
    holds = False

    def initialize(self, parts: Parts) -> None:
        """Keep the service's parts."""
        self.parts = parts

    def set_default_headers(self) -> None:
        """Forbid caching, and guesses of the content type."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    @property
    def where(self) -> str:
        """The origin of an action for the audit log, in words. The ``User-Agent`` of the command line is not proved."""
        if self._authorization()[0] == "ticket":
            return "a page of the hub"
        program = self.request.headers.get("User-Agent", "")
        signed_in = self.person is not None and bool(self.person.token)
        return "the command line" if signed_in or program.startswith(COMMAND_LINE) else "the API"

    @property
    def address(self) -> str:
        """The service's address as the sender has it, by the headers of the proxies in front."""
        return f"{get_browser_protocol(self.request)}://{self.request.host}{self.parts.prefix}".rstrip("/")

    def _authorization(self) -> tuple[str, str]:
        return authorization(self.request.headers)

    async def find_person(self) -> Person | None:
        """Authenticate the sender of the request. Return None if it is unknown.

        It may send a page's ticket or the service's cookie. It may also send a token of a workspace, of the command
        line or of the hub.
        """
        scheme, credential = self._authorization()
        if scheme == "ticket":
            holder = read_ticket(self.parts.secret, credential, self.parts.clock.wall())
            if holder is None or (holder.form and not self.serves_forms):
                return None
            if self._acts() and not await self.parts.known.has_user(holder.user, holder.created):
                raise HTTPError(403, reason=f"The hub has no user {holder.user[:40]} any more: nothing was done.")
            return Person(holder.user, self._owner(holder.created))
        if scheme in {"token", "bearer"} and credential.startswith(WORKSPACE_TOKEN_PREFIX):
            hashed = hash_token(credential)
            found = (x for x in self.parts.registry if x.token_hash and hmac.compare_digest(x.token_hash, hashed))
            lease = next(found, None)
            return Person(lease.user, lease.key.owner, lease=lease.id) if lease is not None else None
        if scheme in {"token", "bearer"} and credential.startswith(TOKEN_PREFIX):
            row = await holder_of_token(self.parts, credential)
            if row is None:
                return None
            privileged = row.admin_until is not None and self.parts.clock.now() < row.admin_until
            return Person(row.user, row.owner, frozenset(row.scopes.split() if privileged else ()), token=row.id)
        return await self._find_in_hub()

    def _acts(self) -> bool:
        """Return whether the request changes something."""
        return self.request.method in {"POST", "DELETE"} and not self.serves_forms

    async def _is_still_known(self) -> bool:
        """Return whether the hub still accepts the sender's token. The cached answer may outlive a logout, and a user.

        While the hub does not answer, return True, because people must be able to press Keep.
        """
        hub_auth: HubOAuth = self.hub_auth
        try:
            return bool(await hub_auth.user_for_token(hub_auth.get_token(self), use_cache=False, sync=False))
        except HTTPError:
            return True

    async def _find_in_hub(self) -> Person | None:
        hub_auth: HubOAuth = self.hub_auth
        model = self.hub_model = await self.asked_of_hub(hub_auth.get_user(self, sync=False))
        if model and self._acts() and not await self._is_still_known():
            model = self.hub_model = None
        if not model:
            return None
        scopes = frozenset(scope for scope in model["scopes"] if roles_of([scope]))
        if not scopes:
            return None
        if model["kind"] != "user":
            return Person(model["name"], scopes=scopes)
        if "created" not in model:
            # JupyterHub's client caches this model for AUTH_SECONDS, so the user's creation time is stored in it.
            # A second question by name is not safe, because another user may have the name by then.
            model["created"] = await self._created(model["name"])
        person = Person(model["name"], self._owner(model["created"]), scopes)
        if person.roles != {Role.USER}:
            self.parts.roles_used[person.name] = person
        return person

    async def asked_of_hub(self, answer: Awaitable[Any]) -> Any:
        """Await an answer of JupyterHub's client. Raises Unavailable if the hub does not answer."""
        try:
            return await answer
        except HTTPError as error:
            if error.status_code < 500:  # noqa: PLR2004 - HTTP's own numbers
                raise
            # JupyterHub's client answers 500 or 502, which would read as an error of ours.
            message = "The hub does not answer, so we can't check who you are. Try again in a minute."
            raise Unavailable(message) from error

    async def _created(self, name: str) -> str:
        """Return when the token's user was created. The name is checked again afterwards, because it may change hands.

        Raises:
            Unavailable: the hub does not answer, or the name passed to another user while it was asked.
        """
        created = await self.parts.hub.created(name)
        again = await self.hub_auth.user_for_token(self.hub_auth.get_token(self), use_cache=False, sync=False)
        if created is None or again is None or again["name"] != name:
            raise Unavailable("The hub is changing your account, so we can't check who you are. Try again in a minute.")
        return created

    def _owner(self, created: str | None) -> Owner:
        return Owner(self.parts.hub_id, created) if created else NOBODY

    def get_current_user(self) -> str | None:
        """Return the name that was found before. JupyterHub's own version would ask the hub, and block meanwhile."""
        return self.person.name if self.person else (self.hub_model or {}).get("name")

    def must(self) -> Person:
        """Return the authenticated person. Raises HTTPError 403 without one."""
        if self.person is not None:
            return self.person
        scheme, credential = self._authorization()
        if scheme in {"token", "bearer"} and credential.startswith(TOKEN_PREFIX):
            raise HTTPError(403, reason="This login is over or was revoked: run gpuspawner login.")
        of_hub = scheme in {"token", "bearer"} and not credential.startswith(WORKSPACE_TOKEN_PREFIX)
        if of_hub and credential and self.hub_model is None:
            message = "The hub does not know this token: it has expired or was revoked. Make another on its page Token."
            raise HTTPError(403, reason=message)
        raise HTTPError(403, reason="Sign in to the hub, or send a token with the scope custom:gpu:use.")

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object. Raises HTTPError 400 if the body is anything else."""
        try:
            body = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError) as error:  # the second: lists in lists, a thousand deep
            raise HTTPError(400, reason="The request is not JSON.") from error
        if not isinstance(body, dict):
            raise HTTPError(400, reason="The request is not a JSON object.")
        return body

    def fields(self, *known: str) -> dict[str, Any]:
        """Return the request's JSON object, which has no other fields than these.

        Raises:
            HTTPError: the body is not a JSON object.
            RequestRefused: a field is not known. Its sender expects something that would not be done.
        """
        body = self.body()
        for name in body:
            if name not in known:
                remedy = "Leave it out." if known else "Send the request without a body."
                raise RequestRefused(quoted(name), "a field that does not exist", ", ".join(known) or "none", remedy)
        return body

    def answer(self, document: dict[str, Any], status: int = 200) -> None:
        """Answer a JSON document."""
        if self.holds:
            self.held = (status, json.dumps(document))
        else:
            self.send(status, json.dumps(document))

    def send(self, status: int, text: str) -> None:
        """Write a JSON text. If the request has a nonce, add a proof that this hub's service wrote it."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header("Gpuspawner-Timezone", self.parts.catalog.rules.timezone)
        nonce = self.request.headers.get(NONCE_HEADER, "")
        if nonce:
            asked = RequestTarget(str(self.request.method), str(self.request.uri))
            self.set_header(PROOF_HEADER, prove_answer(self.parts.secret, nonce, asked, status, text.encode()))
        self.finish(text)

    def error_of(self, error: BaseException | None) -> tuple[int, dict[str, Any]]:
        """Return the status of an error, and its document."""
        if isinstance(error, RequestRefused):
            details = {"field": error.field, "asked": error.asked, "limit": error.limit, "remedy": error.remedy}
            return error.status, {"message": str(error), **details, **_all_of(error)}
        if isinstance(error, Gone):
            return 410, {"message": str(error)}
        if isinstance(error, Conflict):
            return 409, {"message": str(error)}
        if isinstance(error, (Unavailable, Superseded)):
            return 503, {"message": f"{self._outage_words(error)}{error}"}
        if isinstance(error, HTTPError):
            wordless = WORDLESS.get(error.status_code, "The request could not be served.")
            return error.status_code, {"message": error.reason or wordless.format(method=self.request.method)}
        return 500, {"message": "The service met an error of its own; the administrator finds it in its log."}

    def _outage_words(self, error: Unavailable | Superseded) -> str:
        """Return the words about the outage behind an error, with a trailing space, "" without an outage."""
        part, now = error.part if isinstance(error, Unavailable) else "", self.parts.clock.now()
        found = (outage for outage in self.parts.queue.outages() if outage.part == part)
        return next((f"{outage.words(now)} " for outage in found), "")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error with its reason."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        self.tell_error(*(self.error_of(error) if error is not None else (status_code, {"message": "Not possible."})))

    def tell_error(self, status: int, document: dict[str, Any]) -> None:
        """Answer an error. Pages answer it as a page."""
        self.answer({"error": document}, status)

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log no traceback for errors that are answers."""
        if not isinstance(value, (RequestRefused, Conflict, Unavailable, Superseded)):
            super().log_exception(typ, value, tb)


def _all_of(error: RequestRefused) -> dict[str, Any]:
    """Return every refused option with its reason, {} if the error is about one option only."""
    if not isinstance(error, AllRefused):
        return {}
    fields = [{"field": one.field, "words": one.details} for one in error.refused]
    return {"sentence": what_is_wrong(error.refused), "fields": fields, "understood": error.understood}


class ApiHandler(BaseHandler):
    """A BaseHandler for a route that needs to know the sender.

    Pages of the hub send a ticket. If the hub has a domain of its own, browsers send a preflight request first.
    """

    def set_default_headers(self) -> None:
        """Let pages of the hub's own domain read the answers, and no others."""
        super().set_default_headers()
        hub_host = self.hub_auth.hub_host  # "" where hub and service share a domain
        if hub_host and self.request.headers.get("Origin") == hub_host:
            self.set_header("Access-Control-Allow-Origin", hub_host)
            self.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type")
            self.set_header("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE")
            self.set_header("Access-Control-Max-Age", "600")
            self.set_header("Vary", "Origin")

    def options(self, *_path: str) -> None:
        """Answer the preflight request of a browser. The headers say what a page of the hub may send."""
        self.set_status(204)

    async def prepare(self) -> None:
        """Authenticate the sender, or refuse the request with 403."""
        if self.request.method == "OPTIONS":
            return
        self.person = await self.find_person()
        self.must()
