"""A person's inbox, and what administrators tell people."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import RequestRefused
from gpuspawner.service.api.actions import act
from gpuspawner.service.api.base import ApiHandler, Person
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import inbox as shapes
from gpuspawner.service.inbox.sending import Sending
from gpuspawner.service.inbox.views import inbox_view, message_view
from gpuspawner.service.parts import Parts

ADMINS = "send messages"
OWN = "A workspace's own token reads no inbox: it is for the API of that workspace."


async def read(parts: Parts, person: Person, names: list[str] | None) -> None:
    """Note that a person has read notices by their id, None: all of them. What is not theirs is passed over."""
    inbox = await parts.inboxes.of(person.owner, person.name)
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
    """What who asks is told of, until it is read."""

    @route(answer=shapes.Inbox)
    async def get(self, *, query: shapes.InboxQuery) -> None:
        """Answer it, the newest first, with the messages that pages show now."""
        person = self.must()
        if person.lease is not None:
            raise HTTPError(403, reason=OWN)
        inbox = await self.parts.inboxes.of(person.owner, person.name)
        self.answer(inbox_view(self.parts, inbox, unread=query.unread))


class Read(ApiHandler):
    """What was read of it."""

    @route(answer=shapes.Inbox)
    async def post(self, *, body: shapes.ReadBody) -> None:
        """Note that notices were read, and answer what is unread then. Repeating it is harmless."""
        person = self.must()
        if person.lease is not None:
            raise HTTPError(403, reason=OWN)
        if body.all == (body.ids is not None):
            raise RequestRefused("ids", "both, or neither", "ids or all: true", "Take ids from the inbox.")
        await read(self.parts, person, None if body.all else body.ids)
        self.answer(inbox_view(self.parts, await self.parts.inboxes.of(person.owner, person.name), unread=True))


class Messages(ApiHandler):
    """What administrators tell people."""

    @route(answer=shapes.MessageList, admins=ADMINS)
    async def get(self, *, query: shapes.PastQuery) -> None:
        """Answer the messages that are shown, the newest first."""
        now = self.parts.clock.now()
        found = [one for one in self.parts.board.all() if query.past or one.is_shown(now)]
        self.answer({"messages": [message_view(one, now) for one in found], "now": now})

    @route(answer=shapes.Sent, status=201, also=200, body=shapes.MessageBody, admins=ADMINS)
    async def post(self) -> None:
        """Send one and answer it, with how many people it reaches; 200 with ``dry_run``, which sends nothing."""
        made = await Sending(self.parts, self.must(), self.where).send(self.fields(*shapes.MessageBody.model_fields))
        self.answer(made, 200 if made["dry_run"] else 201)


class OneMessage(ApiHandler):
    """One message."""

    @route(answer=shapes.Message, admins=ADMINS)
    async def delete(self, message: str) -> None:
        """Take it from the pages, and answer it as it is then; 409 where it is not shown any more."""
        self.answer(await Sending(self.parts, self.must(), self.where).withdraw(message))


ROUTES: list[Any] = [
    (r"/api/v1/inbox", Inbox),
    (r"/api/v1/inbox/read", Read),
    (r"/api/v1/messages", Messages),
    (r"/api/v1/messages/([^/]+)", OneMessage),
]
