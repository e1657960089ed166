"""The page Inbox, and the form that ends an announcement."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from gpuspawner.core.errors import Conflict
from gpuspawner.service.announcements.api import mark_read, withdraw_message
from gpuspawner.service.announcements.presenter import present_inbox
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.base import PageHandler

ORIGIN = "the Inbox"
OURS = re.compile(r"[\w/.-]*")
"""A page of ours, below the prefix."""


class InboxPage(PageHandler):
    """GET: the inbox. Looking marks nothing as read."""

    async def get(self) -> None:
        """Answer the page."""
        inbox = await self.parts.inboxes.of(self.viewer().owner, self.viewer().name)
        self.render_page("inbox.html", view=present_inbox(self.parts, inbox))


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


class WithdrawPage(AdminPage):
    """POST: end an announcement."""

    tab = "restrictions"

    async def get(self, _name: str) -> None:
        """Go to the page. A form was sent to this address."""
        self._go()

    async def post(self, name: str) -> None:
        """End it and go back. An announcement that has ended already stays as it is."""
        with suppress(Conflict):
            await withdraw_message.act(Actor(self.parts, self.viewer(), "the console"), name)
        self._go()

    def _go(self) -> None:
        self.redirect(f"{self.parts.prefix.rstrip('/')}/console/restrictions", status=303)


ROUTES: list[Any] = [
    (r"/inbox", InboxPage),
    (r"/inbox/read", ReadPage),
    (r"/console/announcements/([^/]+)/withdraw", WithdrawPage),
]
