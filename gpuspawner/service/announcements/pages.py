"""The pages Inbox, and for administrators Messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.administration import LONGEST_CHARACTERS
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.service.announcements.api import mark_read, send_message, withdraw_message
from gpuspawner.service.announcements.models import Sent
from gpuspawner.service.announcements.presenter import present_inbox, present_message
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.base import PageHandler

ORIGIN = "the page Messages"
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
