"""The hub judges its catalog's file alone: what it takes, its form offers, and its service is handed."""

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
from gpuspawner.catalog.file import IN_FORCE, LOOK_SECONDS, PROBLEM, CatalogFile, Prepared
from gpuspawner.core.errors import CatalogError, Problem

log = logging.getLogger("gpuspawner.catalog")


def followed(
    catalog: str | Path | Mapping[str, Any], prepare: Callable[[Catalog], Prepared], data: Path
) -> tuple[Callable[[], Catalog], Path]:
    """Return what gives the catalog in force, and the file that the service reads. A mapping stays as it is.

    Raises:
        SystemExit: it cannot be used, or ``data`` takes no files.
    """
    try:
        if isinstance(catalog, Mapping):
            loaded, path = prepare(load_catalog(catalog))[0], data / "catalog.json"
            path.write_text(json.dumps(catalog, indent=1))  # JSON is YAML: the service reads both alike
            return lambda: loaded, path
        follower = Follower(CatalogFile(Path(catalog).absolute(), prepare), data)
        # Traitlets copies values, methods with what they are of. A function is not copied.
        return lambda: follower.current(), data / IN_FORCE  # noqa: PLW0108
    except CatalogError as error:  # it was written anew this moment
        raise SystemExit(f"gpuspawner: the hub does not start with this catalog:\n{error}") from None
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: data_dir {data} takes no files ({error.strerror}). Give it to the hub's user."
        ) from None


class Follower:
    """Looks at the file from time to time, and leaves what it holds for the service.

    So both judge by one catalog, and a service that starts anew meets a good one, whatever the file holds by then.
    """

    def __init__(self, file: CatalogFile, data: Path) -> None:
        """Hand over what is in force. Raises OSError where ``data`` takes no files."""
        self._file, self._data = file, data
        self._looked_at = time.monotonic()
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
        _write(self._data / IN_FORCE, self._file.raw)
        if self._file.problem:
            _write(self._data / PROBLEM, self._file.problem.encode())
        else:
            (self._data / PROBLEM).unlink(missing_ok=True)


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
