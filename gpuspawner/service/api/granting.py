"""What administrators add to quotas, take back and correct, whether by API, command line or page."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core.administering.acts import ActRefused
from gpuspawner.core.calendar.periods import HOUR_MS, day_of, milliseconds
from gpuspawner.core.calendar.until import parse_until
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.gpus.names import written_name
from gpuspawner.core.leases import events
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.release import storable
from gpuspawner.core.quotas.charges import Charge, Line
from gpuspawner.core.quotas.grant_text import Amount, amount_text, parse_correction, parse_grant
from gpuspawner.core.rules import Account, Rate, Used
from gpuspawner.core.units import BadValue
from gpuspawner.service.api.base import Person
from gpuspawner.service.api.rest import Body
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import drop_key, set_answer
from gpuspawner.service.store.ledger import GrantRow
from gpuspawner.service.tell.rules.quota_view import grant_view

log = logging.getLogger("gpuspawner")

LONGEST_NAME, LONGEST_WHY, LONGEST_REFUSAL = 255, 500, 1000

Sent = Mapping[str, Any]


class WhyBody(Body):
    """Why something is done."""

    why: str = Field(min_length=1, max_length=LONGEST_WHY)
    """The reason, which is stored."""


class GrantBody(WhyBody):
    """What is granted, to whom, until when: for a user, a team, a user in a team, or everybody."""

    what: str
    """How much more: ``4 GPUs``, ``+20 GPU h``, ``2 h100``."""
    until: str
    """``Friday``, ``2026-12-24``, ``this month``, ``3d``."""
    user: str | None = Field(default=None, max_length=LONGEST_NAME)
    team: str | None = Field(default=None, max_length=LONGEST_NAME)
    everybody: bool = False
    since: str | None = None
    """From when, as ``until`` (default: now)."""


class CorrectionBody(WhyBody):
    """What somebody is charged besides."""

    user: str = Field(min_length=1, max_length=LONGEST_NAME)
    amount: str
    """``-3 GPU h``, which gives back, or ``+10 cost``."""
    team: str | None = Field(default=None, max_length=LONGEST_NAME)


class Granting:
    """Does it for one administrator, who says why. What is refused is noted in the audit, too."""

    def __init__(self, parts: Parts, person: Person, where: str) -> None:
        """Raise 403 where that is no administrator. ``where`` is from where they do it, in words."""
        if not person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) grant and correct.")
        self.parts, self.person, self.where = parts, person, where

    async def grant(self, body: Sent) -> dict[str, Any]:
        """Make a grant, which is in force at once, or from the time said."""
        async with self._noting("grant"):
            return await self._grant(body)

    async def take_back(self, row: GrantRow, body: Sent) -> dict[str, Any]:
        """Take a grant back. What runs goes on to its end; nothing is extended or started by it any more."""
        async with self._noting("take a grant back"):
            return await self._take_back(row, body)

    async def correct(self, body: Sent) -> dict[str, Any]:
        """Write a line of the ledger, which counts in the present day, week and month."""
        async with self._noting("correct the use"):
            return await self._correct(body)

    async def _grant(self, body: Sent) -> dict[str, Any]:
        person, parts = self.person, self.parts
        account, user = await self._account(body)
        if account == Account() and body.get("everybody") is not True:
            raise RequestRefused("for whom", "nobody", "user, team or everybody", "Say for whom it is.")
        now, zone, why = parts.clock.now(), parts.allocator.accounting.zone, self._why(body)
        kinds = tuple(dict.fromkeys(map(written_name, parts.scheduler.kinds)))  # a quota counts it in every cluster
        amount: Amount = refused_as("what", parse_grant, body.get("what"), kinds)
        until = refused_as("until", parse_until, body.get("until"), now, zone)
        since = refused_as("since", parse_until, body["since"], now, zone) if body.get("since") else now
        if since >= until:
            raise RequestRefused("since", quoted(body["since"]), "before until", "Begin it before it ends.")
        row = GrantRow(
            uuid.uuid4().hex,
            account.team,
            account.user_created,
            user,
            amount.what.value,
            amount.kind,
            str(amount.number),
            since,
            until,
            why,
            person.name,
            now,
        )
        view = grant_view(parts, row)
        set_answer(view)
        event = events.QuotaGranted(f"{view['words']}: {why}")
        await parts.allocator.accounting.give(row, self._line(user or account.team, event))
        await self._settle()
        return view

    async def _take_back(self, row: GrantRow, body: Sent) -> dict[str, Any]:
        person, parts = self.person, self.parts
        why, now = self._why(body), parts.clock.now()
        if row.taken_back_at is not None:
            raise Conflict(f"{row.taken_back_by} has taken it back already.")
        if now >= row.until:
            raise Conflict("It is over: there is nothing to take back.")
        words = grant_view(parts, row)["words"]
        taken = replace(row, taken_back_at=now, taken_back_by=person.name, taken_back_why=why)
        event = events.QuotaTakenBack(f"{words}: {why}")
        view = grant_view(parts, taken)
        set_answer(view)
        await parts.allocator.accounting.take_back(taken, self._line(row.user or row.team, event))
        return view

    async def _correct(self, body: Sent) -> dict[str, Any]:
        person, parts = self.person, self.parts
        account, user = await self._account(body)
        if not user:
            raise RequestRefused("user", "nobody", "a user of the hub", "Say whose use is corrected.")
        why, now, zone = self._why(body), parts.clock.now(), parts.allocator.accounting.zone
        amount: Amount = refused_as("amount", parse_correction, body.get("amount"))
        sign, much = (-1 if amount.number < 0 else 1), abs(amount.number)
        rate = Rate(gpus=much) if amount.what is Used.GPU_HOURS else Rate(price_per_hour=much)
        at_ms = milliseconds(now)
        line = Line(
            now, "", account, parts.hub_id, user, "", Charge.CORRECTION, day_of(at_ms, zone), at_ms, at_ms,
            sign * HOUR_MS, rate, person.name, why,
        )  # fmt: skip
        words = f"{amount_text(Amount(amount.what, '', much))} {'credited to' if sign < 0 else 'charged to'} {user}"
        note = await self._not_corrected(account, user, amount.what)  # before it is stored: the hub may be away
        view = {"user": user, "team": account.team or None, "amount": float(amount.number), "limit": amount.what.value}
        view |= {"why": why, "by": person.name, "at": now, "words": words, "note": note}
        set_answer(view)
        await parts.allocator.accounting.correct(line, self._line(user, events.UsageCorrected(f"{words}: {why}")))
        await self._settle()
        return view

    async def _not_corrected(self, account: Account, user: str, what: object) -> str:
        """Return in sentences what a correction leaves as it was, though one might expect otherwise."""
        parts, found = self.parts, list[str]()
        if what is Used.GPU_HOURS and any(kind.price_per_hour is not None for kind in parts.catalog.gpus.values()):
            found.append("The cost stays as it was: correct it by an amount of cost.")
        if not account.team:
            groups = await parts.members.lately(user, Owner(parts.hub_id, account.user_created))
            teams = teams_of(parts.catalog.rules, groups)
            if teams:
                found.append(
                    f"What team {' and team '.join(teams)} used stays as it was: name the team to correct both."
                )
        return " ".join(found)

    @asynccontextmanager
    async def _noting(self, asked: str) -> AsyncIterator[None]:
        """Note what is refused in the audit."""
        try:
            yield
        except (Conflict, RequestRefused) as error:
            drop_key()
            await self.parts.book.save(audit=[self._line("", refusal(asked, error))])
            raise

    def _line(self, user: str, event: events.Event) -> AuditLine:
        """Return an audit line of no workspace."""
        return AuditLine(self.parts.clock.now(), "", user, self.person.name, event, self.where)

    def _why(self, body: Sent) -> str:
        """Return the reason, which must be given."""
        why = body.get("why")
        if not isinstance(why, str) or not why.strip() or len(why) > LONGEST_WHY or not why.isprintable():
            raise RequestRefused("why", quoted(why), f"a reason of at most {LONGEST_WHY} letters", "Say why.")
        return why.strip()

    async def _settle(self) -> None:
        """Let what is granted or given back count at once: for what a budget cut, and for who waits.

        It is stored already: an error here would have the administrator grant it twice. The next rounds make up for it.
        """
        try:
            await self.parts.allocator.bounds.lengthen()
            await self.parts.allocator.give()
        except Unavailable as error:
            log.warning("what follows from a grant or a correction is done later: %s", error)

    async def _account(self, body: Sent) -> tuple[Account, str]:
        """Return for whom something is, of a team, a user, or a user in a team, and the user's name."""
        team, user = body.get("team") or "", body.get("user") or ""
        for name, value in (("team", team), ("user", user)):
            if not isinstance(value, str) or len(value) > LONGEST_NAME:
                raise RequestRefused(name, quoted(value), "a name", "Write it as the hub does.")
        known = teams_of(self.parts.catalog.rules, None)
        if team and team not in known:
            raise RequestRefused("team", quoted(team), ", ".join(known) or "none", "Name a team of the catalog.")
        if not user:
            return Account(team), ""
        return Account(team, (await owner_of(self.parts, user)).user_created), user


def refusal(asked: str, error: Conflict | RequestRefused) -> ActRefused:
    """Return what the audit says of an administrator's act that was refused."""
    return ActRefused(storable(f"{asked}: {error}")[:LONGEST_REFUSAL])


async def owner_of(parts: Parts, user: str) -> Owner:
    """Return who is called so now. Raises RequestRefused where the hub has nobody like that."""
    created = await parts.hub.created(user) if user.isprintable() else None  # half of a letter stands in no address
    if created is None:
        raise RequestRefused("user", quoted(user), "users of the hub", "Name one as the hub does.")
    return Owner(parts.hub_id, created)


def refused_as(field: str, parse: Any, value: object, *arguments: Any) -> Any:
    """Return what a reader makes of a value. Raises RequestRefused, naming the field, for what it does not read."""
    try:
        return parse(value, *arguments)
    except BadValue as error:
        right = error.right.removeprefix("write ")
        raise RequestRefused(field, quoted(value), right, f"{error.wrong[:1].upper()}{error.wrong[1:]}.") from error
