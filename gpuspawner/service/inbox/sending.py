"""What administrators do with messages, whether by API, command line or page."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.calendar.until import parse_until
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.inbox.acts import MessageSent, MessageWithdrawn
from gpuspawner.core.inbox.messages import Message, Whom, parse_text, parse_to, several
from gpuspawner.core.leases.events import Event
from gpuspawner.core.units import show_time
from gpuspawner.service.api.base import Person
from gpuspawner.service.api.granting import refused_as
from gpuspawner.service.inbox.views import message_view
from gpuspawner.service.observe.hub import HubUser
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import set_answer
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.tell.notifier import Message as Mail

log = logging.getLogger("gpuspawner")


class Sending:
    """Does it for one administrator."""

    def __init__(self, parts: Parts, person: Person, where: str) -> None:
        """Raise 403 where that is no administrator. ``where`` is from where they do it, in words."""
        if not person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) send messages.")
        self.parts, self.person, self.where = parts, person, where

    async def send(self, body: Mapping[str, Any], users: Sequence[str] = ()) -> dict[str, Any]:
        """Send one, or with ``dry_run`` only say whom it would reach. Mail goes out after the answer.

        ``users``: to these, whatever ``body`` says.
        """
        parts, now = self.parts, self.parts.clock.now()
        to = f"{Whom.USER.value}:{users[0]}" if len(users) == 1 else body.get("to")
        whom, name = (Whom.USERS, several(users)) if len(users) > 1 else refused_as("to", parse_to, to)
        text = refused_as("text", parse_text, body.get("text"))
        until = refused_as("until", parse_until, body.get("until"), now, parts.allocator.accounting.zone)
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise RequestRefused("dry_run", quoted(dry_run), "true or false", "Write one of them.")
        reached = await self._reached(whom, users or (name,))
        recipients = frozenset() if whom is Whom.ALL else frozenset(one.created for one in reached)
        one = Message("" if dry_run else uuid.uuid4().hex, whom, name, recipients, text, self.person.name, now, until)
        mailed = len(reached) if parts.settings.notify_users else 0
        view = {**message_view(one, now), "reaches": len(reached), "mailed": mailed, "dry_run": dry_run}
        if not dry_run:
            said = f"to {one.to_words} until {show_time(until, now)}: {text}"
            told = [user.name for user in reached] if whom is Whom.USERS else [name]
            set_answer(view)
            await parts.board.add(
                one, [self._line(MessageSent(said), user) for user in told], self._mails(one, reached)
            )
            parts.notifier.wake()
        return view

    async def withdraw(self, name: str) -> dict[str, Any]:
        """Take one from the pages, and out of inboxes. Raises 404 for one that does not exist."""
        one = self.parts.board.of(name)
        if one is None:
            raise HTTPError(404, reason=f"There is no message with the id {name[:40]}.")
        user = "" if one.whom is Whom.USERS else one.name
        audit = [self._line(MessageWithdrawn(f"to {one.to_words}: {one.text}"), user)]
        gone = await self.parts.board.withdraw(one, self.person.name, audit)
        return message_view(gone, self.parts.clock.now())

    def _line(self, event: Event, name: str) -> AuditLine:
        return AuditLine(self.parts.clock.now(), "", name, self.person.name, event, self.where)

    async def _reached(self, whom: Whom, names: Sequence[str]) -> list[HubUser]:
        """Return whom it reaches. Raises RequestRefused where the hub has nobody like that."""
        users = await self.parts.hub.all_users()
        if whom in {Whom.USER, Whom.USERS}:
            users = [one for one in users if one.name in names]
        elif whom is Whom.GROUP:
            users = [one for one in users if names[0] in one.groups]
        if not users:
            limit = "groups of the hub with somebody in them" if whom is Whom.GROUP else "users of the hub"
            raise RequestRefused("to", quoted(f"{whom.value}:{', '.join(names)}"), limit, "Name one as the hub does.")
        return users

    def _mails(self, one: Message, reached: list[HubUser]) -> list[OutboxRow]:
        """Return what is sent of a message: a mail to each whom it reaches."""
        until = show_time(one.until, one.made_at)
        text = f"{one.text}\n\n{one.by}, for everybody concerned until {until}.\n\n{self.parts.public_url}/inbox\n"
        mails = [Mail("", user.name, "message", f"Message from {one.by}", text) for user in reached]
        return [row for mail in mails for row in self.parts.notifier.rows_of(mail)]
