"""Catalog entries by custom resources: templates, policies and quotas, and their status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.custom_resources.base import REFUSED, Resource, Resources
from gpuspawner.catalog.resources.merging import Added, MergeResult
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.clock import Clock
from gpuspawner.service.custom_resources.status import condition, status_without

log = logging.getLogger("gpuspawner.operator")

FIRST_LOOKS, FIRST_SECONDS = 20, 3.0
"""How often and at what interval the service looks before it starts with the file alone: one minute."""
IN_FORCE = "InForce"
"""The phase of a valid entry, and the condition that says whether a version of it is in force."""
THE_ONE_BEFORE = "The one before stays in force. "


class Entries:
    """Passes the resources to the catalog, and writes the result into their status."""

    def __init__(self, file: CatalogFile, resources: Resources, clock: Clock) -> None:
        self._file, self._resources, self._clock = file, resources, clock
        self._seen: tuple[Resource, ...] = ()
        self._said = ""

    async def first(self) -> None:
        """Look for some time until the resources are seen, because existing workspaces depend on them."""
        for _ in range(FIRST_LOOKS):
            if await self.look():
                return
            await asyncio.sleep(FIRST_SECONDS)

    async def look(self) -> bool:
        """Pass the present resources to the catalog, and return whether they are seen.

        If they are not seen, the catalog stays as it is. It also stays if their definitions or their namespace are
        being deleted, because no administrator removed the entries.
        """
        self._seen = ()
        try:
            seen = await self._resources.entries()
            gone = {one.uid for one in self._file.added} - {one.uid for one in seen}
            if gone and await self._resources.going(entries=True):
                return False
        except Unavailable as error:
            self._say(f"{error} The catalog stays as it is.")
            return False
        self._seen = seen
        self._file.added = tuple(self._added(one) for one in seen)
        return True

    def _added(self, one: Resource) -> Added:
        good = self._file.judged.in_force.get(one.uid, one.status.get("inForce"))
        return Added(one.uid, one.section, one.name, one.spec, one.created, good if isinstance(good, Mapping) else None)

    async def tell(self) -> None:
        """Write each status that has changed."""
        try:
            await self._tell()
        except Unavailable as error:
            self._say(str(error))
        else:
            if self._seen:
                self._said = ""

    async def _tell(self) -> None:
        judged = self._file.judged
        for resource in self._seen:
            if resource.uid not in judged.refused.keys() | judged.in_force.keys():
                continue  # it is judged at the next look
            told = status_of(resource, judged, self._clock.now())
            if told != dict(resource.status):
                await self._resources.tell(resource, told)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.error(trouble)
        self._said = trouble


def status_of(resource: Resource, judged: MergeResult, now: float) -> dict[str, Any]:
    """Return the status of an entry."""
    wrong, used = judged.refused.get(resource.uid, ""), judged.in_force.get(resource.uid)
    before = THE_ONE_BEFORE if wrong and used is not None else ""
    why = f"{before}{wrong}" or "It is part of the catalog."
    phase = REFUSED if wrong else IN_FORCE
    accepted = condition(resource, IN_FORCE, now, so=used is not None, reason=phase, message=why)
    return status_without(resource, phase, why, [accepted], inForce=None if used is None else dict(used))
