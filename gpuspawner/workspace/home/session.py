"""The last session of a home: notebooks, terminals, packages in ``~/.gpuspawner/session.json``, mode 0600.

A named server has its own file: ``session-NAME.json``. It contains names, versions and folders, never commands or code.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpuspawner.workspace.home.own_files import FOLDER, NotUsedError, read_own

MOST_NOTEBOOKS, MOST_TERMINALS, MOST_PACKAGES = 50, 20, 300
"""Arbitrary: more than any user works with at once."""
LONGEST = 1000
"""Maximum length of a name, version or path."""
ASK, ALWAYS, NEVER = "ask", "always", "never"
"""The user's setting for packages of the last session that the image does not have."""


class Terminal(NamedTuple):
    """A terminal with its title in JupyterLab and the folder of its shell."""

    name: str
    folder: str


class Package(NamedTuple):
    """A package that the user installed into the image, by ``pip`` or ``conda``."""

    by: str
    name: str
    version: str

    @property
    def words(self) -> str:
        """Return its name and version for the user."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Session:
    """The session at its last check. Notebooks are paths below the server's root."""

    notebooks: tuple[str, ...] = ()
    terminals: tuple[Terminal, ...] = ()
    packages: tuple[Package, ...] = ()
    install: str = ASK


def file_of(own: Path, server: str) -> Path:
    """Return the file of a server's session. ``own`` is ``~/.gpuspawner``."""
    return own / (f"session-{server.replace('/', '_')}.json" if server else "session.json")


def read_session(file: Path) -> Session:
    """Return the saved session. Invalid parts are left out.

    Raises:
        NotUsedError: The file exists and cannot be used.
    """
    text = read_own(file)
    if text is None:
        return Session()
    try:
        kept = json.loads(text)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict):
        raise NotUsedError(f"~/{FOLDER}/{file.name} is not used: it is no JSON object. Delete it.")
    return Session(
        tuple(_texts(kept, "notebooks", MOST_NOTEBOOKS)),
        tuple(Terminal(*row) for row in _rows(kept, "terminals", 2, MOST_TERMINALS)),
        tuple(Package(*row) for row in _rows(kept, "packages", 3, MOST_PACKAGES) if row[0] in {"pip", "conda"}),
        kept["install"] if kept.get("install") in (ALWAYS, NEVER) else ASK,
    )


def write_session(file: Path, session: Session) -> None:
    """Replace the saved session whole or not at all. Raises OSError if the home is not writable."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    bounded = {
        "notebooks": session.notebooks[:MOST_NOTEBOOKS],
        "terminals": session.terminals[:MOST_TERMINALS],
        "packages": session.packages[:MOST_PACKAGES],
    }
    descriptor, part = tempfile.mkstemp(prefix="session-", dir=file.parent)  # mkstemp makes it of mode 0600
    try:
        with os.fdopen(descriptor, "w") as opened:
            json.dump({**asdict(session), **bounded}, opened)
        os.replace(part, file)  # noqa: PTH105 - a blink
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise


def _texts(kept: Mapping[str, Any], key: str, most: int) -> list[str]:
    rows = kept.get(key)
    return [row for row in rows[:most] if _is_text(row)] if isinstance(rows, list) else []


def _rows(kept: Mapping[str, Any], key: str, width: int, most: int) -> list[list[str]]:
    rows = kept.get(key)
    if not isinstance(rows, list):
        return []
    return [row for row in rows[:most] if isinstance(row, list) and len(row) == width and all(map(_is_text, row))]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()
