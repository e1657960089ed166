"""What all pages of the console share: administrators alone, three forms of each, lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.usage.report import Days
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.lists import (
    Column,
    Listing,
    Row,
    Table,
    Wanted,
    chosen,
    csv_text,
    json_rows,
    listed,
    read_wanted,
)

NAVIGATION = (
    ("now", "Now", "console/"),
    ("use", "Use", "console/use"),
    ("workspaces", "Workspaces", "console/workspaces"),
    ("queue", "Queue", "console/queue"),
    ("people", "People", "console/people"),
    ("quotas", "Quotas and grants", "quotas"),
    ("restrictions", "Restrictions", "console/restrictions"),
    ("audit", "Audit", "console/audit"),
)
"""Name, words and address of each page of the console."""
FORMS = r"(\.csv|\.json|)"
"""How the address of what can be exported ends."""
NOT_FOR_YOU = "The console is for administrators (scope custom:gpu:admin)."


class ConsolePage(PageHandler):
    """A page for administrators. ``here`` is its entry of NAVIGATION."""

    here = ""

    async def prepare(self) -> None:
        """Know who looks; 403 where that is no administrator. A program with a token is sent to no sign-in."""
        if self.request.headers.get("Authorization"):
            self.person = await self.find_person()
            self.must()
        else:
            await super().prepare()
        if not self._finished and not self.must().admin:
            raise HTTPError(403, reason=NOT_FOR_YOU)

    def show(self, template: str, **values: Any) -> None:
        """Answer a page of the console; its address with its state is what its live parts are asked for by."""
        self.render_page(template, tabs=NAVIGATION, tab=self.here, address=self.request.uri, **values)

    def asked(self) -> dict[str, list[str]]:
        """Return the arguments of the address. Raises 400 for what is no text."""
        return {name: self.get_query_arguments(name) for name in self.request.query_arguments}

    def today(self) -> str:
        """Return the date in the catalog's time zone."""
        return date_of(milliseconds(self.parts.clock.now()), self.parts.allocator.accounting.zone)

    def month(self) -> Days:
        """Return this month up to today."""
        today = self.today()
        return Days(f"{today[:-2]}01", today)

    def send_csv(self, name: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Answer rows as a file."""
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.csv"')
        self.finish(csv_text(columns, rows))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error in JSON where that was asked for, else as a page."""
        if self.request.path.endswith(".json"):
            ApiHandler.write_error(self, status_code, **kwargs)  # what it uses is BaseHandler's
        else:
            super().write_error(status_code, **kwargs)


class ListPage(ConsolePage, ABC):
    """A list: its page, or the whole of what its filters let through as CSV or JSON."""

    table: Table
    title = ""
    empty = ""
    """What the page says where there is nothing to list at all."""
    switch: tuple[tuple[str, str], ...] = ()
    """Pages that belong together: address and words of each."""
    acts: tuple[tuple[str, str], ...] = ()
    """What is done to chosen rows: names of the acts of ``administration.pages``, and the words of their buttons."""

    @abstractmethod
    async def rows(self) -> Sequence[Row]:
        """Return every row, before any filter."""

    async def get(self, form: str) -> None:
        """Answer it in the form asked for."""
        wanted = read_wanted(self.table, self.asked())
        rows = await self.rows()
        if form:
            self.export(form, wanted, chosen(rows, wanted), len(rows))
        else:
            self.show_list(listed(rows, wanted))

    def show_list(self, listing: Listing, **values: Any) -> None:
        """Answer the page of a list."""
        named = {"title": self.title, "empty": self.empty, "switch": self.switch, "acts": self.acts}
        self.show("console_list.html", listing=listing, **named, **values)

    def export(self, form: str, wanted: Wanted, rows: Sequence[Row], total: int) -> None:
        """Answer rows as CSV or JSON."""
        columns = self.table.columns
        if form == ".csv":
            self.send_csv(self.table.name, columns, rows)
            return
        asked = {**wanted.filters, **wanted.kept, "sort": wanted.sort}
        document = {"asked": asked, "now": self.parts.clock.now(), "found": len(rows), "total": total}
        self.answer({**document, "rows": json_rows(columns, rows)})
