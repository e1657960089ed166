"""The calendar as a page: for the console by node, for users by kind of GPU."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

from gpuspawner.core.administration import RESERVING
from gpuspawner.core.calendar import shift_day
from gpuspawner.core.errors import RequestRefused
from gpuspawner.service.calendar import feed
from gpuspawner.service.calendar.api import (
    MOST_DAYS,
    CalendarEntry,
    CalendarReader,
    PlannedUse,
    ShownDays,
    change_values,
    planned_uses,
    present_use,
    reader_of,
    seen_uses,
    shown_days,
)
from gpuspawner.service.calendar.picture import TimeAxis, rows_by_kind, rows_by_node
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.base import PageHandler

WEEK, MONTH = 7, MOST_DAYS
COLUMNS = {WEEK: 1, MONTH: 7}
"""The days in a column of the picture, by the days that it shows."""


class CalendarView(NamedTuple):
    """The values of every calendar page. ``days`` are the titles of the columns."""

    shown: ShownDays
    axis: TimeAxis
    days: list[str]
    before: str
    after: str
    title: str
    entries: list[CalendarEntry]

    @property
    def now_at(self) -> float | None:
        """The position of the present time, from 0 to 1, None if it is not shown."""
        axis = self.axis
        return (axis.now - axis.start) / (axis.end - axis.start) if axis.start <= axis.now < axis.end else None


def calendar_view(state: Parts, handler: PageHandler, found: list[PlannedUse], reader: CalendarReader,
                  shown: ShownDays) -> CalendarView:  # fmt: skip
    """Return the values of a calendar page for some days."""
    first, last = date.fromisoformat(shown.first), date.fromisoformat(shift_day(shown.first, shown.days - 1))
    columns = [date.fromisoformat(shift_day(shown.first, x)) for x in range(0, shown.days, COLUMNS[shown.days])]
    titles = [f"{day:%a} {day.day}{f' {day:%b}' if day.day == 1 else ''}" for day in columns]
    if shown.days == MONTH:
        titles = [f"{day.day} {day:%b}" for day in columns]
    return CalendarView(
        shown,
        TimeAxis(shown.start, shown.end, handler.parts.clock.now()),
        titles,
        shift_day(shown.first, -shown.days),
        shift_day(shown.first, shown.days),
        f"{first.day} {first:%b} to {last.day} {last:%b %Y}",
        [present_use(state, one, reader) for one in found if one.opening.ends_at > handler.parts.clock.now()],
    )


def days_of(handler: PageHandler) -> ShownDays:
    """Return the days that the address of a page asks for. A wrong day means today."""
    days = MONTH if handler.get_query_argument("days", "") == str(MONTH) else WEEK
    now, zone = handler.parts.clock.now(), handler.parts.accounting.zone
    try:
        return shown_days(handler.get_query_argument("since", "")[:20], days, now, zone)
    except RequestRefused:
        return shown_days("", days, now, zone)


class ConsoleCalendar(AdminPage):
    """GET: reservations, maintenance and running workspaces by node, and the table of what is planned."""

    tab = "calendar"

    async def get(self) -> None:
        """Answer the page."""
        state, shown, reader = self.parts, days_of(self), await reader_of(self.actor("the console"))
        found = list(seen_uses(planned_uses(state, shown.start, shown.end), reader))
        view = calendar_view(state, self, found, reader, shown)
        kind = self.get_query_argument("kind", "")
        kind = kind if kind in state.catalog.gpus else ""
        running = self.get_query_argument("running", "1") != "0"
        rows, left_out = rows_by_node(state, found, reader, view.axis, kind=kind, running=running)
        self.show(
            "admin_calendar.html",
            view=view,
            rows=rows,
            left_out=left_out,
            kind=kind,
            running=running,
            changes={
                one.id: change_values(one, state.accounting.zone, view.axis.now)
                for one in state.restrictions.live()
                if one.measure in RESERVING
            },
            kinds=[(name, one.title) for name, one in state.catalog.gpus.items()],
        )


class OwnCalendar(PageHandler):
    """GET: what is planned for the kinds of GPU that the reader sees, and their own workspaces."""

    async def get(self) -> None:
        """Answer the page."""
        state, actor, shown = self.parts, self.actor("its page"), days_of(self)
        reader = replace(await reader_of(actor), sees_all=False)
        found = list(seen_uses(planned_uses(state, shown.start, shown.end), reader))
        view = calendar_view(state, self, found, reader, shown)
        own = [lease for lease in state.registry if self.viewer().owns(lease)]
        self.render_page("calendar.html", view=view, rows=rows_by_kind(state, found, reader, view.axis, own))


ROUTES: list[Any] = [(r"/console/calendar", ConsoleCalendar), (r"/calendar", OwnCalendar), *feed.ROUTES]
