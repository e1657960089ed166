"""The catalog in force: the one place that holds it, and the file that may change it while all else runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gpuspawner.catalog.document import Document, read_raw
from gpuspawner.catalog.resources.merging import Added, Judged, merge
from gpuspawner.catalog.values import Catalog
from gpuspawner.core.errors import CatalogError

log = logging.getLogger("gpuspawner.catalog")

LOOK_SECONDS = 2.0
"""How often the file is looked at."""
SETTLED_SECONDS = 1.0
"""A file that was written longer ago is whole. Arbitrary: an editor writes one in less."""

VERSION_LETTERS = 12

IN_FORCE = "catalog-in-force.yaml"
"""Where the hub leaves the last good catalog for its service, as it was written."""
OF_SERVICE = "catalog-of-service.yaml"
"""Where a service that is a process of its own keeps its last good catalog, for a start with a wrong one."""
PROBLEM = "catalog-problem"
"""Where it leaves what is wrong with what was written since; not there where nothing is."""

CHANGED = "The catalog was changed and cannot be used: the one before stays in force."
"""The service keeps the one before over its own restart, and the hub keeps it over that of both."""

Prepared = tuple[Catalog, tuple[str, ...]]
"""A catalog as it is used at a place, and sentences on what of it only a restart can change."""


class News(NamedTuple):
    """What was written since the last look, and can be used."""

    prepared: Prepared
    raw: bytes
    judged: Judged
    used: tuple[Added, ...]


Seen = tuple[bytes, ...]


class InForce:
    """The catalog in force. No part keeps another reference to it than this."""

    def __init__(self, catalog: Catalog) -> None:
        """Hold a catalog that never changes by itself."""
        self.catalog = catalog
        self.problem = ""
        """All that is wrong with what was written since; "" where the catalog in force is what is written."""
        self.waits: tuple[str, ...] = ()
        """Sentences on what of the catalog in force only a restart can change."""
        self.used: tuple[Added, ...] = ()
        """What of the catalog in force custom resources added, whether or not they say so still."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What administrators are to know of the catalog."""
        if not self.problem:
            return self.waits
        first, *others = self.problem.splitlines()
        more = f" All {len(others)} problems: gpuspawner server check tells them." if len(others) > 1 else ""
        return (f"{CHANGED} {first}{more}", *self.waits)

    @property
    def version(self) -> str:
        """A fingerprint of the file that the catalog in force was read from; "" where it is of none."""
        return ""


class CatalogFile(InForce):
    """Follows a file: a good catalog is in force once it is written, a bad one changes nothing.

    The file is found by its path at each look: it may be replaced, or be reached by links that change, as in a
    ConfigMap's folder. What was written a moment ago is read at the next look: it may not be whole yet.

    Args:
        path: the file.
        prepare: makes of a catalog what is used; raises CatalogError where it cannot be used here.
        beside: other files that ``prepare`` reads.
        told: where somebody else who judges the catalog leaves what is wrong with it.
        last_good: the last catalog that could be used, in force where the file cannot be used at the start.
        keeps: whether ``last_good`` is written here, with each catalog that comes in force.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[Catalog], Prepared] = lambda catalog: (catalog, ()),
        beside: Sequence[Path] = (),
        told: Path | None = None,
        last_good: Path | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        """Load the file. Raises CatalogError where it cannot be used, and no last good one is known."""
        self._path, self._prepare, self._beside, self._told = path, prepare, beside, told
        self._last_good, self._keeps = last_good, keeps
        raw, self._seen = self._look()
        self._waiting: Seen | None = None
        self.added: tuple[Added, ...] = ()
        """What custom resources add to the file; whoever sets it has it taken in at the next look."""
        self._merged: tuple[Added, ...] = ()
        first, self._wrong = self._first(raw)
        (catalog, waits), self.raw, self.judged, _ = first
        super().__init__(catalog)
        self.waits, self.problem = waits, self._wrong or self._others()
        self._keep()

    def _first(self, raw: bytes | Document) -> tuple[News, str]:
        """Return what is in force at the start, and what is wrong with the file. Raises CatalogError."""
        try:
            return self._made(raw, self.added), ""
        except CatalogError as error:
            kept = b"" if self._last_good is None else read_raw(self._last_good)
            if not kept or not isinstance(kept, bytes):
                raise
            try:
                last_good = self._made(kept, self.added)
            except CatalogError:  # another configuration, or another version, took it
                raise error from None
            log.error("the catalog cannot be used, this start goes by the last good one:\n%s", error)  # noqa: TRY400 - a catalog is no error of the program
            return last_good, str(error)

    def _keep(self) -> None:
        """Keep what is in force for a later start."""
        if self._last_good is None or not self._keeps or not self.raw:
            return
        half = self._last_good.with_suffix(".half")
        try:
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self.raw)
            half.replace(self._last_good)
        except OSError as error:
            log.error("the catalog in force cannot be kept over a restart: %s", error)  # noqa: TRY400

    @property
    def version(self) -> str:
        """The first letters of the SHA-256 of what the file held: as ``sha256sum`` prints them."""
        return sha256(self.raw).hexdigest()[:VERSION_LETTERS]

    def news(self, now: float) -> News | None:
        """Return what was written since, or None: nothing, or nothing that can be used. ``now`` is the wall clock's.

        It reads files, and changes but ``problem``.
        """
        found = self._news(now)
        self.problem = self._wrong or self._others()
        return found

    def _news(self, now: float) -> News | None:
        raw, seen = self._look()
        added, before = self.added, self._merged
        is_new, self._merged = self._is_new(seen, now), added
        try:
            if is_new:
                made, self._wrong = self._made(raw, added), ""
                return made
        except CatalogError as error:
            self._refuse(error)
        try:
            return None if added == before else self._made(self.raw, added)
        except CatalogError as error:  # something beside the file is wrong
            self._refuse(error)
            return None

    def _refuse(self, error: CatalogError) -> None:
        self._wrong = str(error)
        log.error("the catalog was changed and cannot be used, the one before stays in force:\n%s", error)

    def _is_new(self, seen: Seen, now: float) -> bool:
        """Whether the file was written since it was read last, and is whole."""
        if seen == self._seen or (seen != self._waiting and not self._is_settled(now)):
            self._waiting = None if seen == self._seen else seen
            return False
        self._waiting, self._seen = None, seen
        return True

    def _made(self, raw: bytes | Document, added: tuple[Added, ...]) -> News:
        """Return what is used of the file and of what is added. Raises CatalogError where the file cannot be used."""
        catalog, judged = merge(raw, str(self._path), added)
        return News(self._prepare(catalog), _bytes(raw), judged, judged.used(added))

    def take(self, news: News) -> bool:
        """Put a catalog in force. Return whether it is another than the one before."""
        (catalog, self.waits), self.raw, self.judged, self.used = news
        self._keep()
        for sentence in self.waits:
            log.warning(sentence)
        if catalog == self.catalog:
            return False
        self.catalog = catalog
        log.info("the catalog was changed, and is in force")
        return True

    def look(self, now: float) -> bool:
        """Put in force what was written since. Return whether another catalog is in force now."""
        found = self.news(now)
        return found is not None and self.take(found)

    def _others(self) -> str:
        """Return what somebody else found wrong."""
        found = b"" if self._told is None else read_raw(self._told)
        return found.decode(errors="replace") if isinstance(found, bytes) else ""

    def _look(self) -> tuple[bytes | Document, Seen]:
        raw = read_raw(self._path)
        beside = (read_raw(path) for path in self._beside)
        return raw, tuple(one if isinstance(one, bytes) else str(one.issues).encode() for one in (raw, *beside))

    def _is_settled(self, now: float) -> bool:
        try:
            return all(
                now - path.stat().st_mtime >= SETTLED_SECONDS for path in (self._path, *self._beside) if path.exists()
            )
        except OSError:
            return False


def _bytes(raw: bytes | Document) -> bytes:
    return raw if isinstance(raw, bytes) else b""  # a catalog was read of it
