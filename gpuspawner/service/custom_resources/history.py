"""The versions of catalog entries that are custom resources, as the catalog's file has versions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.catalog.watched_file import fingerprint_of
from gpuspawner.core.errors import Conflict
from gpuspawner.service.clock import Clock
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.administration import CatalogVersion

TRIES = 3
"""How often a version is stored that others overtake. Arbitrary: two people seldom save in the same moment."""
Numbered = Callable[[int], tuple[CatalogVersion, Sequence[AuditLine]]]
"""Returns a version with its number, and its audit entries."""


def entry_of(resource: Resource) -> str:
    """Return the entry of the catalog that a resource is: ``templates.big``."""
    return f"{resource.section}.{resource.name}"


def text_of(spec: Mapping[str, Any]) -> str:
    """Return a spec as YAML, always in the same order."""
    return yaml.safe_dump(dict(spec), sort_keys=True, allow_unicode=True, width=math.inf)


@dataclass(frozen=True)
class _KnownEntry:
    """An entry as its newest version has it. ``is_seen``: the cluster has listed it since."""

    uid: str = ""
    generation: float = 0
    text: str = ""
    is_seen: bool = True


class ResourceHistory:
    """Stores the versions of entries: those that the console saves, and changes by others once they are seen."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Read nothing yet."""
        self._store, self._clock = store, clock
        self._known: dict[str, _KnownEntry] | None = None
        self.writing = asyncio.Lock()
        """Held from the write of an entry to the cluster until its version is stored."""
        self.saved = 0
        """How many versions the console has saved since this service started."""

    async def record(self, seen: Iterable[Resource]) -> None:
        """Store a version of each entry that others have changed. Entries of the whole cluster have none."""
        async with self.writing:
            known = await self._load()
            there = {entry_of(one): one for one in seen if not one.cluster_wide and not one.deleting}
            for entry, one in there.items():
                before = known.get(entry, _KnownEntry())
                if one.uid == before.uid and one.generation <= before.generation:
                    known[entry] = replace(before, is_seen=True)
                    continue
                text = text_of(one.spec)
                if text != before.text:
                    await self._add_of_others(entry, text, "changed" if before.text else "added")
                known[entry] = _KnownEntry(one.uid, one.generation, text)
            for entry, before in known.items():
                if entry not in there and before.text and before.is_seen:
                    await self._add_of_others(entry, "", "removed")
                    known[entry] = replace(before, text="")

    def keep(self, entry: str, written: Resource | None, before: Resource | None) -> None:
        """Remember what the console wrote, until the cluster lists it. ``written`` is None for a deleted entry."""
        assert self._known is not None, "add() has read it"
        self.saved += 1
        if written is not None:
            self._known[entry] = _KnownEntry(written.uid, written.generation, text_of(written.spec), is_seen=False)
        elif before is not None:
            self._known[entry] = _KnownEntry(before.uid, math.inf)

    async def add(self, numbered: Numbered) -> CatalogVersion:
        """Store a version with the next number. Raises Conflict if others store versions all the time."""
        await self._load()
        versions = self._store.catalog_versions
        for tries_left in reversed(range(TRIES)):
            newest = await self._store.read(versions.newest, None)
            version, audit = numbered(1 if newest is None else newest.number + 1)
            try:
                await self._store.write(versions.add, version, audit)
            except Conflict:
                if not tries_left:
                    raise
            else:
                return version
        raise AssertionError("the last try returns or raises")

    async def _add_of_others(self, entry: str, text: str, how: str) -> None:
        section, _, name = entry.partition(".")
        changes, now = f"{section}: {how} {name}", self._clock.now()
        print_of = fingerprint_of(text.encode())
        await self.add(lambda number: (CatalogVersion(number, now, "", "", changes, print_of, text, entry), ()))

    async def _load(self) -> dict[str, _KnownEntry]:
        if self._known is None:
            versions = self._store.catalog_versions
            numbers = await self._store.read(versions.newest_numbers)
            found = {entry: await self._store.read(versions.newest, entry) for entry in numbers if entry}
            self._known = {entry: _KnownEntry(text=one.text) for entry, one in found.items() if one is not None}
        return self._known
