"""The parts that all pages share: the user, templates, security headers and error pages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from tornado.web import HTTPError, StaticFileHandler

from gpuspawner.core.errors import Unavailable, split_sentences
from gpuspawner.core.leases.lease import WAITING, Lease, Phase
from gpuspawner.core.units import show_bytes, show_cpu, show_duration, show_money, show_time, show_wait
from gpuspawner.look import BROWSER_FILES, LOOK
from gpuspawner.service.announcements.inboxes import Inbox, inbox_of, present_shown
from gpuspawner.service.api.base import USE, BaseHandler
from gpuspawner.service.api.events import version_of
from gpuspawner.service.hub_sign_in import HubOAuthCallbackHandler
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import ReadingRow
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.permissions import ACTS, Permission, Person, Role
from gpuspawner.service.workspaces.chart import PLOT_HEIGHT, Bar
from gpuspawner.version import describe_version

SECURITY_HEADERS = {
    # Nothing inline, nothing from elsewhere: text that slipped through escaping could still run nothing.
    # Only the width of a bar is set by a style attribute. The pictures of templates are part of the page.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; style-src-attr 'unsafe-inline'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}

STALE = "This page was open for too long, or came from elsewhere. Nothing was done."

HERE = Path(__file__).parent
HEADINGS = {
    403: "You cannot see this page",
    404: "Not found",
    409: "Nothing was changed",
    503: "The GPU service does not answer now",
}


WEEKDAY_SECONDS = 6 * 86400.0
"""The name of the weekday is enough for a time that is no further away."""


def tick(at: float, step_seconds: int) -> str:
    """Return a time for an axis. It has seconds only if the steps are no whole minutes."""
    return time.strftime("%H:%M:%S" if step_seconds % 60 else "%H:%M", time.localtime(at))


def when(at: float, now: float) -> str:
    """Return a time without seconds: ``14:40`` today, ``Sat 02:32`` within six days, else ``27 Nov 02:32``."""
    there, here = time.localtime(at), time.localtime(now)
    clock = time.strftime("%H:%M", there)
    if there[:3] == here[:3]:
        return clock
    if abs(at - now) < WEEKDAY_SECONDS:
        return f"{time.strftime('%a', there)} {clock}"
    year = "" if there.tm_year == here.tm_year else f" {there.tm_year}"
    return f"{there.tm_mday} {time.strftime('%b', there)}{year} {clock}"


def when_ends(at: float, now: float) -> str:
    """Return an end without seconds, as :func:`when`, but midnight is the end of a day: ``Sun 24:00``."""
    if time.localtime(at)[3:6] != (0, 0, 0):
        return when(at, now)
    return when(at - 1, now).replace("23:59", "24:00")


def zone(at: float) -> str:
    """Return the name of the time zone at that time: ``UTC``, ``CEST``."""
    return time.strftime("%Z", time.localtime(at))


def area_of(bars: Iterable[Bar]) -> str:
    """Return the area under bars as the path of an SVG."""
    return "".join(f"M{bar.left} {PLOT_HEIGHT}V{bar.y}H{bar.right}V{PLOT_HEIGHT}z" for bar in bars)


def edge_of(bars: Iterable[Bar]) -> str:
    """Return the upper edge of bars as the path of an SVG. Bars side by side are connected."""
    path, right = "", None
    for bar in bars:
        touches = right is not None and abs(bar.left - right) < 0.02  # noqa: PLR2004 - rounding
        path += f"{'V' if touches else f'M{bar.left} '}{bar.y}H{bar.right}"
        right = bar.right
    return path


def beside(row: ReadingRow) -> str:
    """Return the softer evidence of a reading, as people read it: what was active, and what could not be read."""
    if row.soft is None:
        return "not known"
    active = [one["words"] for one in row.soft.values() if one["active"]]
    unknown = [f"{name} not known" for name, one in row.soft.items() if one["active"] is None]
    return ", ".join([*active, *unknown]) or "nothing in use"


def _read_templates() -> dict[str, tuple[str, str, None]]:
    """Return text and file of each template by its name. None keeps Jinja from looking at the file again."""
    folders = [LOOK, HERE / "templates", HERE.parent / "administration" / "templates"]
    files = [file for folder in folders for file in folder.glob("*.*") if file.suffix in {".html", ".svg"}]
    return {file.name: (file.read_text(encoding="utf-8"), str(file), None) for file in files}


_TEMPLATES = _read_templates()
"""Read at the start, so that an upgrade under a running service does not mix two versions."""


@cache
def templates() -> Environment:
    """Return the environment of all templates. It escapes everything, and a missing value is an error."""
    environment = Environment(
        loader=FunctionLoader(_TEMPLATES.get),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=show_bytes, cpu=show_cpu, duration=show_duration, wait=show_wait, clock=show_time)
    environment.filters.update(tick=tick, zone=zone, when=when, when_ends=when_ends, beside=beside, money=show_money)
    environment.filters.update(area=area_of, edge=edge_of)
    environment.filters.update(amount_text=lambda bound, name: bound.text(name), sentences=split_sentences)
    return environment


SERVER_ERROR = 500
NO_CONSOLE = frozenset({Role.USER, Role.SERVICE, Role.WORKSPACE})
"""The roles of people who have no console."""


class ErrorPages(BaseHandler):
    """Renders pages, and every error as one."""

    inbox = Inbox()
    """The notices of the user who opened the page. Empty if they were not read."""

    def set_default_headers(self) -> None:
        """Add the headers that protect a page."""
        super().set_default_headers()
        hub_host = self.hub_auth.hub_host  # "" where hub and service share a domain
        for name, value in SECURITY_HEADERS.items():
            # Chromium judges by form-action where a form redirects to, too: a fresh sign-in is the hub's.
            self.set_header(name, value.replace("form-action 'self'", f"form-action 'self' {hub_host}".rstrip()))

    def render_page(self, template: str, status: int = 200, **values: Any) -> None:
        """Render a template with ``values`` and the values that every page has."""
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        prefix, person = self.parts.prefix.rstrip("/") + "/", self.person
        more_roles = [role.value for role in Role if person and role in person.roles - NO_CONSOLE]
        admin = ", ".join(more_roles).capitalize()
        self.finish(
            templates()
            .get_template(template)
            .render(
                prefix=prefix,
                hub_prefix=self.hub_prefix,
                static_url=self.static_url,
                frame={
                    "name": self.current_user or "",
                    "admin": admin,
                    "hub_admin": bool(person and Role.ADMINISTRATOR in person.roles),
                    "here": current_entry(self.request.path[len(prefix) :]),
                    "service": prefix,
                    "hub": self.hub_prefix,
                    "logout": f"{self.hub_prefix}logout",
                    "unread": self.inbox.unread,
                    "zone": self.parts.catalog.rules.timezone,
                    "version": describe_version(),
                    "help": self.parts.settings.documentation_url,
                    "services": (),
                },
                person=self.current_user or "",
                admin=bool(admin),
                may_act=frozenset(one for one, needed in ACTS.items() if person and person.reach(needed)),
                permits=frozenset(one.name for one in Permission if person and person.reach(one)),
                here=self.request.path[len(prefix) :],
                icon=icon_of(x for x in self.parts.registry if person.owns(x)) if person else "gpu.svg",
                xsrf=self.xsrf_text() if self.person else "",
                unread=self.inbox.unread,
                messages=[present_shown(one, self.parts.clock.now()) for one in self.inbox.messages],
                fast=self.parts.catalog.fast,
                shown_in=self.parts.catalog.rules.timezone,
                catalog_trouble=self.parts.in_force.sentences[0] if admin and self.parts.in_force.problem else "",
                now=self.parts.clock.now(),
                # A page that tells of trouble reads nothing of a store that may be the trouble.
                version=".".join(version_of(self.parts, self.person)) if self.person and status < SERVER_ERROR else "",
                **values,
            )
        )

    @property
    def hub_prefix(self) -> str:
        """The hub's own pages, with a slash at the end."""
        return f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}"

    @property
    def service_url(self) -> str:
        """The address of the service's pages for the reader, without a slash at the end."""
        if self.parts.page_url:
            return self.parts.page_url.rstrip("/")
        # Nobody configured the public address: the one that this browser asked for.
        is_https = self.request.headers.get("X-Forwarded-Proto", self.request.protocol).partition(",")[0] == "https"
        return f"{'https' if is_https else 'http'}://{self.request.host}{self.parts.prefix.rstrip('/')}"

    def xsrf_text(self) -> str:
        """Return the token that a form must send back."""
        token = self.xsrf_token
        return token.decode() if isinstance(token, bytes) else str(token)

    def _is_for_programs(self) -> bool:
        """Return whether errors are answered in JSON."""
        return False

    def tell_error(self, status: int, document: dict[str, Any]) -> None:
        """Answer an error as a page that says what happened and what can be done."""
        if self._is_for_programs():
            super().tell_error(status, document)
            return
        self.render_page(
            "error.html",
            status,
            heading=HEADINGS.get(status, "We made an error" if status >= SERVER_ERROR else "That did not work"),
            message=document["message"],
            code=status,
        )


class PageHandler(ErrorPages):
    """A page for people who are signed in and may use GPUs."""

    async def prepare(self) -> None:
        """Find the user. A user who is not signed in signs in first."""
        self.person = await self.find_person()
        if self.person is None:
            self._sign_in()
        elif self.person.lease is not None:
            raise HTTPError(403, reason="A workspace's own token opens no pages: it is for the API.")
        elif self.person.token:
            raise HTTPError(403, reason="A token of the command line opens no pages: it is for the API.")
        else:
            with suppress(Unavailable):  # a page whose own reading fails says so itself
                self.inbox = await inbox_of(self.parts, self.person)

    def _sign_in(self) -> None:
        if self.hub_model is not None:
            raise HTTPError(403, reason=f"Your account may not use GPUs here: it lacks the scope {USE}.")
        if self.request.method != "GET":
            raise HTTPError(403, reason=STALE)
        if self.request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate":
            raise HTTPError(403, reason="You are no longer signed in.")  # a script can't sign anybody in
        self.redirect(self.get_login_url())

    def go_to(self, page: str) -> None:
        """Redirect to a page after a form. ``page`` is its address below the service's prefix."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{page}", status=303)

    def viewer(self) -> Person:
        """Return the user who opened the page."""
        return self.must()

    def actor(self, origin: str) -> Actor:
        """Return the user who opened the page as an actor. ``origin`` is where they act, in words."""
        return Actor(self.parts, self.must(), origin)


class NotFound(ErrorPages):
    """The answer at every address without a page."""

    async def prepare(self) -> None:
        """Refuse the request. A page shows the user, if the hub knows them."""
        if not self._is_for_programs():
            with suppress(HTTPError, Unavailable):
                self.person = await self.find_person()
        raise HTTPError(404, reason="There is nothing at this address.")

    def _is_for_programs(self) -> bool:
        return "/api/" in self.request.path or "/internal/" in self.request.path


class Static(StaticFileHandler):
    """Style sheets and scripts, served without sign-in. Browsers find the files of LOOK in the same folder."""

    @classmethod
    def get_absolute_path(cls, root: str, path: str) -> str:
        """Return the file of a name."""
        folder = LOOK if path in BROWSER_FILES else root
        return str(StaticFileHandler.get_absolute_path(str(folder), path))

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        """Treat a name that no file can have as not found. The operating system would raise for it."""
        if "\0" in absolute_path:
            raise HTTPError(404, reason="There is nothing at this address.")
        if Path(absolute_path).parent == LOOK:
            root = str(LOOK)
        found: str | None = super().validate_absolute_path(root, absolute_path)
        return found


class SignIn(ErrorPages, HubOAuthCallbackHandler):
    """The address to which the hub sends people back after a sign-in. Errors are shown as pages."""

    def initialize(self, parts: Parts) -> None:
        """Keep the service's parts."""
        self.parts = parts

    async def prepare(self) -> None:
        """Find the user, so that a late second tab still reaches its page."""
        self.person = await self.find_person()

    async def get(self) -> None:
        """Sign in. Errors of the hub are not shown as errors of this service."""
        try:
            await HubOAuthCallbackHandler.get(self)
        except HTTPError as error:
            if error.status_code < 500:  # noqa: PLR2004 - HTTP's own numbers
                raise
            raise Unavailable(
                "The hub did not take this sign-in, or does not answer. Open the page again from the hub. If it stays "
                "so, tell your administrator: this may be the GPU service of another hub."
            ) from error


ENTRIES = {
    "home": ("", "workspaces", "calendar"),
    "usage": ("quota",),
    "inbox": ("inbox",),
    "admin": ("console", "quotas", "messages"),
}
"""The entries of the navigation (see gs_shell.html), each with the first parts of its pages' addresses."""


def current_entry(path: str) -> str:
    """Return the entry of the navigation that a page belongs to, "" if it belongs to none.

    Args:
        path: the page's address below the service's prefix.
    """
    first = path.strip("/").split("/")[0]
    return next((entry for entry, firsts in ENTRIES.items() if first in firsts), "")


def icon_of(leases: Iterable[Lease]) -> str:
    """Return the file of the tab's icon for a person's live workspaces: the state that needs the person most."""
    phases = {lease.phase for lease in leases}
    if Phase.RECLAIMING in phases:
        return "gpu-warned.svg"
    if phases & WAITING:
        return "gpu-waiting.svg"
    return "gpu-running.svg" if phases & {Phase.RUNNING, Phase.STARTING, Phase.RESERVED} else "gpu.svg"
