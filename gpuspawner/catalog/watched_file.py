"""The catalog in force, and the file that may change it while the program runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gpuspawner.catalog.document import Document, read_raw
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.visibility import with_prices_of
from gpuspawner.catalog.resources.merging import Added, MergeResult, merge
from gpuspawner.core.errors import CatalogError

log = logging.getLogger("gpuspawner.catalog")

LOOK_SECONDS = 2.0
"""How often the file is read."""
SETTLED_SECONDS = 1.0
"""A file that was written longer ago is complete. Arbitrary: an editor needs less time to write it."""

VERSION_LETTERS = 12
NAMES_SHOWN = 8
"""Names that are shown of one section. Arbitrary: as many as fit in a line of the audit."""

IN_FORCE = "catalog-in-force.yaml"
"""The file in which the hub keeps the last good catalog for its service, as it was written."""
OF_SERVICE = "catalog-of-service.yaml"
"""The file in which a separate service keeps its last good catalog, for a start with a wrong one."""
PROBLEM = "catalog-problem"
"""The file with what is wrong with a later catalog. It exists only if something is wrong."""

CHANGED = "The catalog was changed and cannot be used. The previous one stays in force."
"""The service keeps the earlier catalog over its own restart, and the hub over a restart of both."""

Prepared = tuple[Catalog, tuple[str, ...]]
"""A catalog as this program uses it, and sentences about changes that need a restart."""


class NewCatalog(NamedTuple):
    """A catalog that was written since the last look and can be used."""

    prepared: Prepared
    raw: bytes
    judged: MergeResult
    used: tuple[Added, ...]


Seen = tuple[bytes, ...]


class InForce:
    """The catalog in force. No other part keeps a reference to the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        """Hold a catalog that has no file to watch."""
        self.catalog = catalog
        self.problem = ""
        """Everything that is wrong with a later catalog, or "" if the file holds the catalog in force."""
        self.waits: tuple[str, ...] = ()
        """Sentences about changes of the catalog in force that need a restart."""
        self.used: tuple[Added, ...] = ()
        """The entries that custom resources added to the catalog in force, even if the resources have changed since."""
        self.source: Path | None = None
        """The file that administrators write, or None if this program may not write it."""

    def use_prices_of(self, day: date) -> None:
        """Put the prices of a day in force."""
        self.catalog = with_prices_of(self.catalog, day)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about the catalog for administrators."""
        if not self.problem:
            return self.waits
        first, *others = self.problem.splitlines()
        more = f" gpuspawner server check lists all {len(others)} problems." if len(others) > 1 else ""
        return (f"{CHANGED} {first}{more}", *self.waits)

    @property
    def version(self) -> str:
        """A fingerprint of the file from which the catalog in force was read, or "" without a file."""
        return ""


class CatalogFile(InForce):
    """Follows a file. A good catalog is in force once it is written. A wrong one changes nothing.

    The file is opened by its path at each look, because it may be replaced, or be a link that changes, as in the folder
    of a ConfigMap. A file that was written a moment ago may not be complete, so it is read at the next look.

    Args:
        path: the file.
        prepare: returns a catalog as this program uses it, or raises CatalogError if it cannot be used here.
        other_files: files that ``prepare`` reads.
        problem_file: a file in which another process says what is wrong with the catalog.
        last_good: the file with the last good catalog. It is in force if ``path`` cannot be used at the start.
        source: the file that administrators write, of which ``path`` may be a copy. None if only others write it.
        keeps: whether this object writes ``last_good`` with each catalog that comes in force.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[Catalog], Prepared] = lambda catalog: (catalog, ()),
        other_files: Sequence[Path] = (),
        problem_file: Path | None = None,
        last_good: Path | None = None,
        source: Path | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        """Load the file. Raises CatalogError if it cannot be used and there is no last good catalog."""
        self._path, self._prepare, self._other_files, self._problem_file = path, prepare, other_files, problem_file
        self._last_good, self._keeps = last_good, keeps
        raw, self._seen = self._look()
        self._waiting: Seen | None = None
        self.added: tuple[Added, ...] = ()
        """The entries that custom resources add to the file. A new value is used at the next look."""
        self._merged: tuple[Added, ...] = ()
        first, self._wrong = self._first(raw)
        (catalog, waits), self.raw, self.judged, _ = first
        super().__init__(catalog)
        self.source = source
        self.waits, self.problem = waits, self._wrong or self._others()
        self._keep()

    def _first(self, raw: bytes | Document) -> tuple[NewCatalog, str]:
        """Return the catalog at the start, and what is wrong with the file. Raises CatalogError."""
        try:
            return self._made(raw, self.added), ""
        except CatalogError as error:
            kept = b"" if self._last_good is None else read_raw(self._last_good)
            if not kept or not isinstance(kept, bytes):
                raise
            try:
                last_good = self._made(kept, self.added)
            except CatalogError:  # it was good for another configuration or version
                raise error from None
            log.error("the catalog cannot be used. This start uses the last good one:\n%s", error)  # noqa: TRY400 - a wrong catalog is not an error of the program
            return last_good, str(error)

    def _keep(self) -> None:
        """Write the catalog in force for a later start."""
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
        """The first letters of the file's SHA-256, as ``sha256sum`` prints them."""
        return fingerprint_of(self.raw)

    def look_for_new(self, now: float) -> NewCatalog | None:
        """Return a new catalog that can be used, or None. ``now`` is wall-clock time in seconds.

        This reads files, and changes only ``problem``.
        """
        found = self._look_for_new(now)
        self.problem = self._wrong or self._others()
        return found

    def _look_for_new(self, now: float) -> NewCatalog | None:
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
        except CatalogError as error:  # something that was added to the file is wrong
            self._refuse(error)
            return None

    def _refuse(self, error: CatalogError) -> None:
        self._wrong = str(error)
        log.error("the catalog was changed and cannot be used. The previous one stays in force:\n%s", error)

    def _is_new(self, seen: Seen, now: float) -> bool:
        """Return whether the file has changed since it was read, and is complete."""
        if seen == self._seen or (seen != self._waiting and not self._is_settled(now)):
            self._waiting = None if seen == self._seen else seen
            return False
        self._waiting, self._seen = None, seen
        return True

    def _made(self, raw: bytes | Document, added: tuple[Added, ...]) -> NewCatalog:
        """Return the catalog of the file and the added entries. Raises CatalogError if the file cannot be used."""
        catalog, judged = merge(raw, str(self._path), added)
        return NewCatalog(self._prepare(catalog), _bytes(raw), judged, judged.used(added))

    def check(self, raw: bytes, added: tuple[Added, ...] | None = None) -> NewCatalog:
        """Return the catalog that other bytes of the file or other resources put in force. Raises CatalogError."""
        return self._made(raw, self.added if added is None else added)

    def take(self, new: NewCatalog) -> bool:
        """Put a catalog in force. Return whether it differs from the one before."""
        (catalog, self.waits), self.raw, self.judged, self.used = new
        self._keep()
        for sentence in self.waits:
            log.warning(sentence)
        if catalog == self.catalog:
            return False
        self.catalog = catalog
        log.info("the catalog was changed, and is in force")
        return True

    def look(self, now: float) -> bool:
        """Put a new catalog in force, if there is one. Return whether the catalog in force has changed."""
        found = self.look_for_new(now)
        return found is not None and self.take(found)

    def _others(self) -> str:
        """Return the problem that another process found."""
        found = b"" if self._problem_file is None else read_raw(self._problem_file)
        return found.decode(errors="replace") if isinstance(found, bytes) else ""

    def _look(self) -> tuple[bytes | Document, Seen]:
        raw = read_raw(self._path)
        others = (read_raw(path) for path in self._other_files)
        return raw, tuple(one if isinstance(one, bytes) else str(one.issues).encode() for one in (raw, *others))

    def _is_settled(self, now: float) -> bool:
        try:
            return all(
                now - path.stat().st_mtime >= SETTLED_SECONDS
                for path in (self._path, *self._other_files)
                if path.exists()
            )
        except OSError:
            return False


def fingerprint_of(raw: bytes) -> str:
    """Return the first letters of the SHA-256 of a file, as ``sha256sum`` prints them."""
    return sha256(raw).hexdigest()[:VERSION_LETTERS]


def _bytes(raw: bytes | Document) -> bytes:
    return raw if isinstance(raw, bytes) else b""  # a catalog was read from it


def changes_words(before: Catalog, after: Catalog) -> str:
    """Return the entries that differ: ``policies: changed default; templates: added pytorch, removed old``."""
    return "; ".join(_sections(before, after)) or "comments or order only"


def _sections(before: Catalog, after: Catalog) -> Iterator[str]:
    for name, (old, new) in _parts(before, after).items():
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differing = {
                "added": [name for name in new if name not in old],
                "changed": [name for name in new if name in old and new[name] != old[name]],
                "removed": [name for name in old if name not in new],
            }
            yield f"{name}: " + ", ".join(f"{how} {_named(names)}" for how, names in differing.items() if names)
        else:
            yield f"{name} changed"


def _parts(before: Catalog, after: Catalog) -> Mapping[str, tuple[object, object]]:
    """Return the values of each section of the file in both catalogs. Quotas are by their names."""
    found = {
        one.name: (getattr(holder, one.name), getattr(other, one.name))
        for holder, other in ((before, after), (before.rules, after.rules))
        for one in fields(holder)
        if one.name != "rules"
    }
    old, new = ({one.name: one for one in catalog.rules.quotas} for catalog in (before, after))
    return {**found, "quotas": (old, new)}


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:NAMES_SHOWN]) + more
