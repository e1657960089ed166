"""The lists of what lives and of what ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpuspawner.service.administration.live_lists import (
    ENDED,
    QUEUE,
    WORKSPACES,
    ended_rows,
    queue_rows,
    workspace_rows,
)
from gpuspawner.service.web.admin_page import ListPage
from gpuspawner.service.web.lists import PAGE_ROWS, Listing, Row, read_wanted

SWITCH = (("console/workspaces", "Running"), ("console/ended", "Ended"))
MOST_EXPORTED = 20_000
"""Ended workspaces in one file. Arbitrary: some megabytes; its filters take the rest in parts."""


class WorkspacesPage(ListPage):
    """GET: every workspace that holds GPUs, or runs without one."""

    here, table, title, switch = "workspaces", WORKSPACES, "Workspaces", SWITCH
    empty = "Nothing runs now. What runs is listed here, with whoever holds idle GPUs first."
    acts = (
        ("stop", "Stop…"),
        ("extend", "Extend…"),
        ("exempt", "Exempt…"),
        ("move", "Move…"),
        ("message", "Message…"),
    )

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        return workspace_rows(self.parts, self.parts.registry)


class QueuePage(ListPage):
    """GET: who waits, at which place, and why."""

    here, table, title = "queue", QUEUE, "Queue"
    empty = "Nobody waits. Who does is listed here, with the reason."
    acts = (("stop", "Withdraw…"), ("message", "Message…"))

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        return queue_rows(self.parts, self.parts.registry)


class EndedPage(ListPage):
    """GET: what ended, the newest first. The store sorts and pages it: there may be a year of them."""

    here, table, title, switch = "workspaces", ENDED, "Ended workspaces", SWITCH
    empty = "None has ended yet. When one ends, this says why."

    async def rows(self) -> Sequence[Row]:
        """Return the newest of those that the filters let through."""
        found, _ = await self._found(0, MOST_EXPORTED)
        return found

    async def get(self, form: str) -> None:
        """Answer it in the form asked for."""
        wanted = read_wanted(self.table, self.asked())
        if form:
            rows, count = await self._found(0, MOST_EXPORTED)
            self.export(form, wanted, rows, count)
            return
        rows, count = await self._found((wanted.page - 1) * PAGE_ROWS, PAGE_ROWS)
        self.show_list(Listing(wanted, tuple(rows), count, count))

    async def _found(self, first: int, count: int) -> tuple[list[Row], int]:
        wanted, store = read_wanted(self.table, self.asked()), self.parts.store
        user, reason = wanted.filters.get("user", ""), wanted.filters.get("reason", "")
        leases, found = await store.read(store.leases.search_ended, user, reason, first, count, wanted.sort)
        return list(ended_rows(self.parts, leases)), found
