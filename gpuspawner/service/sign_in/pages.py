"""The pages Command line and Tokens, the reference of the API, and the package for the command line.

pip installs the package from the service, so that the command line has the service's own version. The service's address
ends in no file name, by which pip knows a wheel. So pip gets a source archive: the wheel, and a build backend of a few
lines that takes it out. It needs nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError

from gpuspawner import __version__
from gpuspawner.catalog.template_models import SSH
from gpuspawner.core.authentication import CONFIRM_PATH, is_confirmed
from gpuspawner.core.leases.lease import UP
from gpuspawner.service.api.routes import document_of_all
from gpuspawner.service.sign_in.api import present_token
from gpuspawner.service.sign_in.tokens import (
    ADMIN_SECONDS,
    ALLOWED,
    LOGIN_SECONDS,
    TOKEN_SECONDS,
    Login,
    code_of,
    revoke,
)
from gpuspawner.service.web.base import ErrorPages, PageHandler
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
    """A page for users who have signed in to the hub in a browser. A token cannot create or revoke tokens here."""

    def signed_in(self) -> Person:
        """Return the reader. Raises 403 for a token, and for a service."""
        person = self.viewer()
        if self._authorization()[0] or not person.owner.user_created:
            raise HTTPError(403, reason="Only a user who has signed in to the hub in a browser may do this.")
        return person


class LoginCode(SignedInPage):
    """GET: the field for the code. POST: show the login with the code that was typed, then allow or deny it.

    No link fills the code in, because one click on a foreign address must not create a token.
    """

    def get(self) -> None:
        """Answer the field for the code. After a fresh sign-in for a login, answer that login."""
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
        """Carry out the step. If it is not possible, the page says why."""
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
    """GET: the reader's tokens of the command line. POST: revoke one."""

    async def get(self) -> None:
        """Answer the page."""
        owner, now = self.signed_in().owner, self.parts.clock.now()
        rows = await self.parts.store.read(self.parts.store.tokens.of, owner, now)
        up = (x for x in self.parts.registry if self.viewer().owns(x) and x.phase in UP)
        ssh = [(x.name, ssh_line(x, self.address)) for x in up if SSH in opens_of(self.parts, x)]
        tokens = [present_token(row, now) for row in rows]
        self.render_page("tokens.html", address=self.address, tokens=tokens, ssh=ssh)

    async def post(self) -> None:
        """Revoke the token and return to the page. A token that is gone already is no error."""
        person = self.signed_in()
        await revoke(self.parts, person.owner, person.name, self.get_body_argument("token", ""), ALLOWED)
        self.go_to("tokens")


class Reference(PageHandler):
    """GET: the API's document as a page."""

    def get(self) -> None:
        """Answer the page."""
        self.viewer()
        self.render_page("reference.html", api=document_of_all(), address=self.address)


PACKAGE = Path(__file__).parents[2]
NAME = f"gpuspawner-{__version__}"
WHEEL_NAME = f"{NAME}-py3-none-any.whl"
INFO = f"{NAME}.dist-info"
OF_WORKSPACES = ("workspace/labextension/", "workspace/jupyter-config/")
"""Files with another path in an installed package. Only Jupyter servers use them."""
OLDEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of each file in a zip, so that the same package always gives the same zip."""
WHEEL = "Wheel-Version: 1.0\nGenerator: gpuspawner\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "take_out"\nbackend-path = ["."]\n'
BACKEND = f"""\
import pathlib
import shutil


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copy(pathlib.Path(__file__).with_name("{WHEEL_NAME}"), wheel_directory)
    return "{WHEEL_NAME}"
"""


@cache
def make_wheel() -> bytes:
    """Return the installed package as a wheel. Raises PackageNotFoundError if it is not installed."""
    installed = distribution("gpuspawner")
    files = {
        f"gpuspawner/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and _belongs(path.relative_to(PACKAGE).as_posix())
    }
    files[f"{INFO}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    files[f"{INFO}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{INFO}/WHEEL"] = WHEEL.encode()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    return _zipped({**files, f"{INFO}/RECORD": f"{record}{INFO}/RECORD,,\n".encode()})


@cache
def make_archive() -> bytes:
    """Return the source archive of the wheel. Raises PackageNotFoundError if the package is not installed."""
    files = {"pyproject.toml": PROJECT.encode(), "take_out.py": BACKEND.encode(), WHEEL_NAME: make_wheel()}
    return _zipped({f"{NAME}/{name}": content for name, content in files.items()})


def _belongs(name: str) -> bool:
    return "__pycache__" not in name and not name.startswith(OF_WORKSPACES)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zipped(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, OLDEST_TIME), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


class Package(ErrorPages):
    """GET without sign-in: the package, as pip reads it from an address without a file name."""

    name, make = f"{NAME}.zip", staticmethod(make_archive)

    async def prepare(self) -> None:
        """Skip authentication: the package is public, and pip cannot sign in."""

    def get(self) -> None:
        """Answer the file. 404 if the service runs from a folder that is not an installed package."""
        try:
            content = self.make()
        except PackageNotFoundError:
            raise HTTPError(
                404, reason="The service was not installed as a package. Install a checkout instead."
            ) from None
        self.set_header("Content-Type", "application/zip")
        self.set_header("Content-Disposition", f'attachment; filename="{self.name}"')
        self.finish(content)


class WheelFile(Package):
    """GET: the wheel, for programs that want one by its name."""

    name, make = WHEEL_NAME, staticmethod(make_wheel)


ROUTES: list[Any] = [
    (r"/login-code", LoginCode),
    (r"/tokens", Tokens),
    (r"/reference", Reference),
    (r"/cli/?", Package),
    (rf"/cli/{WHEEL_NAME}", WheelFile),
]
