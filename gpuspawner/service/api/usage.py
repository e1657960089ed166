"""Quotas and use: what people have left and have used, and what administrators add, take back and correct."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core.calendar.periods import day_of, milliseconds
from gpuspawner.core.calendar.until import parse_day
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.granting import CORRECTION_FIELDS, GRANT_FIELDS, Granting, owner_of, refused_as
from gpuspawner.service.store.ledger import GROUPS
from gpuspawner.service.tell.rules.quota_view import grant_view, quota_view, usage_view


class Quota(ApiHandler):
    """GET [?user=NAME]: every limit and budget that binds who asks; administrators may ask for a user."""

    async def get(self) -> None:
        """Answer used, set aside, left, when it renews, and until when it lasts at the present use."""
        parts, person = self.parts, self.must()
        name, owner = person.name, person.owner
        if asked := self.get_argument("user", ""):
            if asked != name and not person.admin:
                raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) see what others have left.")
            name, owner = asked, await owner_of(parts, asked)
        groups = await parts.members.lately(name, owner)
        self.answer(quota_view(parts, name, owner, teams_of(parts.catalog.rules, groups)))


class Usage(ApiHandler):
    """GET [?since=&until=&by=user|team|kind|day&all=1]: one's own use, or for administrators that of all."""

    async def get(self) -> None:
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
        self.answer(await usage_view(parts, by, since, until, None if everybody else person.owner))

    def _day(self, name: str, default: str, now: float) -> str:
        text = self.get_argument(name, "")
        return refused_as(name, parse_day, text, now, self.parts.allocator.accounting.zone) if text else default


class AdministratorHandler(ApiHandler):
    """For administrators."""

    def granting(self) -> Granting:
        """Return what they do. Raises 403 where who asks is no administrator."""
        return Granting(self.parts, self.must(), self.where)


class Grants(AdministratorHandler):
    """GET: all grants. POST: a new one."""

    def get(self) -> None:
        """Answer them, the newest first."""
        self.granting()
        rows = self.parts.allocator.accounting.rows()
        self.answer({"grants": [grant_view(self.parts, row) for row in reversed(rows)]})

    async def post(self) -> None:
        """Answer the grant, which is in force at once, or from the time said."""
        granting = self.granting()
        self.answer(await granting.grant(self.fields(*GRANT_FIELDS)), 201)


class Grant(AdministratorHandler):
    """DELETE: take a grant back."""

    async def delete(self, name: str) -> None:
        """Answer it as it is then. What runs goes on to its end; nothing is extended or started by it any more."""
        granting = self.granting()
        row = next((one for one in self.parts.allocator.accounting.rows() if one.id == name), None)
        if row is None:
            raise HTTPError(404, reason=f"There is no grant with the id {name[:40]}.")
        self.answer(await granting.take_back(row, self.fields("why")))


class Corrections(AdministratorHandler):
    """POST: charge more, or give back, by a line of its own."""

    async def post(self) -> None:
        """Answer the line. It counts in the present day, week and month."""
        granting = self.granting()
        self.answer(await granting.correct(self.fields(*CORRECTION_FIELDS)), 201)


ROUTES: list[Any] = [
    (r"/api/v1/quota", Quota),
    (r"/api/v1/usage", Usage),
    (r"/api/v1/usage/corrections", Corrections),
    (r"/api/v1/quota-grants", Grants),
    (r"/api/v1/quota-grants/([^/]+)", Grant),
]
