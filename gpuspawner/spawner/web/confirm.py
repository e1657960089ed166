"""A fresh sign-in before the service makes an administrator's token for the command line.

A page of another user's server may act for its visitor, where servers and hub share a domain. It knows no password.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import isoformat
from tornado.web import authenticated

from gpuspawner.core.authentication import CONFIRM_PATH, sign_confirmation

WRONG = "The name or the password is wrong, or it is not yours. Nothing was allowed."
LONGEST_CODE = 20


def handlers(secret_file: Path, service_prefix: str) -> list[Any]:
    """Return what to add to ``c.JupyterHub.extra_handlers``.

    Args:
        secret_file: with the secret shared with the service.
        service_prefix: where browsers find the service, ending in ``/``.
    """
    return [(CONFIRM_PATH, Confirm, {"secret_file": secret_file, "service_prefix": service_prefix})]


def asks_for_password(authenticator: Any) -> bool:
    """Return whether an authenticator signs people in by a form of the hub, and not by another site or by itself."""
    return not authenticator.auto_login and bool(authenticator.login_url("/hub/") == "/hub/login")


class Confirm(BaseHandler):
    """GET: the form to sign in again. POST: sign in, and go back to the service with the confirmation."""

    def initialize(self, secret_file: Path, service_prefix: str) -> None:
        """Keep where the secret and the service are."""
        self._secret_file, self._service_prefix = secret_file, service_prefix

    @authenticated
    async def get(self) -> None:
        """Answer the form. An authenticator without one can't be asked: then its sign-in of before counts."""
        if asks_for_password(self.authenticator):
            await self._show()
        else:
            self._go_back()

    @authenticated
    async def post(self) -> None:
        """Let the authenticator judge name and password. It must be the user who is signed in."""
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
        secret = bytes.fromhex(self._secret_file.read_text(encoding="ascii").strip())
        created, code = isoformat(self.current_user.orm_user.created), self._code()
        query = urlencode({"code": code, "confirmed": sign_confirmation(secret, created, code, time.time())})
        self.redirect(f"{self._service_prefix}login-code?{query}", status=303)
