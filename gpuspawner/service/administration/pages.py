"""The pages Restrictions and Audit log, and the routes of all admin pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpuspawner.service.administration import dialogs
from gpuspawner.service.administration.audit import (
    AUDIT,
    CURSOR,
    EVENT_ICONS,
    find_entries,
    parse_cursor,
    parse_filters,
    workspace_names,
)
from gpuspawner.service.administration.gpu_health import HealthPage
from gpuspawner.service.administration.gpu_map import GpusPage
from gpuspawner.service.administration.live_lists import EndedPage, QueuePage, WorkspacesPage
from gpuspawner.service.administration.models import MEASURES
from gpuspawner.service.administration.overview import OverviewPage
from gpuspawner.service.administration.people import PeoplePage, PersonPage, RolesPage
from gpuspawner.service.administration.restriction_effects import LISTED, present_restriction
from gpuspawner.service.announcements.inboxes import present_message
from gpuspawner.service.web.admin_page import FORMS, AdminPage, ListPage
from gpuspawner.service.web.lists import (
    PAGE_ROWS,
    Column,
    Filter,
    ListPart,
    Row,
    Table,
    csv_text,
    json_rows,
    parse_list_state,
)

MAX_EXPORTED = 50_000
"""The most entries in one file. Arbitrary: some megabytes. Filters take the rest in parts."""
NEXT = "X-Next"
RESTRICTIONS = Table(
    "restrictions",
    (
        Column("what", "Restriction", "label"),
        Column("on", "On"),
        Column("title", "Effect", "words", exported_only=True),
        Column("state", "State", "state"),
        Column("begins_at", "From", "time"),
        Column("until", "Until", "time", absent="until someone ends it"),
        Column("reason", "Reason", "words"),
        Column("by", "By"),
        Column("since", "Made", "time", exported_only=True),
        Column("ended_by", "Ended by"),
        Column("ended_at", "Ended", "time", absent="not ended by anybody"),
        Column("ended_reason", "Reason for the end", "words"),
    ),
    (
        Filter("find", "Target or administrator", within=("title", "by")),
        Filter("what", "Any restriction", tuple((measure, measure.capitalize()) for measure in MEASURES)),
        Filter("state", "Any state", tuple((x, x.capitalize()) for x in ("in force", "to come", "over", "lifted"))),
    ),
    sort="-since",
)


class RestrictionsPage(ListPage):
    """GET: the restrictions in force, the announcements, the acts that make more, and the list of all restrictions."""

    tab, table, title, template = "restrictions", RESTRICTIONS, "Restrictions", "admin_restrictions.html"

    async def rows(self) -> Sequence[Row]:
        """Return those that were made last."""
        rows = []
        for one in await self.parts.restrictions.last(LISTED):
            ended = {"ended_by": one.lifted_by, "ended_at": one.lifted_at, "ended_reason": one.lifted_why}
            rows.append(SimpleNamespace(**vars(present_restriction(self.parts, one)), **ended))
        return rows

    def show_list(self, part: ListPart, status: int = 200, **values: Any) -> None:
        """Answer with the page."""
        state, now = self.parts, self.parts.clock.now()
        announcements = [present_message(one, now) for one in state.announcements.all()]
        super().show_list(
            part,
            status,
            live=[present_restriction(state, one) for one in reversed(state.restrictions.live())],
            announcements=[one for one in announcements if one.state == "shown"],
            announcements_over=[one for one in announcements if one.state != "shown"],
            **values,
        )


class AuditPage(AdminPage):
    """GET: the audit log, the newest entries first."""

    tab = "audit"

    async def get(self, form: str) -> None:
        """Answer it as a page, CSV or JSON. If a file does not hold all entries, its header X-Next has the cursor."""
        wanted = parse_list_state(AUDIT, self.arguments_of_address())
        filters, before = parse_filters(self.parts, wanted.filters), parse_cursor(wanted.kept.get(CURSOR, ""))
        entries, following = await find_entries(self.parts, filters, before, MAX_EXPORTED if form else PAGE_ROWS)
        if form and following is not None:
            self.set_header(NEXT, str(following))
        if form == ".csv":
            self.send_csv_text("audit", await asyncio.to_thread(csv_text, AUDIT.columns, entries))
        elif form:
            rows = json_rows(AUDIT.columns, entries)
            self.answer({"audit": rows, "next": following, "now": self.parts.clock.now()})
        else:
            part = ListPart(wanted, tuple(entries), len(entries), len(entries))
            self.show(
                "admin_audit.html",
                list=part,
                fresh=replace(wanted, kept={}),  # another filter begins with the newest entries
                older=None if following is None else wanted.query(**{CURSOR: following}),
                newest=wanted.query(**{CURSOR: ""}) if before is not None else None,
                icons=EVENT_ICONS,
                names=await workspace_names(self.parts, entries),
            )


ROUTES: list[Any] = [
    (r"/console/?", OverviewPage),
    (rf"/console/workspaces{FORMS}", WorkspacesPage),
    (rf"/console/ended{FORMS}", EndedPage),
    (rf"/console/queue{FORMS}", QueuePage),
    (rf"/console/gpus{FORMS}", GpusPage),
    (rf"/console/gpu-health{FORMS}", HealthPage),
    (rf"/console/people{FORMS}", PeoplePage),
    (r"/console/people/([^/]+)", PersonPage),
    (rf"/console/restrictions{FORMS}", RestrictionsPage),
    (rf"/console/audit{FORMS}", AuditPage),
    (r"/console/roles", RolesPage),
    *dialogs.ROUTES,
]
