"""The pages Inbox, and for administrators Messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.inbox.messages import LONGEST_CHARACTERS
from gpuspawner.service.api.inbox import read
from gpuspawner.service.inbox.sending import Sending
from gpuspawner.service.inbox.views import inbox_view, message_view
from gpuspawner.service.web.base import PageHandler

WHERE = "the page Messages"
OURS = re.compile(r"[\w/.-]*")
"""A page of ours, below the prefix: nobody is sent elsewhere."""


class InboxPage(PageHandler):
    """GET: what one is told of, until it is read. Looking marks nothing."""

    async def get(self) -> None:
        """Answer the page."""
        inbox = await self.parts.inboxes.of(self.viewer().owner, self.viewer().name)
        self.render_page("inbox.html", view=inbox_view(self.parts, inbox))


class ReadPage(PageHandler):
    """POST: mark notices as read, and go back to where one was."""

    async def get(self) -> None:
        """Go to the inbox: this address is where a form was sent to."""
        self._go("inbox")

    async def post(self) -> None:
        """Mark those named, or ``all``."""
        everything = self.get_body_argument("all", "") == "1"
        await read(self.parts, self.viewer(), None if everything else self.get_body_arguments("ids"))
        back = self.get_body_argument("back", "inbox")
        self._go(back if OURS.fullmatch(back) and not back.startswith("/") else "inbox")

    def _go(self, page: str) -> None:
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{page}", status=303)


class MessagesPage(PageHandler):
    """GET: what administrators tell people. POST: tell them, after a look at how many it reaches."""

    async def prepare(self) -> None:
        """Know who looks: an administrator."""
        await super().prepare()
        if self.person is not None and not self.person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) send messages.")

    async def get(self) -> None:
        """Answer the page."""
        self.show()

    async def post(self) -> None:
        """With ``step`` look, say whom it reaches and ask; with send, send it."""
        typed = {name: self.get_body_argument(name, "") for name in ("whom", "name", "text", "until")}
        to = typed["whom"] if typed["whom"] == "all" else f"{typed['whom']}:{typed['name']}"
        look = self.get_body_argument("step", "") != "send"
        body = {"to": to, "text": typed["text"], "until": typed["until"], "dry_run": look}
        try:
            made = await Sending(self.parts, self.viewer(), WHERE).send(body)
        except RequestRefused as error:
            field = "name" if error.field == "to" else error.field
            self.show(error.status, typed=typed, errors={field: str(error)})
            return
        if look:
            self.show(typed=typed, asked=made)
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/messages", status=303)

    def show(
        self,
        status: int = 200,
        *,
        typed: Mapping[str, str] | None = None,
        errors: Mapping[str, str] | None = None,
        asked: Mapping[str, Any] | None = None,
        problem: str = "",
    ) -> None:
        """Answer the page; ``asked`` is what is to be sent after one more click."""
        now = self.parts.clock.now()
        self.render_page(
            "messages.html",
            status,
            sent=[message_view(one, now) for one in self.parts.board.all()],
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
            await Sending(self.parts, self.viewer(), WHERE).withdraw(name)
        except Conflict as error:
            self.show(409, problem=str(error))
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/messages", status=303)

    async def get(self, _name: str = "") -> None:
        """Go to the page: this address is where a form was sent to."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/messages")


ROUTES: list[Any] = [
    (r"/inbox", InboxPage),
    (r"/inbox/read", ReadPage),
    (r"/messages", MessagesPage),
    (r"/messages/([^/]+)/withdraw", WithdrawPage),
]
