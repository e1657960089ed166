"""The hub follows its catalog: it checks the file, offers its templates and gives it to its service."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.catalog.resources.merging import Added
from gpuspawner.catalog.watched_file import IN_FORCE, LOOK_SECONDS, PROBLEM, CatalogFile, Prepared
from gpuspawner.core.errors import CatalogError, GpuspawnerError, Problem
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner.catalog")

ADDED = "catalog-added.json"
"""Where the hub keeps what custom resources add, for a start before the service is asked."""


def followed(catalog: str | Path | Mapping[str, Any], prepare: Callable[[Catalog], Prepared], data: Path) -> Follower:
    """Return what follows a catalog. A mapping stays as it is, in a file of ``data``.

    Raises:
        SystemExit: it cannot be used, or ``data`` takes no files.
    """
    try:
        if not isinstance(catalog, Mapping):
            file = CatalogFile(Path(catalog).absolute(), prepare, last_good=data / IN_FORCE)
            return Follower(file, data, data / IN_FORCE)
        prepare(load_catalog(catalog))  # what is wrong with it is told of a mapping
        path = data / "catalog.json"
        path.write_text(json.dumps(catalog, indent=1))  # JSON is YAML: the service reads both alike
        return Follower(CatalogFile(path, prepare), data, path)
    except CatalogError as error:  # it was written anew this moment
        raise SystemExit(f"gpuspawner: the hub does not start with this catalog:\n{error}") from None
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: data_dir {data} takes no files ({error.strerror}). Give it to the hub's user."
        ) from None


class Follower:
    """Looks at the file from time to time, and leaves what it holds for the service.

    So both judge by one catalog, and a service that starts anew meets a good one, whatever the file holds by then. What
    custom resources add the service sees, and tells: the hub asks it before it judges anything.

    Args:
        file: the catalog's.
        data: the folder of what is kept.
        handed: the file that the service reads.
    """

    def __init__(self, file: CatalogFile, data: Path, handed: Path) -> None:
        """Hand over what is in force. Raises OSError where ``data`` takes no files."""
        self._file, self._data, self.handed = file, data, handed
        self._looked_at = time.monotonic()
        self._known = ""
        self._file.added = _kept(data / ADDED)
        self._file.look(time.time())
        self._hand_over()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # not in a hub: whoever asks has it looked at
        loop.call_later(LOOK_SECONDS, self._look_again, loop)

    def current(self) -> Catalog:
        """Return the catalog in force, after a look at its file where the last one was a while ago."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look()
        return self._file.catalog

    async def take_added(self, client: LeaseClient) -> None:
        """Take in what custom resources add, as the service has it in force. Where it does not answer, all stays."""
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
            log.error("what custom resources add to the catalog cannot be kept over a restart: %s", error)  # noqa: TRY400

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(LOOK_SECONDS, self._look_again, loop)
        self._look()

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        self._file.look(time.time())
        try:
            self._hand_over()
        except OSError as error:
            log.error("the catalog cannot be handed to the GPU service, which stays with the one before: %s", error)  # noqa: TRY400

    def _hand_over(self) -> None:
        _write(self.handed, self._file.raw)
        if self._file.problem:
            _write(self._data / PROBLEM, self._file.problem.encode())
        else:
            (self._data / PROBLEM).unlink(missing_ok=True)


def _kept(path: Path) -> tuple[Added, ...]:
    """Return what was added before the hub started; nothing where that cannot be read."""
    try:
        return tuple(Added(**one) for one in json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # another version may have written it
        return ()


def _write(path: Path, content: bytes) -> None:
    """Write a 0600 file whole, or not at all."""
    if path.exists() and path.read_bytes() == content:
        return
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    half.replace(path)


def refuse(file: str, sentences: Iterable[str]) -> None:
    """Raise CatalogError where there is a sentence: what contradicts the hub's configuration, and the remedy."""
    problems = []
    for sentence in sentences:
        wrong, _, right = sentence.rpartition(". ")
        problems.append(Problem(file, None, "catalog", wrong or sentence.rstrip("."), right))
    if problems:
        raise CatalogError(tuple(problems))
