"""Who did what, to what, from where, when and why: a list whose state is its address, as CSV and JSON too."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuspawner.service.administering.audit import AUDIT, CURSOR, read_cursor, rows_of, sought_of
from gpuspawner.service.tell.console.exports import csv_text
from gpuspawner.service.tell.console.listing import PAGE_ROWS, Listing, read_wanted
from gpuspawner.service.web.console.base import ConsolePage

MOST_EXPORTED = 50_000
"""Lines in one file. Arbitrary: some megabytes; its filters take the rest in parts."""
NEXT = "X-Next"


class AuditPage(ConsolePage):
    """GET: the audit, its newest lines first."""

    here = "audit"

    async def get(self, form: str) -> None:
        """Answer it in the form asked for; where a file does not hold all, its header X-Next says where to go on."""
        wanted = read_wanted(AUDIT, self.asked())
        sought, before = sought_of(self.parts, wanted.filters), read_cursor(wanted.kept.get(CURSOR, ""))
        rows, following = await rows_of(self.parts, sought, before, MOST_EXPORTED if form else PAGE_ROWS)
        if form and following is not None:
            self.set_header(NEXT, str(following))
        if form == ".csv":
            text = await asyncio.to_thread(csv_text, AUDIT.columns, rows)
            self.set_header("Content-Type", "text/csv; charset=UTF-8")
            self.set_header("Content-Disposition", 'attachment; filename="audit.csv"')
            self.finish(text)
        elif form:
            self.answer({"audit": rows, "next": following, "now": self.parts.clock.now()})
        else:
            listing = Listing(wanted, tuple(rows), len(rows), len(rows))
            older = None if following is None else wanted.query(**{CURSOR: following})
            newest = wanted.query(**{CURSOR: ""}) if before is not None else None
            fresh = replace(listing, wanted=replace(wanted, kept={}))  # another filter begins with the newest
            self.show("console_audit.html", listing=listing, fresh=fresh, older=older, newest=newest)
