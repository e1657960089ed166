"""The calendar for calendar programs (RFC 5545). A user makes a secret address that they subscribe to.

The calendar shows what its user sees, without the names of other people, because the address needs no sign-in. The
token of the address opens nothing else. The hash that is stored of it is not that of an API token.

Times are in UTC, and each time of a weekly rule is an event of its own. So a file needs no time zones.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from math import inf
from typing import Any, NamedTuple

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of, visible
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import CalendarShared
from gpuspawner.core.queue.class_holds import HoldUser
from gpuspawner.service.calendar.api import CalendarReader, planned_uses, present_use, seen_uses
from gpuspawner.service.parts import Parts
from gpuspawner.service.sign_in.pages import SignedInPage
from gpuspawner.service.sign_in.tokens import revoke
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web.base import ErrorPages
from gpuspawner.service.web.permissions import Person

LINE_OCTETS = 75
"""The most octets of a line, without its break. A longer one is folded."""


class CalendarEvent(NamedTuple):
    """One event. Times are seconds since the epoch."""

    uid: str
    begins_at: float
    ends_at: float
    summary: str
    description: str = ""
    category: str = ""


def calendar_text(name: str, events: Iterable[CalendarEvent], now: float) -> str:
    """Return a calendar as a text."""
    return "".join(f"{line}\r\n" for text in _lines(name, events, now) for line in _folded(text))


def _lines(name: str, events: Iterable[CalendarEvent], now: float) -> Iterator[str]:
    yield "BEGIN:VCALENDAR"
    yield "VERSION:2.0"
    yield "PRODID:-//gpuspawner//Calendar//EN"
    yield "METHOD:PUBLISH"
    yield f"X-WR-CALNAME:{_escaped(name)}"
    yield "REFRESH-INTERVAL;VALUE=DURATION:PT1H"
    for one in events:
        yield "BEGIN:VEVENT"
        yield f"UID:{_escaped(one.uid)}"
        yield f"DTSTAMP:{_utc(now)}"
        yield f"DTSTART:{_utc(one.begins_at)}"
        yield f"DTEND:{_utc(one.ends_at)}"
        yield f"SUMMARY:{_escaped(one.summary)}"
        if one.description:
            yield f"DESCRIPTION:{_escaped(one.description)}"
        if one.category:
            yield f"CATEGORIES:{_escaped(one.category)}"
        yield "TRANSP:TRANSPARENT"
        yield "END:VEVENT"
    yield "END:VCALENDAR"


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    for one, other in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\r\n", "\\n"), ("\n", "\\n"), ("\r", "\\n")):
        text = text.replace(one, other)
    return "".join(letter for letter in text if letter.isprintable())


def _folded(text: str) -> Iterator[str]:
    """Yield the parts of a line. Each but the first begins with a space. No character is cut."""
    part = ""
    for letter in text:
        if len((part + letter).encode()) > LINE_OCTETS:
            yield part
            part = " "
        part += letter
    yield part


DEVICE, ORIGIN = "Calendar address", "the page iCalendar address"
LINK_SECONDS = 365 * 86400.0
AHEAD_SECONDS = 90 * 86400.0
BEFORE_SECONDS = 7 * 86400.0
GONE = "This calendar address is not valid. Its user made a new one or removed it, or it is a year old."


def stored_hash(secret: bytes, token: str) -> str:
    """Return the stored hash of the token of an address."""
    return hmac.new(secret, f"calendar {token}".encode(), hashlib.sha256).hexdigest()


async def make_token(parts: Parts, person: Person) -> str:
    """Return the token of a new address of a person's calendar. It replaces an earlier one."""
    tokens, now, owner = parts.store.tokens, parts.clock.now(), person.owner
    for row in await parts.store.read(tokens.of, owner, now):
        if row.device == DEVICE:
            await revoke(parts, owner, person.name, row.id, ORIGIN)
    token = secrets.token_urlsafe(24)
    hashed = stored_hash(parts.secret, token)
    row = TokenRow(uuid.uuid4().hex, hashed, *owner, person.name, DEVICE, now, now + LINK_SECONDS)
    line = AuditLine(now, "", person.name, person.name, CalendarShared(), ORIGIN, row.id)
    await parts.store.write(tokens.add, row, line)
    return token


async def feed_of(parts: Parts, row: TokenRow, name: str) -> str:
    """Return the calendar of the user of an address."""
    now, groups = parts.clock.now(), frozenset[str]()
    with suppress(Unavailable):
        groups = await parts.members.fetch_recent(name, row.owner)
    asker = HoldUser(row.user_created, groups, teams_of(parts.catalog.rules, groups))
    reader = CalendarReader(asker, sees_all=False, kinds=visible(parts.catalog, groups).gpus)
    last = now + AHEAD_SECONDS
    events = []
    for one in seen_uses(planned_uses(parts, now - BEFORE_SECONDS, last), reader):
        shown = present_use(parts, one, reader)
        uid = f"{shown.id or hashlib.sha256(repr(one.hold).encode()).hexdigest()[:32]}-{one.opening.opens_at:.0f}"
        ends_at = last if one.opening.ends_at == inf else one.opening.ends_at
        summary = f"{shown.for_}: {shown.gpus}"
        events.append(
            CalendarEvent(f"{uid}@gpuspawner", shown.begins_at, ends_at, summary, shown.reason, shown.what.capitalize())
        )
    return calendar_text("GPU reservations", events, now)


class CalendarFeed(ErrorPages):
    """GET: the calendar of the user of an address, without a sign-in."""

    async def get(self, token: str) -> None:
        """Answer the calendar. Raises 404 for an address that is not valid."""
        parts = self.parts
        row = await parts.store.read(parts.store.tokens.find_by_hash, stored_hash(parts.secret, token))
        if row is None or row.until <= parts.clock.now():
            raise HTTPError(404, reason=GONE)
        name = await parts.known.name_of(row.user, row.user_created)
        if name is None:
            await parts.store.write(parts.store.tokens.delete_user, row.owner)
            raise HTTPError(404, reason=GONE)
        text = await feed_of(parts, row, name)
        self.set_header("Content-Type", "text/calendar; charset=utf-8")
        self.set_header("Content-Disposition", 'inline; filename="gpus.ics"')
        self.finish(text)


class CalendarLink(SignedInPage):
    """GET: what a calendar address is. POST: make one, and show it once."""

    def get(self) -> None:
        """Answer the page."""
        self.signed_in()
        self.render_page("calendar_link.html", made="")

    async def post(self) -> None:
        """Make an address, and answer it."""
        token = await make_token(self.parts, self.signed_in())
        self.render_page("calendar_link.html", made=f"{self.service_url}/calendar/{token}.ics")


ROUTES: list[Any] = [(r"/calendar/link", CalendarLink), (r"/calendar/([\w-]{20,64})\.ics", CalendarFeed)]
