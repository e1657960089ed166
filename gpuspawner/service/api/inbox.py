"""A person's inbox, and what administrators tell people."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.actions import act
from gpuspawner.service.api.base import ApiHandler, Person
from gpuspawner.service.inbox.sending import FIELDS, Sending
from gpuspawner.service.inbox.views import inbox_view, message_view
from gpuspawner.service.parts import Parts

MOST_IDS = 500
OWN = "A workspace's own token reads no inbox: it is for the API of that workspace."


async def read(parts: Parts, person: Person, names: list[str] | None) -> None:
    """Note that a person has read notices by their id, None: all of them. What is not theirs is passed over."""
    inbox = await parts.inboxes.of(person.owner)
    wanted = [one for one in inbox.notices if one.unread and (names is None or one.id in names)]
    if names is None:
        await parts.inboxes.mark_all(person.owner)
    elif wanted:
        await parts.inboxes.mark(person.owner, [one.id for one in wanted])
    for lease_id in dict.fromkeys(one.lease for one in wanted if one.ends):
        lease = await parts.book.find(lease_id)
        if lease is not None and person.owns(lease):
            await act(parts, person, lease, "seen", "their inbox")


class Inbox(ApiHandler):
    """GET [?unread=1]: what who asks is told of, the newest first, and the messages that pages show them now."""

    async def get(self) -> None:
        """Answer it."""
        person = self.must()
        if person.lease is not None:
            raise HTTPError(403, reason=OWN)
        inbox = await self.parts.inboxes.of(person.owner)
        self.answer(inbox_view(self.parts, inbox, unread=self.get_argument("unread", "") == "1"))


class Read(ApiHandler):
    """POST: ``ids``, a list of notices that were read, or ``all``: true."""

    async def post(self) -> None:
        """Note it, and answer what is unread then. Repeating it is harmless."""
        person, body = self.must(), self.fields("ids", "all")
        if person.lease is not None:
            raise HTTPError(403, reason=OWN)
        names = body.get("ids")
        if body.get("all") is True and names is None:
            await read(self.parts, person, None)
        elif isinstance(names, list) and len(names) <= MOST_IDS and all(isinstance(one, str) for one in names):
            await read(self.parts, person, names)
        else:
            limit = f"ids, a list of at most {MOST_IDS} texts, or all: true"
            raise RequestRefused("ids", quoted(names), limit, "Take ids from the inbox.")
        self.answer(inbox_view(self.parts, await self.parts.inboxes.of(person.owner), unread=True))


class Messages(ApiHandler):
    """GET [?past=1]: the messages that are shown, or all of a month. POST: send one. For administrators."""

    async def get(self) -> None:
        """Answer them, the newest first."""
        Sending(self.parts, self.must())
        now, past = self.parts.clock.now(), self.get_argument("past", "") == "1"
        found = [one for one in self.parts.board.all() if past or one.is_shown(now)]
        self.answer({"messages": [message_view(one, now) for one in found], "now": now})

    async def post(self) -> None:
        """Send one and answer it, 201, with how many people it reaches; with ``dry_run``, 200, send nothing."""
        made = await Sending(self.parts, self.must()).send(self.fields(*FIELDS))
        self.answer(made, 200 if made["dry_run"] else 201)


class OneMessage(ApiHandler):
    """DELETE: take a message from the pages. For administrators."""

    async def delete(self, name: str) -> None:
        """Answer it as it is then; 409 where it is not shown any more."""
        self.answer(await Sending(self.parts, self.must()).withdraw(name))


ROUTES: list[Any] = [
    (r"/api/v1/inbox", Inbox),
    (r"/api/v1/inbox/read", Read),
    (r"/api/v1/messages", Messages),
    (r"/api/v1/messages/([^/]+)", OneMessage),
]
