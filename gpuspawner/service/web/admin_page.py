"""The base of the admin pages: for administrators only, and each list in three forms (page, CSV, JSON)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.service.quota_requests.presenter import count_answerable
from gpuspawner.service.store.rows import Whose
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.lists import (
    Column,
    ListPart,
    ListState,
    Row,
    Table,
    csv_text,
    json_rows,
    list_part,
    parse_list_state,
    select_rows,
)
from gpuspawner.service.web.permissions import ACTS, Permission


class Tab(NamedTuple):
    """A page in the navigation of the console, and the permission that opens it."""

    name: str
    words: str
    path: str
    permission: Permission


TABS = (
    Tab("overview", "Overview", "console/", Permission.SEE_FLEET),
    Tab("usage", "Usage", "console/usage", Permission.SEE_USAGE),
    Tab("workspaces", "Workspaces", "console/workspaces", Permission.SEE_WORKSPACES),
    Tab("queue", "Queue", "console/queue", Permission.SEE_WORKSPACES),
    Tab("gpus", "GPUs", "console/gpus", Permission.SEE_FLEET),
    Tab("calendar", "Calendar", "console/calendar", Permission.SEE_RESTRICTIONS),
    Tab("people", "People", "console/people", Permission.SEE_FLEET),
    Tab("quotas", "Quotas", "console/quotas", Permission.SEE_GRANTS),
    Tab("requests", "Requests", "console/requests", Permission.SEE_REQUESTS),
    Tab("restrictions", "Restrictions", "console/restrictions", Permission.SEE_RESTRICTIONS),
    Tab("catalog", "Catalog", "console/catalog", Permission.SEE_CATALOG),
    Tab("audit", "Audit log", "console/audit", Permission.SEE_AUDIT),
    Tab("roles", "Roles", "console/roles", Permission.SEE_FLEET),
)
FORMS = r"(\.csv|\.json|)"
"""The end of the address of a page that can be exported."""


class AdminPage(PageHandler):
    """A page of the console. ``tab`` is the name of its entry of TABS, whose permission it requires."""

    tab = ""

    @property
    def permission(self) -> Permission:
        """The permission that opens the page."""
        return next(one.permission for one in TABS if one.name == self.tab)

    def whose(self) -> Whose:
        """Return whose things the page shows."""
        return self.actor("the console").whose(self.permission)

    async def prepare(self) -> None:
        """Authenticate the reader. Raises 403 unless the page shows them more than their own things.

        A program that sends a token is not redirected to the login page.
        """
        if self.request.headers.get("Authorization"):
            self.person = await self.find_person()
            self.must()
        else:
            await super().prepare()
        if not self._finished:
            self.whose()

    def show(self, template: str, status: int = 200, **values: Any) -> None:
        """Answer with a page. Its live parts ask for the same address again."""
        tabs = [one[:3] for one in TABS if self.viewer().sees_more(one.permission)]
        named = {"tabs": tabs, "tab": self.tab, "address": self.request.uri}
        self.render_page(template, status, **named, open_requests=count_answerable(self.parts, self.viewer()), **values)

    def arguments_of_address(self) -> dict[str, list[str]]:
        """Return the arguments of the address. Raises 400 for bytes that are no text."""
        return {name: self.get_query_arguments(name) for name in self.request.query_arguments}

    def today(self) -> str:
        """Return the date in the catalog's time zone."""
        return date_of(milliseconds(self.parts.clock.now()), self.parts.accounting.zone)

    def send_csv(self, name: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Answer with rows as a file."""
        self.send_csv_text(name, csv_text(columns, rows))

    def send_csv_text(self, name: str, text: str) -> None:
        """Answer with a CSV file."""
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.csv"')
        self.finish(text)

    def _is_for_programs(self) -> bool:
        return self.request.path.endswith(".json")


class ListPage(AdminPage, ABC):
    """A list: its page, or all rows that match its filters as CSV or JSON."""

    table: Table
    template = "admin_list.html"
    title = ""
    empty = ""
    """The sentence of an empty page."""
    views: tuple[tuple[str, str], ...] = ()
    """Pages that belong together: address and words of each."""
    acts: tuple[tuple[str, str, str], ...] = ()
    """The acts on selected rows: names of ``administration.dialogs``, icons and the words of their buttons."""

    def filter_options(self) -> Mapping[str, Sequence[str]]:
        """Return the titles to choose from, for filters that match a part of a text."""
        catalog = self.parts.catalog
        teams = [team_title(catalog, team) or team for team in teams_of(catalog.rules, None)]
        return {"kind": [kind.title for kind in catalog.gpus.values()], "team": teams}

    @abstractmethod
    async def rows(self) -> Sequence[Row]:
        """Return every row, before any filter."""

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        state = parse_list_state(self.table, self.arguments_of_address())
        rows = await self.rows()
        if form:
            self.export(form, state, select_rows(rows, state), len(rows))
        else:
            self.show_list(list_part(rows, state))

    def show_list(self, part: ListPart, status: int = 200, **values: Any) -> None:
        """Answer with the page of a list."""
        named: dict[str, Any] = {"title": self.title, "empty": self.empty, "views": self.views}
        named["acts"] = [one for one in self.acts if self.viewer().reach(ACTS[one[0]])]
        named["options"] = self.filter_options()
        self.show(self.template, status, list=part, path=f"console/{self.table.name}", **named, **values)

    def export(self, form: str, state: ListState, rows: Sequence[Row], total: int) -> None:
        """Answer with rows as CSV or JSON."""
        columns = self.table.columns
        if form == ".csv":
            self.send_csv(self.table.name, columns, rows)
            return
        asked = {**state.filters, **state.kept, "sort": state.sort}
        document = {"asked": asked, "now": self.parts.clock.now(), "found": len(rows), "total": total}
        self.answer({**document, "rows": json_rows(columns, rows)})
