"""The page Inbox, and the form that ends an announcement."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from itertools import groupby
from typing import Any

from gpuspawner.core.errors import Conflict
from gpuspawner.service.announcements.api import mark_read, withdraw_message
from gpuspawner.service.announcements.inboxes import inbox_of, present_inbox
from gpuspawner.service.announcements.models import Notice
from gpuspawner.service.notifications.preferences import get_notifications
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.base import PageHandler

ORIGIN = "the Inbox"
OURS = re.compile(r"[\w/.-]*(\?unread=1)?")
"""A page of ours, below the prefix."""


class InboxPage(PageHandler):
    """GET: the inbox. Looking marks nothing as read."""

    async def get(self) -> None:
        """Answer the page."""
        inbox = await inbox_of(self.parts, self.viewer())
        only_unread = self.get_query_argument("unread", "") == "1"
        view = present_inbox(self.parts, inbox, unread=only_unread)
        self.render_page(
            "inbox.html",
            told=await get_notifications.act(self.actor(ORIGIN)),
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
    "moved in queue": ("up", ""),
    "passed by move": ("down", "gs-warn"),
    "quota requested": ("gift", "gs-warn"),
    "quota declined": ("x", "gs-bad"),
    "budget": ("coin", "gs-warn"),
    "waste": ("alert", "gs-warn"),
    "statement": ("coin", ""),
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
        self.go_to("inbox")

    async def post(self) -> None:
        """Mark those named, or ``all``."""
        everything = self.get_body_argument("all", "") == "1"
        values = {"all": True} if everything else {"ids": self.get_body_arguments("ids")}
        await mark_read.act(self.actor(ORIGIN), values=values)
        back = self.get_body_argument("back", "inbox")
        self.go_to(back if OURS.fullmatch(back) and not back.startswith("/") else "inbox")


class WithdrawPage(AdminPage):
    """POST: end an announcement."""

    tab = "restrictions"

    async def get(self, _name: str) -> None:
        """Go to the page. A form was sent to this address."""
        self.go_to("console/restrictions")

    async def post(self, name: str) -> None:
        """End it and go back. An announcement that has ended already stays as it is."""
        with suppress(Conflict):
            await withdraw_message.act(self.actor("the console"), name)
        self.go_to("console/restrictions")


ROUTES: list[Any] = [
    (r"/inbox", InboxPage),
    (r"/inbox/read", ReadPage),
    (r"/console/announcements/([^/]+)/withdraw", WithdrawPage),
]
