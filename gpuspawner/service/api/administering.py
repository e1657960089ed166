"""What administrators do: to workspaces, and to what is given."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.service.administering.asking import Act
from gpuspawner.service.administering.audit import AUDIT, CURSOR, read_cursor, rows_of, sought_of
from gpuspawner.service.administering.restricting import Restricting
from gpuspawner.service.administering.views import restriction_view
from gpuspawner.service.administering.workspaces import FIELDS, Workspaces
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.granting import refusal
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import administering as shapes
from gpuspawner.service.store.idempotency import drop_key
from gpuspawner.service.tell.console.listing import read_wanted

LISTED = 200
ACTIONS = "|".join(FIELDS)
ADMINS = "act on workspaces and on what is given, and read the audit"


class AdministratorHandler(ApiHandler):
    """For administrators, and whatever service has the scope custom:gpu:admin."""

    def act(self) -> Act:
        """Return who acts, and from where."""
        return Act(self.parts, self.must(), self.where)


async def note_refusal(act: Act, asked: str, error: Conflict | RequestRefused) -> None:
    """Note an act that was refused."""
    drop_key()
    await act.parts.book.save(audit=[act.line("", refusal(asked, error))])


class OfWorkspaces(AdministratorHandler):
    """What administrators do to several workspaces at once."""

    @route(answer=shapes.Done, body=shapes.AdministerBody, admins=ADMINS, repeatable=True)
    async def post(self, action: str) -> None:
        """Stop, move or extend those that can be, or with ``dry_run`` say what that does; 409 where none can be."""
        body, act = self.fields(*FIELDS[action]), self.act()
        try:
            self.answer(await Workspaces(act).do(action, body))
        except (Conflict, RequestRefused) as error:
            await note_refusal(act, action, error)
            raise


class Restrictions(AdministratorHandler):
    """What is kept from being given or judged for a time."""

    @route(answer=shapes.RestrictionList, admins=ADMINS)
    async def get(self, *, query: shapes.PastQuery) -> None:
        """Answer the restrictions in force or to come, with ``past`` also those that are over, the newest first."""
        restrictions = self.parts.restrictions
        found = await restrictions.last(LISTED) if query.past else list(reversed(restrictions.live()))
        view = [restriction_view(self.parts, one) for one in found]
        self.answer({"restrictions": view, "now": self.parts.clock.now()})

    @route(answer=shapes.Restricted, status=201, also=200, body=shapes.RestrictionBody, admins=ADMINS)
    async def post(self) -> None:
        """Drain, quarantine, pause, reserve or exempt, and answer whom it concerns; ``dry_run`` does nothing."""
        body, act = self.fields(*shapes.RestrictionBody.model_fields), self.act()
        try:
            made = await Restricting(act).make(body)
        except (Conflict, RequestRefused) as error:
            await note_refusal(act, str(body.get("what"))[:40], error)
            raise
        self.answer(made, 200 if made["dry_run"] else 201)


class OneRestriction(AdministratorHandler):
    """One restriction."""

    @route(answer=shapes.Restriction, body=shapes.LiftBody, admins=ADMINS)
    async def delete(self, restriction: str) -> None:
        """Lift it, and answer it as it is then; repeating it is harmless."""
        body = self.fields(*shapes.LiftBody.model_fields)
        one = await self.parts.restrictions.get(restriction)
        if one is None:
            raise HTTPError(404, reason=f"There is no restriction with the id {restriction[:40]}.")
        act = self.act()
        try:
            lifted = await Restricting(act).lift(one, body)
        except (Conflict, RequestRefused) as error:
            await note_refusal(act, "lift", error)
            raise
        self.answer(lifted)


class Audit(AdministratorHandler):
    """Who did what."""

    @route(answer=shapes.AuditPage, admins=ADMINS)
    async def get(self, *, query: shapes.AuditQuery) -> None:
        """Answer lines, the newest first, and as ``next`` the ``before`` of those that follow."""
        given = {name: [str(value)] for name, value in query.model_dump(exclude={"limit"}).items() if value}
        wanted = read_wanted(AUDIT, given)
        sought, before = sought_of(self.parts, wanted.filters), read_cursor(wanted.kept.get(CURSOR, ""))
        rows, following = await rows_of(self.parts, sought, before, query.limit)
        self.answer({"audit": rows, "next": following, "now": self.parts.clock.now()})


ROUTES: list[Any] = [
    (rf"/api/v1/admin/workspaces/({ACTIONS})", OfWorkspaces),
    (r"/api/v1/admin/restrictions", Restrictions),
    (r"/api/v1/admin/restrictions/([^/]+)", OneRestriction),
    (r"/api/v1/admin/audit", Audit),
]
