"""Catalog entries by custom resources: templates, policies and quotas, and their status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from gpuspawner.backends.custom_resources.base import REFUSED, Resource, Resources
from gpuspawner.catalog.resources.merging import Added, MergeResult
from gpuspawner.catalog.watched_file import CatalogFile, NewCatalog
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.clock import Clock
from gpuspawner.service.custom_resources.history import ResourceHistory
from gpuspawner.service.custom_resources.status import condition, status_without
from gpuspawner.service.store import Store

log = logging.getLogger("gpuspawner.operator")

FIRST_LOOKS, FIRST_SECONDS = 20, 3.0
"""How often and at what interval the service looks before it starts with the file alone: one minute."""
IN_FORCE = "InForce"
"""The phase of a valid entry, and the condition that says whether a version of it is in force."""
NEW_UID, NEWEST = "new", "9999"
"""The identifier of an entry that is not created yet, and its time of creation, after that of all others."""
THE_ONE_BEFORE = "The one before stays in force. "


class Entries:
    """Passes the resources to the catalog, and writes the result into their status."""

    def __init__(self, file: CatalogFile, resources: Resources, clock: Clock, store: Store) -> None:
        self._file, self.resources, self._clock = file, resources, clock
        self.history = ResourceHistory(store, clock)
        self.seen: tuple[Resource, ...] | None = None
        """The entries at the last look, None if they were not seen."""
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
        self.seen = None
        try:
            seen = await self.resources.entries()
            gone = {one.uid for one in self._file.added} - {one.uid for one in seen}
            if gone and await self.resources.going(entries=True):
                return False
        except Unavailable as error:
            self._say(f"{error} The catalog stays as it is.")
            return False
        self.seen = seen
        self._file.added = tuple(self._added(one) for one in seen)
        return True

    def find(self, section: str, name: str) -> Resource | None:
        """Return an entry of the last look. One of the namespace goes before one of the cluster."""
        return _find(self.seen or (), section, name)

    async def fetch(self, section: str, name: str) -> Resource | None:
        """Return an entry as the cluster has it now: its status may be newer than at the last look."""
        return _find(await self.resources.entries(), section, name)

    def check(self, section: str, name: str, spec: Mapping[str, Any] | None) -> tuple[NewCatalog, str]:
        """Return the catalog with another spec of an entry, None without the entry, and why the spec can't be used."""
        before = self.find(section, name)
        uid = NEW_UID if before is None else before.uid
        others = tuple(one for one in self._file.added if one.uid != uid)
        created = NEWEST if before is None else before.created
        changed = () if spec is None else (Added(uid, section, name, spec, created),)
        made = self._file.check(self._file.raw, others + changed)
        return made, made.judged.refused.get(uid, "")

    def why_refused(self, one: Resource) -> str:
        """Return why an entry is not in force as it is, "" if it is."""
        return self._file.judged.refused.get(one.uid, "")

    def _added(self, one: Resource) -> Added:
        good = self._file.judged.in_force.get(one.uid, one.status.get("inForce"))
        return Added(one.uid, one.section, one.name, one.spec, one.created, good if isinstance(good, Mapping) else None)

    async def tell(self) -> None:
        """Store a version of each entry that others have changed, and write each status that has changed."""
        if self.seen is not None:
            await self.history.record(self.seen)
        try:
            await self._tell()
        except Unavailable as error:
            self._say(str(error))
        else:
            if self.seen:
                self._said = ""

    async def _tell(self) -> None:
        judged = self._file.judged
        for resource in self.seen or ():
            if resource.uid not in judged.refused.keys() | judged.in_force.keys():
                continue  # it is judged at the next look
            told = status_of(resource, judged, self._clock.now())
            if told != dict(resource.status):
                await self.resources.tell(resource, told)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.error(trouble)
        self._said = trouble


def _find(seen: Iterable[Resource], section: str, name: str) -> Resource | None:
    found = [one for one in seen if (one.section, one.name) == (section, name)]
    return min(found, key=lambda one: one.cluster_wide, default=None)


def status_of(resource: Resource, judged: MergeResult, now: float) -> dict[str, Any]:
    """Return the status of an entry."""
    wrong, used = judged.refused.get(resource.uid, ""), judged.in_force.get(resource.uid)
    before = THE_ONE_BEFORE if wrong and used is not None else ""
    why = f"{before}{wrong}" or "It is part of the catalog."
    phase = REFUSED if wrong else IN_FORCE
    accepted = condition(resource, IN_FORCE, now, so=used is not None, reason=phase, message=why)
    return status_without(resource, phase, why, [accepted], inForce=None if used is None else dict(used))
