"""What administrators do: to workspaces, and to what is given."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.administering import acts
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.service.administering.asking import Act
from gpuspawner.service.administering.audit import AUDIT, CURSOR, read_cursor, rows_of, sought_of
from gpuspawner.service.administering.restricting import FIELDS as OF_MEASURES
from gpuspawner.service.administering.restricting import OF_ALL, Restricting
from gpuspawner.service.administering.views import restriction_view
from gpuspawner.service.administering.workspaces import FIELDS, Workspaces
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.tell.console.listing import read_wanted

LISTED, MOST_LINES = 200, 1000
"""How many are listed, unless another number of lines of the audit is asked for."""
LONGEST_REFUSAL = 1000
ACTIONS = "|".join(FIELDS)
RESTRICTION_FIELDS = tuple(dict.fromkeys((*OF_ALL, *(name for some in OF_MEASURES.values() for name in some))))


class AdministratorHandler(ApiHandler):
    """For administrators, and whatever service has the scope custom:gpu:admin. What is refused is audited too."""

    async def prepare(self) -> None:
        """Know who asks. Raises 403 where that is no administrator."""
        await super().prepare()
        self.act().must_be_administrator()

    def act(self) -> Act:
        """Return who acts, and from where."""
        return Act(self.parts, self.must(), self.where)


async def note_refusal(act: Act, asked: str, error: Conflict | RequestRefused) -> None:
    """Note an act that was refused."""
    event = acts.ActRefused(f"{asked}: {error}"[:LONGEST_REFUSAL])
    await act.parts.book.save(audit=[act.line("", event)])


class OfWorkspaces(AdministratorHandler):
    """POST: stop, move or extend several workspaces; with ``dry_run`` only say what that does."""

    async def post(self, action: str) -> None:
        """Answer what becomes of each; 409 where it can't be done to one of them, and nothing was done."""
        body, act = self.fields(*FIELDS[action]), self.act()
        try:
            self.answer(await Workspaces(act).do(action, body))
        except (Conflict, RequestRefused) as error:
            await note_refusal(act, action, error)
            raise


class Restrictions(AdministratorHandler):
    """GET [?past=1]: what is kept from being given or judged. POST: a new one."""

    async def get(self) -> None:
        """Answer those in force, with ``past`` also those that are over, the newest first."""
        restrictions = self.parts.restrictions
        past = self.get_argument("past", "") == "1"
        found = await restrictions.last(LISTED) if past else list(reversed(restrictions.in_force()))
        view = [restriction_view(self.parts, one) for one in found]
        self.answer({"restrictions": view, "now": self.parts.clock.now()})

    async def post(self) -> None:
        """Answer what was made, and whom it concerns; with ``dry_run`` nothing is done."""
        body, act = self.fields(*RESTRICTION_FIELDS), self.act()
        try:
            made = await Restricting(act).make(body)
        except (Conflict, RequestRefused) as error:
            await note_refusal(act, str(body.get("what"))[:40], error)
            raise
        self.answer(made, 200 if made["dry_run"] else 201)


class OneRestriction(AdministratorHandler):
    """DELETE: lift it."""

    async def delete(self, name: str) -> None:
        """Answer it as it is then; repeating it is harmless."""
        body = self.fields("reason")
        one = await self.parts.restrictions.get(name)
        if one is None:
            raise HTTPError(404, reason=f"There is no restriction with the id {name[:40]}.")
        self.answer(await Restricting(self.act()).lift(one, body))


class Audit(AdministratorHandler):
    """GET [?by=] [?who=] [?what=] [?user=] [?target=] [?since=] [?until=] [?limit=] [?before=]: who did what."""

    async def get(self) -> None:
        """Answer lines, the newest first, and as ``next`` the ``before`` of those that follow."""
        given = {name: [self.get_query_argument(name)] for name in self.request.query_arguments}
        limit = _limit(given.pop("limit", [str(LISTED)])[0])
        wanted = read_wanted(AUDIT, given)
        sought, before = sought_of(self.parts, wanted.filters), read_cursor(wanted.kept.get(CURSOR, ""))
        rows, following = await rows_of(self.parts, sought, before, limit)
        self.answer({"audit": rows, "next": following, "now": self.parts.clock.now()})


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_LINES)) and 1 <= int(text) <= MOST_LINES:
        return int(text)
    raise RequestRefused("limit", quoted(text), f"1 to {MOST_LINES}", "Write a whole number.")


ROUTES: list[Any] = [
    (r"/api/v1/admin/audit", Audit),
    (rf"/api/v1/admin/workspaces/({ACTIONS})", OfWorkspaces),
    (r"/api/v1/admin/restrictions", Restrictions),
    (r"/api/v1/admin/restrictions/([^/]+)", OneRestriction),
]
