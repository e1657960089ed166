"""Quotas and use: what people have left and have used, and what administrators add, take back and correct."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core.calendar.periods import day_of, milliseconds
from gpuspawner.core.calendar.until import parse_day
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.granting import CorrectionBody, GrantBody, Granting, WhyBody, owner_of, refused_as
from gpuspawner.service.api.rest import PageQuery, Query, route
from gpuspawner.service.api.rest.paging import page
from gpuspawner.service.api.rest.shapes import rules
from gpuspawner.service.store.ledger import GROUPS
from gpuspawner.service.tell.rules.quota_view import grant_view, quota_view, usage_view


class QuotaQuery(Query):
    """Whose."""

    user: str = ""
    """Of this user, for administrators (default: one's own)."""


class UsageQuery(Query):
    """Which use."""

    since: str = ""
    """The first day, such as ``2026-11-01`` (default: of this month)."""
    until: str = ""
    """The last day (default: today)."""
    by: str = "day"
    """One of ``user``, ``team``, ``kind``, ``day``."""
    all: bool = False
    """That of all users, for administrators."""


class Quota(ApiHandler):
    """GET [?user=NAME]: every limit and budget that binds who asks; administrators may ask for a user."""

    @route(answer=rules.Quota)
    async def get(self, *, query: QuotaQuery) -> None:
        """Answer used, set aside, left, when it renews, and until when it lasts at the present use."""
        parts, person = self.parts, self.must()
        name, owner = person.name, person.owner
        if asked := query.user:
            if asked != name and not person.admin:
                raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) see what others have left.")
            name, owner = asked, await owner_of(parts, asked)
        groups = await parts.members.lately(name, owner)
        self.answer(quota_view(parts, name, owner, teams_of(parts.catalog.rules, groups)))


class Usage(ApiHandler):
    """GET [?since=&until=&by=user|team|kind|day&all=1]: one's own use, or for administrators that of all."""

    @route(answer=rules.Usage)
    async def get(self, *, query: UsageQuery) -> None:
        """Answer GPU hours and money, of these days: by default of this month."""
        parts, person, zone = self.parts, self.must(), self.parts.allocator.accounting.zone
        now, everybody, by = parts.clock.now(), self.everybody(asked=query.all), query.by
        if by not in GROUPS:
            raise RequestRefused("by", quoted(by), ", ".join(GROUPS), "Choose one of them.")
        today = day_of(milliseconds(now), zone)
        since = self._day("since", query.since or f"{today[:-2]}01", now)
        until = self._day("until", query.until or today, now)
        if since > until:
            raise RequestRefused("since", since, f"up to {until}", "Write the earlier day as since.")
        self.answer(await usage_view(parts, by, since, until, None if everybody else person.owner))

    def _day(self, name: str, text: str, now: float) -> str:
        day: str = refused_as(name, parse_day, text, now, self.parts.allocator.accounting.zone)
        return day


ADMINS = "grant and correct"


class Grants(ApiHandler):
    """What was granted beyond quotas and budgets, for administrators."""

    @route(answer=rules.GrantList, admins=ADMINS)
    def get(self, *, query: PageQuery) -> None:
        """Answer the grants, the newest first."""
        rows = list(reversed([*enumerate(self.parts.allocator.accounting.rows())]))  # they are appended, never removed
        shown, following = page(rows, query, lambda one: (0, -one[0], one[1].id))
        self.answer({"grants": [grant_view(self.parts, row) for _, row in shown], "next": following})

    @route(answer=rules.Grant, status=201, body=GrantBody, admins=ADMINS)
    async def post(self) -> None:
        """Grant more. It is in force at once, or from the time said."""
        self.answer(await Granting(self.parts, self.must()).grant(self.fields(*GrantBody.model_fields)), 201)


class Grant(ApiHandler):
    """One grant, for administrators."""

    @route(answer=rules.Grant, body=WhyBody, admins=ADMINS)
    async def delete(self, grant: str) -> None:
        """Take a grant back. What runs goes on to its end; nothing is extended or started by it any more."""
        row = next((one for one in self.parts.allocator.accounting.rows() if one.id == grant), None)
        if row is None:
            raise HTTPError(404, reason=f"There is no grant with the id {grant[:40]}.")
        self.answer(await Granting(self.parts, self.must()).take_back(row, self.fields(*WhyBody.model_fields)))


class Corrections(ApiHandler):
    """Corrections of what was charged, for administrators."""

    @route(answer=rules.Correction, status=201, body=CorrectionBody, admins=ADMINS)
    async def post(self) -> None:
        """Charge more, or give back, by a line of its own. It counts in the present day, week and month."""
        self.answer(await Granting(self.parts, self.must()).correct(self.fields(*CorrectionBody.model_fields)), 201)


ROUTES: list[Any] = [
    (r"/api/v1/quota", Quota),
    (r"/api/v1/usage", Usage),
    (r"/api/v1/usage/corrections", Corrections),
    (r"/api/v1/quota-grants", Grants),
    (r"/api/v1/quota-grants/([^/]+)", Grant),
]
