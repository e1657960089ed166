"""The catalog of the hub: the hub checks the file, offers its templates and writes it for its service."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuspawner.backends.machine import write_whole
from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.catalog.resources.merging import Added
from gpuspawner.catalog.watched_file import IN_FORCE, LOOK_SECONDS, PROBLEM, CatalogFile, Prepared
from gpuspawner.core.errors import CatalogError, GpuspawnerError, Problem
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner.catalog")

ADDED = "catalog-added.json"
"""The file with the entries of custom resources, for a start before the service answers."""


def follow_catalog(
    catalog: str | Path | Mapping[str, Any], prepare: Callable[[Catalog], Prepared], data: Path
) -> CatalogFollower:
    """Return a follower of a catalog. A mapping is written to a file in ``data`` and stays as it is.

    Raises:
        SystemExit: The catalog cannot be used, or ``data`` is not writable.
    """
    try:
        if not isinstance(catalog, Mapping):
            file = CatalogFile(Path(catalog).absolute(), prepare, last_good=data / IN_FORCE)
            return CatalogFollower(file, data, data / IN_FORCE)
        prepare(load_catalog(catalog))  # errors name the mapping
        path = data / "catalog.json"
        path.write_text(json.dumps(catalog, indent=1))  # JSON is also YAML
        return CatalogFollower(CatalogFile(path, prepare), data, path)
    except CatalogError as error:  # a mapping has just been written
        raise SystemExit(f"gpuspawner: the hub does not start with this catalog:\n{error}") from None
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: data_dir {data} is not writable ({error.strerror}). Give it to the hub's user."
        ) from None


class CatalogFollower:
    """Checks the catalog file at intervals and writes the catalog in force for the service.

    So hub and service use one catalog, and a restarted service always gets a good one. The service observes the entries
    of custom resources. The hub asks for them before it decides anything.

    Args:
        file: The catalog file.
        data: The data folder.
        handed: The file that the service reads.
    """

    def __init__(self, file: CatalogFile, data: Path, handed: Path) -> None:
        """Give the catalog in force to the service. Raises OSError if ``data`` is not writable."""
        self._file, self._data, self.handed = file, data, handed
        self._looked_at = time.monotonic()
        self._known = ""
        self._file.added = _read_added(data / ADDED)
        self._file.look(time.time())
        self._write_for_service()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # not in a hub: each caller of current() checks the file
        loop.call_later(LOOK_SECONDS, self._look_again, loop)

    def current(self) -> Catalog:
        """Return the catalog in force. Check the file first if the last check is old."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look()
        return self._file.catalog

    async def take_added(self, client: LeaseClient) -> None:
        """Fetch the entries of custom resources from the service. Without an answer nothing changes."""
        try:
            told = await client.added(self._known)
        except GpuspawnerError:
            return
        if told["added"] is None:
            return
        self._known, self._file.added = told["version"], tuple(Added(**one) for one in told["added"])
        self._look()
        try:
            if told["added"] or (self._data / ADDED).exists():
                _write(self._data / ADDED, json.dumps(told["added"]).encode())
        except OSError as error:
            log.error("The entries of custom resources cannot be kept over a restart: %s", error)  # noqa: TRY400

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(LOOK_SECONDS, self._look_again, loop)
        self._look()

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        self._file.look(time.time())
        try:
            self._write_for_service()
        except OSError as error:
            log.error("The catalog cannot be written for the GPU service, which keeps the previous one: %s", error)  # noqa: TRY400

    def _write_for_service(self) -> None:
        _write(self.handed, self._file.raw)
        if self._file.problem:
            _write(self._data / PROBLEM, self._file.problem.encode())
        else:
            (self._data / PROBLEM).unlink(missing_ok=True)


def _read_added(path: Path) -> tuple[Added, ...]:
    """Return the entries from before the hub started, or () if they cannot be read."""
    try:
        return tuple(Added(**one) for one in json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # another version may have written it
        return ()


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it has this content."""
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)


def raise_problems(file: str, sentences: Iterable[str]) -> None:
    """Raise CatalogError with these sentences: each is a contradiction to the hub's configuration and its remedy."""
    problems = []
    for sentence in sentences:
        wrong, _, right = sentence.rpartition(". ")
        problems.append(Problem(file, None, "catalog", wrong or sentence.rstrip("."), right))
    if problems:
        raise CatalogError(tuple(problems))
