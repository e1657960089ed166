"""Writing a catalog where an administrator wants it, and never over one that is there."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuspawner.catalog import load_text


class Refused(Exception):
    """It is not written; says why, and what to do."""


def write_catalog(file: str, text: str, *, force: bool) -> None:
    """Write a catalog that ``check`` finds good; ``-`` is standard output.

    Raises:
        Refused: the file is there, and ``force`` is not given.
        CatalogError: what was to be written is no good catalog: a fault of ours.
        OSError: it can't be written.
    """
    load_text(text, file)
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise Refused(
            f"{file} is there, and was not changed. Name another file, - to print, or --force to replace it."
        ) from None
