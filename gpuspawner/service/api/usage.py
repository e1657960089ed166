"""Quotas and use: what people have left and have used, and what administrators add, take back and correct."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core.calendar.periods import HOUR_MS, day_of, milliseconds
from gpuspawner.core.calendar.until import parse_day, parse_until
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases import events
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.charges import Charge, Line
from gpuspawner.core.queue.grant_text import Amount, amount_text, parse_correction, parse_grant
from gpuspawner.core.rules import Account, Rate, Used
from gpuspawner.core.units import BadValue
from gpuspawner.service.api.base import ApiHandler, Person
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.ledger import GROUPS, GrantRow
from gpuspawner.service.tell.quota_view import grant_view, quota_view, usage_view

LONGEST_NAME, LONGEST_WHY = 255, 500


class Quota(ApiHandler):
    """GET [?user=NAME]: every limit and budget that binds who asks; administrators may ask for a user."""

    async def get(self) -> None:
        """Answer used, set aside, left, when it renews, and until when it lasts at the present use."""
        parts, person = self.parts, self.must()
        name, owner = person.name, person.owner
        if asked := self.get_argument("user", ""):
            if asked != name and not person.admin:
                raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) see what others have left.")
            name, owner = asked, await owner_of(self, asked)
        groups = await parts.members.lately(name, owner)
        self.answer(quota_view(parts, name, owner, teams_of(parts.catalog.rules, groups)))


class Usage(ApiHandler):
    """GET [?since=&until=&by=user|team|kind|day&all=1]: one's own use, or for administrators that of all."""

    def get(self) -> None:
        """Answer GPU hours and money, of these days: by default of this month."""
        parts, person, zone = self.parts, self.must(), self.parts.allocator.accounting.zone
        now, everybody = parts.clock.now(), self.everybody()
        by = self.get_argument("by", "day")
        if by not in GROUPS:
            raise RequestRefused("by", quoted(by), ", ".join(GROUPS), "Choose one of them.")
        today = day_of(milliseconds(now), zone)
        since = self._day("since", f"{today[:-2]}01", now)
        until = self._day("until", today, now)
        if since > until:
            raise RequestRefused("since", since, f"up to {until}", "Write the earlier day as since.")
        self.answer(usage_view(parts, by, since, until, None if everybody else person.owner))

    def _day(self, name: str, default: str, now: float) -> str:
        text = self.get_argument(name, "")
        return refused_as(name, parse_day, text, now, self.parts.allocator.accounting.zone) if text else default


class AdministratorHandler(ApiHandler):
    """For administrators, who say why."""

    def administrator(self) -> Person:
        """Return who asks. Raises 403 where that is no administrator."""
        person = self.must()
        if not person.admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) grant and correct.")
        return person

    def line(self, person: Person, user: str, event: events.Event) -> AuditLine:
        """Return an audit line of no workspace."""
        return AuditLine(self.parts.clock.now(), "", user, person.name, event)

    def why(self, body: dict[str, Any]) -> str:
        """Return the reason, which must be given."""
        why = body.get("why")
        if not isinstance(why, str) or not why.strip() or len(why) > LONGEST_WHY or not why.isprintable():
            raise RequestRefused("why", quoted(why), f"a reason of at most {LONGEST_WHY} letters", "Say why.")
        return why.strip()

    def settle(self) -> None:
        """Let what is granted or given back count at once: for what a budget cut, and for who waits."""
        self.parts.allocator.bounds.lengthen()
        self.parts.allocator.give()

    async def account(self, body: dict[str, Any]) -> tuple[Account, str]:
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
        return Account(team, (await owner_of(self, user)).user_created), user


class Grants(AdministratorHandler):
    """GET: all grants. POST: a new one."""

    def get(self) -> None:
        """Answer them, the newest first."""
        self.administrator()
        rows = self.parts.allocator.accounting.rows()
        self.answer({"grants": [grant_view(self.parts, row) for row in reversed(rows)]})

    async def post(self) -> None:
        """Answer the grant, which is in force at once, or from the time said."""
        person, parts = self.administrator(), self.parts
        body = self.fields("user", "team", "what", "until", "since", "why", "everybody")
        account, user = await self.account(body)
        if account == Account() and body.get("everybody") is not True:
            raise RequestRefused("for whom", "nobody", "user, team or everybody", "Say for whom it is.")
        now, zone, why = parts.clock.now(), parts.allocator.accounting.zone, self.why(body)
        amount: Amount = refused_as("what", parse_grant, body.get("what"), parts.scheduler.kinds)
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
        event = events.QuotaGranted(f"{view['words']}: {why}")
        parts.allocator.accounting.give(row, self.line(person, user or account.team, event))
        self.settle()
        self.answer(view, 201)


class Grant(AdministratorHandler):
    """DELETE: take a grant back."""

    def delete(self, name: str) -> None:
        """Answer it as it is then. What runs goes on to its end; nothing is extended or started by it any more."""
        person, parts = self.administrator(), self.parts
        row = next((one for one in parts.allocator.accounting.rows() if one.id == name), None)
        if row is None:
            raise HTTPError(404, reason=f"There is no grant with the id {name[:40]}.")
        why, now = self.why(self.fields("why")), parts.clock.now()
        if row.taken_back_at is not None:
            raise Conflict(f"{row.taken_back_by} has taken it back already.")
        if now >= row.until:
            raise Conflict("It is over: there is nothing to take back.")
        words = grant_view(parts, row)["words"]
        taken = replace(row, taken_back_at=now, taken_back_by=person.name, taken_back_why=why)
        event = events.QuotaTakenBack(f"{words}: {why}")
        parts.allocator.accounting.take_back(taken, self.line(person, row.user or row.team, event))
        self.answer(grant_view(parts, taken))


class Corrections(AdministratorHandler):
    """POST: charge more, or give back, by a line of its own."""

    async def post(self) -> None:
        """Answer the line. It counts in the present day, week and month."""
        person, parts = self.administrator(), self.parts
        body = self.fields("user", "team", "amount", "why")
        account, user = await self.account(body)
        if not user:
            raise RequestRefused("user", "nobody", "a user of the hub", "Say whose use is corrected.")
        why, now, zone = self.why(body), parts.clock.now(), parts.allocator.accounting.zone
        amount: Amount = refused_as("amount", parse_correction, body.get("amount"))
        sign, much = (-1 if amount.number < 0 else 1), abs(amount.number)
        rate = Rate(gpus=much) if amount.what is Used.GPU_HOURS else Rate(price_per_hour=much)
        at_ms = milliseconds(now)
        line = Line(
            now, "", account, parts.hub_id, user, "", Charge.CORRECTION, day_of(at_ms, zone), at_ms, at_ms,
            sign * HOUR_MS, rate, person.name, why,
        )  # fmt: skip
        words = f"{amount_text(Amount(amount.what, '', much))} {'given back to' if sign < 0 else 'charged to'} {user}"
        parts.allocator.accounting.correct(line, self.line(person, user, events.UsageCorrected(f"{words}: {why}")))
        self.settle()
        view = {"user": user, "team": account.team or None, "amount": float(amount.number), "limit": amount.what.value}
        self.answer({**view, "why": why, "by": person.name, "at": now, "words": words}, 201)


async def owner_of(handler: ApiHandler, user: str) -> Owner:
    """Return who is called so now. Raises RequestRefused where the hub has nobody like that."""
    created = await handler.parts.hub.created(user)
    if created is None:
        raise RequestRefused("user", quoted(user), "users of the hub", "Name one as the hub does.")
    return Owner(handler.parts.hub_id, created)


def refused_as(field: str, parse: Any, value: object, *arguments: Any) -> Any:
    """Return what a reader makes of a value. Raises RequestRefused, naming the field, for what it does not read."""
    try:
        return parse(value, *arguments)
    except BadValue as error:
        right = error.right.removeprefix("write ")
        raise RequestRefused(field, quoted(value), right, f"{error.wrong[:1].upper()}{error.wrong[1:]}.") from error


ROUTES: list[Any] = [
    (r"/api/v1/quota", Quota),
    (r"/api/v1/usage", Usage),
    (r"/api/v1/usage/corrections", Corrections),
    (r"/api/v1/quota-grants", Grants),
    (r"/api/v1/quota-grants/([^/]+)", Grant),
]
