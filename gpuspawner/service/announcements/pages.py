"""The pages Inbox, and for administrators Messages."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import groupby
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.administration import LONGEST_CHARACTERS
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.service.announcements.api import mark_read, send_message, withdraw_message
from gpuspawner.service.announcements.models import Notice, Sent
from gpuspawner.service.announcements.presenter import present_inbox, present_message
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.base import PageHandler

ORIGIN = "the page Messages"
OURS = re.compile(r"[\w/.-]*(\?unread=1)?")
"""A page of ours, below the prefix."""


class InboxPage(PageHandler):
    """GET: the inbox. Looking marks nothing as read."""

    async def get(self) -> None:
        """Answer the page."""
        inbox = await self.parts.inboxes.of(self.viewer().owner, self.viewer().name)
        only_unread = self.get_query_argument("unread", "") == "1"
        view = present_inbox(self.parts, inbox, unread=only_unread)
        self.render_page(
            "inbox.html",
            view=view,
            days=_by_day(view.notices, view.now),
            count=len(inbox.notices),
            only_unread=only_unread,
            icons=icon_of,
            clock_only=lambda at: time.strftime("%H:%M", time.localtime(at)),
        )


def _by_day(notices: Sequence[Notice], now: float) -> list[tuple[str, list[Notice]]]:
    """Return notices by day, with the day as people read it."""
    return [(day, list(found)) for day, found in groupby(notices, lambda one: _day_words(one.at, now))]


def _day_words(at: float, now: float) -> str:
    day, today = (date.fromtimestamp(moment) for moment in (at, now))  # noqa: DTZ012 - the zone of this process
    if (today - day).days in RECENT:
        return RECENT[(today - day).days]
    return f"{day:%A} {day.day} {day:%B}"


RECENT = {0: "Today", 1: "Yesterday"}
_ICONS = {
    "granted": ("play", "gs-good"),
    "stop": ("stop", ""),
    "ended": ("stop", ""),
    "answered": ("check", "gs-good"),
    "quota granted": ("gift", "gs-good"),
    "quota taken back": ("gift", ""),
    "message": ("mail", ""),
    "extended": ("extend", ""),
    "ready paused": ("calendar", "gs-warn"),
}


def icon_of(kind: str) -> tuple[str, str]:
    """Return the icon of a notice, and its colour."""
    return _ICONS.get(kind, ("bell", "gs-warn" if "warned" in kind else ""))


class ReadPage(PageHandler):
    """POST: mark notices as read, and go back."""

    async def get(self) -> None:
        """Go to the inbox. A form was sent to this address."""
        self._go("inbox")

    async def post(self) -> None:
        """Mark those named, or ``all``."""
        everything = self.get_body_argument("all", "") == "1"
        values = {"all": True} if everything else {"ids": self.get_body_arguments("ids")}
        await mark_read.act(Actor(self.parts, self.viewer(), ORIGIN), values=values)
        back = self.get_body_argument("back", "inbox")
        self._go(back if OURS.fullmatch(back) and not back.startswith("/") else "inbox")

    def _go(self, page: str) -> None:
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{page}", status=303)


class MessagesPage(PageHandler):
    """GET: the announcements. POST: send one, after a look at how many people it reaches."""

    async def prepare(self) -> None:
        """Authenticate the reader. Raises 403 unless they are an administrator."""
        await super().prepare()
        if self.person is not None and not self.person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) send messages.")

    async def get(self) -> None:
        """Answer the page."""
        self.show()

    async def post(self) -> None:
        """With ``step`` look, show the recipients and ask. With send, send it."""
        typed = {name: self.get_body_argument(name, "") for name in ("whom", "name", "text", "until")}
        to = typed["whom"] if typed["whom"] == "all" else f"{typed['whom']}:{typed['name']}"
        look = self.get_body_argument("step", "") != "send"
        body = {"to": to, "text": typed["text"], "until": typed["until"], "dry_run": look}
        try:
            sent, _ = await send_message.act(Actor(self.parts, self.viewer(), ORIGIN), values=body)
        except RequestRefused as error:
            field = "name" if error.field == "to" else error.field
            self.show(error.status, typed=typed, errors={field: str(error)})
            return
        if look:
            self.show(typed=typed, asked=sent)
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/messages", status=303)

    def show(
        self,
        status: int = 200,
        *,
        typed: Mapping[str, str] | None = None,
        errors: Mapping[str, str] | None = None,
        asked: Sent | None = None,
        problem: str = "",
    ) -> None:
        """Answer the page. ``asked`` is the announcement that one more click sends."""
        now = self.parts.clock.now()
        self.render_page(
            "messages.html",
            status,
            sent=[present_message(one, now) for one in self.parts.announcements.all()],
            typed=typed or {"whom": "all", "name": "", "text": "", "until": ""},
            errors=errors or {},
            asked=asked,
            problem=problem,
            longest=LONGEST_CHARACTERS,
        )


class WithdrawPage(MessagesPage):
    """POST: take a message from the pages."""

    async def post(self, name: str = "") -> None:
        """Withdraw it and return."""
        try:
            await withdraw_message.act(Actor(self.parts, self.viewer(), ORIGIN), name)
        except Conflict as error:
            self.show(409, problem=str(error))
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/messages", status=303)

    async def get(self, _name: str = "") -> None:
        """Go to the page. A form was sent to this address."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/messages")


ROUTES: list[Any] = [
    (r"/inbox", InboxPage),
    (r"/inbox/read", ReadPage),
    (r"/messages", MessagesPage),
    (r"/messages/([^/]+)/withdraw", WithdrawPage),
]
