"""Applies a changed catalog to waiting requests and running workspaces."""

from __future__ import annotations

import asyncio
import time
from datetime import date

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.watched_file import CatalogFile, changes_words
from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.core.events import CatalogChanged
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.engine import LeaseEngine
from gpuspawner.service.log import show_times_in
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.administration import CatalogVersion
from gpuspawner.service.store.audit_log import AuditFilter


class CatalogReload:
    """Reads changes of the catalog's file and of custom resources, and applies them to all parts."""

    def __init__(self, allocator: Allocator, engine: LeaseEngine, entries: Entries | None = None) -> None:
        """Read nothing yet. All parts follow the catalog in force. Changes are audited in the registry."""
        self._allocator, self._engine, self._entries = allocator, engine, entries
        self._registry, self._scheduler, self._clock = allocator.registry, allocator.scheduler, allocator.clock
        self._in_force, self._is_start_noted = allocator.in_force, False
        self._version = self._in_force.version
        self._followed = self._in_force.catalog
        """The catalog that all parts follow. If a step fails, the next call applies all steps again."""
        self._followed_saved = self._saved

    async def first(self) -> None:
        """Add the entries of custom resources and the prices of today, before the catalog is first used."""
        if self._entries is not None:
            await self._entries.first()
            await self._take()
        self._use_prices_of_today()

    async def look(self) -> bool:
        """Read the changes of the catalog file. Return whether a new catalog is in force."""
        await self.audit_start()
        await self._take()
        changed = await self._follow()
        if self._entries is not None:
            await self._entries.tell()
        return changed

    async def _take(self) -> None:
        if self._entries is not None:
            await self._entries.look()
        if isinstance(self._in_force, CatalogFile):
            # In a thread, because a long catalog takes seconds.
            found = await asyncio.to_thread(self._in_force.look_for_new, time.time())
            if found is not None:
                self._in_force.take(found)
        self._use_prices_of_today()

    def _use_prices_of_today(self) -> None:
        today = date_of(milliseconds(self._clock.now()), self._allocator.accounting.zone)
        self._in_force.use_prices_of(date.fromisoformat(today))

    async def _follow(self) -> bool:
        before, catalog, version = self._followed, self._in_force.catalog, self._in_force.version
        if catalog is before and version == self._version:
            return False
        if catalog is not before:
            await self._apply(before, catalog)
        newest, saved = await self._newest(), self._saved
        is_of_console = saved != self._followed_saved and version == self._version
        if newest is None or newest.fingerprint != version or (version == self._version and not is_of_console):
            await self._audit(changes_words(before, catalog), newest)
        self._followed, self._version, self._followed_saved = catalog, version, saved
        return catalog is not before

    @property
    def _saved(self) -> int:
        """How many custom resources the console has saved. Each is in the audit log already."""
        return 0 if self._entries is None else self._entries.history.saved

    async def _apply(self, before: Catalog, catalog: Catalog) -> None:
        if catalog.gpus != before.gpus:
            self._scheduler.use_kinds(catalog.gpus)
        await self._allocator.accounting.follow()
        await self._allocator.end_what_is_not_offered()
        await self._engine.follow_catalog()
        show_times_in(catalog.rules.timezone)

    async def _newest(self) -> CatalogVersion | None:
        store = self._registry.store
        return await store.read(store.catalog_versions.newest)

    async def _audit(self, words: str, newest: CatalogVersion | None) -> None:
        """Store that another catalog is in force, and its text as a new version. The author of the change is unknown.

        A version that was saved in the console is stored already. Entries of custom resources make no new version.
        """
        now, file = self._clock.now(), self._in_force
        line = AuditLine(now, "", "", "gpuspawner", CatalogChanged(words), "the catalog's file", file.version)
        if not isinstance(file, CatalogFile) or (newest is not None and newest.fingerprint == file.version):
            await self._registry.save(audit=[line])
            return
        store = self._registry.store
        last = await store.read(store.catalog_versions.newest, None)
        number = 1 if last is None else last.number + 1
        text = file.raw.decode("utf-8-sig", "replace")
        version = CatalogVersion(number, now, "", "", words, file.version, text)
        await store.write(store.catalog_versions.add, version, [line])

    async def audit_start(self) -> None:
        """Record in the audit log that the service started with a changed catalog."""
        version, store = self._in_force.version, self._registry.store
        if not version or self._is_start_noted:
            return
        last = await store.read(store.audit_log.search, AuditFilter(actions=(CatalogChanged.name,)), None, 1)
        newest = await self._newest()
        if not last:
            await self._audit("the first catalog of this audit log", newest)
        elif last[0].line.target != version:
            await self._audit("it differs from the one before the service started", newest)
        self._is_start_noted = True


def reload_of(parts: Parts) -> CatalogReload:
    """Create the catalog reload of a service."""
    return CatalogReload(parts.allocator, parts.engine, parts.entries)
