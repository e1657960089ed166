"""The page of the reader's stored data with its retention times, and the data as JSON."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.store.retention import StoredPerson
from gpuspawner.service.store.tables import metadata
from gpuspawner.service.stored_data.api import all_sections, get_stored
from gpuspawner.service.web.base import PageHandler


class StoredPage(PageHandler):
    """GET: the kinds of stored data of the reader."""

    async def get(self) -> None:
        """Answer the page."""
        state, person = self.parts, self.viewer()
        one = StoredPerson(person.owner, person.name, 0.0)
        counts = await state.store.read(state.store.person_rows.count, one)
        sections = [(text, counts.get(text.name, 0)) for text in all_sections(state.settings) if text.name in TABLES]
        self.render_page("stored.html", sections=sections, contact=state.catalog.rules.contact)


class StoredJson(PageHandler):
    """GET: all stored data of the reader, as a file."""

    async def get(self) -> None:
        """Answer the file."""
        found = await get_stored.act(self.actor("its page"))
        self.set_header("Content-Disposition", 'attachment; filename="stored.json"')
        self.answer(found.as_json())


TABLES = frozenset(metadata.tables)

ROUTES: list[Any] = [(r"/stored/?", StoredPage), (r"/stored\.json", StoredJson)]
