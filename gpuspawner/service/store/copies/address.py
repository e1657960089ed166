"""Where the service of a folder keeps its store, by a note in the folder: a file left behind there is not the store."""

from __future__ import annotations

from pathlib import Path

from gpuspawner.core.errors import Conflict

NOTE = "store-address"
"""In the folder of a service whose store is a database elsewhere."""


def note_address(folder: Path, url: str) -> None:
    """Note where the store is that a service starts with; a file of the folder needs no note. Raises OSError."""
    note = folder / NOTE
    if url.startswith("sqlite:"):
        note.unlink(missing_ok=True)
    else:
        note.write_text(f"{url}\n", encoding="utf-8")


def must_be_here(folder: Path) -> None:
    """Raise Conflict where the service of a folder works on a store elsewhere, and a file in it is out of date."""
    try:
        url = (folder / NOTE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return
    raise Conflict(f"The service of {folder} keeps its store at {url}. A file in the folder is out of date.")
