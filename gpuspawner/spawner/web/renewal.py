"""Renews the tickets of open pages, for as long as the hub takes its own login cookie."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jupyterhub.handlers import BaseHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import isoformat
from tornado.web import HTTPError

from gpuspawner.core.authentication import sign_ticket


def handlers(secret_file: Path) -> list[Any]:
    """Return what to add to ``c.JupyterHub.extra_handlers``."""
    keep = {"secret_file": secret_file}
    return [
        (r"/gpuspawner/ticket", Ticket, keep),
        (r"/gpuspawner/ticket/(?P<user_name>[^/]+)/(?P<server_name>[^/]*)", FormTicket, keep),
    ]


class Ticket(BaseHandler):
    """GET: a ticket of whoever is signed in. Like every page of the hub it takes the cookie alone, never a token."""

    def initialize(self, secret_file: Path) -> None:
        """Keep where the secret is."""
        self._secret_file = secret_file

    def get(self) -> None:
        """Answer the ticket, 403 where nobody is signed in."""
        if self.current_user is None:
            raise HTTPError(403, "Sign in to the hub.")
        self.answer(self.current_user, form=False)

    def answer(self, user: Any, *, form: bool) -> None:
        """Write a ticket for ``user``."""
        secret = bytes.fromhex(self._secret_file.read_text(encoding="ascii").strip())
        created = isoformat(user.orm_user.created)
        self.set_header("Cache-Control", "no-store")
        self.write({"ticket": sign_ticket(secret, user.name, created, time.time(), form=form)})

    def write_error(self, status_code: int, **_kwargs: Any) -> None:
        """Answer without a page: only scripts ask."""
        self.set_header("Cache-Control", "no-store")
        self.finish({"status": status_code})


class FormTicket(Ticket):
    """GET: the ticket of a server's form, for whoever the hub shows that form."""

    @needs_scope("servers")
    def get(self, user_name: str, server_name: str) -> None:  # noqa: ARG002 - needs_scope looks at both
        """Answer the ticket, 403 without the right to start this server, 404 where there is no such user."""
        user = self.find_user(user_name)
        if user is None:
            raise HTTPError(404, "There is no such user.")
        self.answer(user, form=True)
