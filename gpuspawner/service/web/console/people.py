"""People, and one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tornado.web import HTTPError

from gpuspawner.core.leases.events import Disputed, Kept, ReachesInto, Stopped, WarnedIdle, WarnedOfClaim, WarnedOfEnd
from gpuspawner.core.leases.lease import WAITING
from gpuspawner.service.administration.live_lists import ENDED, WORKSPACES, ended_rows, queue_rows, workspace_rows
from gpuspawner.service.administration.people import PEOPLE, counted, people_rows, told_rows
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.usage import report as use
from gpuspawner.service.usage.chart import columns_of
from gpuspawner.service.usage.pages import running_parts
from gpuspawner.service.web.admin_page import ConsolePage, ListPage
from gpuspawner.service.web.lists import Row, Table, read_wanted

TOLD = (WarnedIdle, WarnedOfEnd, WarnedOfClaim, ReachesInto, Kept, Stopped, Disputed)
"""What a person's page tells of what they were warned of, and what came of it."""
NO_LIST = Table("person", ())
TOLD_SHOWN, ENDED_SHOWN = 50, 20


class PeoplePage(ListPage):
    """GET: everybody who has something now, or used something this month."""

    here, table, title = "people", PEOPLE, "People"
    empty = "Nobody has or used anything this month."

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        store, days = self.parts.store, self.month()
        stored = await store.read(store.usage_sums.of_days, "user", days.first, days.last)
        return people_rows(self.parts, use.summed("user", stored, await running_parts(self.parts), days))


class PersonPage(ConsolePage):
    """GET: one person: what they hold, wait for, used, and were warned of."""

    here = "people"

    async def get(self, name: str) -> None:
        """Answer the page; 404 where nobody of that name has or had anything."""
        read_wanted(NO_LIST, self.asked())
        parts, store, days = self.parts, self.parts.store, self.month()
        keys, ended, lines = await asyncio.gather(
            store.read(store.usage_sums.users_named, name),
            store.read(store.leases.ended_of_user, name, ENDED_SHOWN),
            store.read(store.audit_log.of_user, name, [one.name for one in TOLD], TOLD_SHOWN),
        )
        stored = await store.read(store.usage_sums.of_days, "user", days.first, days.last, daily=True, keys=keys)
        mine = [x for x in parts.registry if x.user == name]
        if not (mine or ended or keys or lines):
            raise HTTPError(404, reason=f"Nobody called {name[:40]} has or had a workspace here.")
        parts_running = [one for one in await running_parts(parts) if one.user == name]
        sums = use.summed("day", stored, parts_running, days)
        total, series = use.total_of(sums), use.series_of(sums, days)
        self.show(
            "console_person.html",
            name=name,
            runs=workspace_rows(parts, [x for x in mine if x.phase not in WAITING]),
            waits=queue_rows(parts, mine),
            ended=ended_rows(parts, ended),
            told=told_rows(parts, lines),
            counted=counted(lines),
            used=use.amounts_row(total, priced=False),
            any_use=total != UsageAmounts(),
            days=days,
            series=series,
            chart=columns_of(series, weekly=False),
            workspaces=WORKSPACES,
            ended_table=ENDED,
        )
