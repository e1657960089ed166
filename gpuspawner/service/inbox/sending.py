"""What administrators do with messages, whether by API, command line or page."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.calendar.until import parse_until
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.inbox.messages import Message, Whom, parse_text, parse_to
from gpuspawner.core.leases import events
from gpuspawner.core.units import show_time
from gpuspawner.service.api.base import Person
from gpuspawner.service.api.granting import refused_as
from gpuspawner.service.inbox.views import message_view
from gpuspawner.service.observe.hub import HubUser
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.tell.notifier import Message as Mail

log = logging.getLogger("gpuspawner")

FIELDS = ("to", "text", "until", "dry_run")
_mailing: set[asyncio.Task[None]] = set()
"""What is being handed to the notifier: kept, as the loop itself keeps no task."""


class Sending:
    """Does it for one administrator."""

    def __init__(self, parts: Parts, person: Person) -> None:
        """Raise 403 where that is no administrator."""
        if not person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) send messages.")
        self.parts, self.person = parts, person

    async def send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one, or with ``dry_run`` only say whom it would reach. Mail goes out after the answer."""
        parts, now = self.parts, self.parts.clock.now()
        whom, name = refused_as("to", parse_to, body.get("to"))
        text = refused_as("text", parse_text, body.get("text"))
        until = refused_as("until", parse_until, body.get("until"), now, parts.allocator.accounting.zone)
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise RequestRefused("dry_run", quoted(dry_run), "true or false", "Write one of them.")
        reached = await self._reached(whom, name)
        recipients = frozenset() if whom is Whom.ALL else frozenset(one.created for one in reached)
        one = Message("" if dry_run else uuid.uuid4().hex, whom, name, recipients, text, self.person.name, now, until)
        if not dry_run:
            said = f"to {one.to_words} until {show_time(until, now)}: {text}"
            await parts.board.add(one, [self._line(events.MessageSent(said), name)])
            self._mail(one, reached)
        mailed = len(reached) if parts.settings.notify_users else 0
        return {**message_view(one, now), "reaches": len(reached), "mailed": mailed, "dry_run": dry_run}

    async def withdraw(self, name: str) -> dict[str, Any]:
        """Take one from the pages, and out of inboxes. Raises 404 for one that does not exist."""
        one = self.parts.board.of(name)
        if one is None:
            raise HTTPError(404, reason=f"There is no message with the id {name[:40]}.")
        audit = [self._line(events.MessageWithdrawn(f"to {one.to_words}: {one.text}"), one.name)]
        gone = await self.parts.board.withdraw(one, self.person.name, audit)
        return message_view(gone, self.parts.clock.now())

    def _line(self, event: events.Event, name: str) -> AuditLine:
        return AuditLine(self.parts.clock.now(), "", name, self.person.name, event)

    async def _reached(self, whom: Whom, name: str) -> list[HubUser]:
        """Return whom it reaches. Raises RequestRefused where the hub has nobody like that."""
        users = await self.parts.hub.all_users()
        if whom is Whom.USER:
            users = [one for one in users if one.name == name]
        elif whom is Whom.GROUP:
            users = [one for one in users if name in one.groups]
        if not users:
            limit = "users of the hub" if whom is Whom.USER else "groups of the hub with somebody in them"
            raise RequestRefused("to", quoted(f"{whom.value}:{name}"), limit, "Name one as the hub does.")
        return users

    def _mail(self, one: Message, reached: list[HubUser]) -> None:
        until = show_time(one.until, one.made_at)
        text = f"{one.text}\n\n{one.by}, for everybody concerned until {until}.\n\n{self.parts.public_url}/inbox\n"
        mails = [Mail("", user.name, "message", f"Message from {one.by}", text) for user in reached]
        task = asyncio.get_running_loop().create_task(self.parts.notifier.put_all(mails))
        _mailing.add(task)
        task.add_done_callback(_mailing.discard)
