"""Templates, policies and quotas as custom resources: the catalog's second source, and what is told in their status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.resources import REFUSED, Resource, Resources
from gpuspawner.catalog.resources.merging import Added, MergeResult
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.clock import Clock
from gpuspawner.service.custom_resources.status import condition, explained

log = logging.getLogger("gpuspawner.operator")

FIRST_LOOKS, FIRST_SECONDS = 20, 3.0
"""How often at most, and how far apart, the service looks before it goes on by the file alone: a minute in all."""
IN_FORCE = "InForce"
"""The phase of an entry that can be used, and the condition that tells whether anything of it is in force."""
THE_ONE_BEFORE = "The one before stays in force. "


class Entries:
    """Hands the catalog what the resources add, and tells each what came of it."""

    def __init__(self, file: CatalogFile, resources: Resources, clock: Clock) -> None:
        """Look at nothing yet."""
        self._file, self._resources, self._clock = file, resources, clock
        self._seen: tuple[Resource, ...] = ()
        self._said = ""

    async def first(self) -> None:
        """Look until they are seen, for a while: what was promised by them is not to be judged without them."""
        for _ in range(FIRST_LOOKS):
            if await self.look():
                return
            await asyncio.sleep(FIRST_SECONDS)

    async def look(self) -> bool:
        """Have the catalog take in the resources as they are, at its next look. Return whether they are seen.

        Where they are not, all stays; also where their definitions or their namespace are being deleted, for nobody
        took back what they say.
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
        """Write the status of those of which something else is so than it tells."""
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
        """Tell administrators what keeps it from its work, once."""
        if trouble and trouble != self._said:
            log.error(trouble)
        self._said = trouble


def status_of(resource: Resource, judged: MergeResult, now: float) -> dict[str, Any]:
    """Return the whole status of an entry."""
    wrong, used = judged.refused.get(resource.uid, ""), judged.in_force.get(resource.uid)
    before = THE_ONE_BEFORE if wrong and used is not None else ""
    why = f"{before}{wrong}" or "It is part of the catalog."
    phase = REFUSED if wrong else IN_FORCE
    told = {
        "observedGeneration": resource.generation,
        "phase": phase,
        **explained(why),
        "inForce": None if used is None else dict(used),
        "conditions": [condition(resource, IN_FORCE, now, so=used is not None, reason=phase, message=why)],
    }
    return {key: value for key, value in told.items() if value is not None}
