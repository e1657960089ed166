"""What follows when another catalog is in force: for who waits, and for what runs."""

from __future__ import annotations

import asyncio
import time

from gpuspawner.backends.resources import Resources
from gpuspawner.catalog.file import CatalogFile, InForce
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.leases.allocator import Allocator
from gpuspawner.service.leases.lifecycle import Lifecycle
from gpuspawner.service.operator.entries import Entries
from gpuspawner.service.parts import Parts


class Reload:
    """Looks at the catalog's file and at what resources add to it, and has everything follow what was written."""

    def __init__(
        self,
        in_force: InForce,
        scheduler: Scheduler,
        allocator: Allocator,
        lifecycle: Lifecycle,
        entries: Entries | None = None,
    ) -> None:
        """Look at nothing yet: what is in force is what all else was made by."""
        self._entries = entries
        self._in_force, self._scheduler = in_force, scheduler
        self._allocator, self._lifecycle = allocator, lifecycle
        self._followed = in_force.catalog
        """What everything follows: where a step fails, all are tried again at the next look."""

    async def first(self) -> None:
        """Take in what resources add before anything is judged by the catalog."""
        if self._entries is not None:
            await self._entries.first()
            await self._take()

    async def look(self) -> bool:
        """Take in what was written since. Return whether everything follows another catalog now."""
        await self._take()
        changed = await self._follow()
        if self._entries is not None:
            await self._entries.tell()
        return changed

    async def _take(self) -> None:
        if self._entries is not None:
            await self._entries.look()
        if isinstance(self._in_force, CatalogFile):
            # Beside the loop, which answers meanwhile: a long catalog is read in seconds.
            found = await asyncio.to_thread(self._in_force.news, time.time())
            if found is not None:
                self._in_force.take(found)

    async def _follow(self) -> bool:
        before, catalog = self._followed, self._in_force.catalog
        if catalog is before:
            return False
        if catalog.gpus != before.gpus:
            self._scheduler.use_kinds(catalog.gpus)
        await self._allocator.accounting.follow()
        await self._allocator.end_what_is_not_offered()
        await self._lifecycle.follow()
        self._followed = catalog
        return True


def reload_of(parts: Parts, resources: Resources | None = None) -> Reload:
    """Return what reloads the catalog of a service; ``resources`` are its second source, where there is one."""
    file, entries = parts.in_force, None
    if resources is not None and isinstance(file, CatalogFile):
        entries = Entries(file, resources, parts.clock)
    return Reload(file, parts.scheduler, parts.allocator, parts.lifecycle, entries)
