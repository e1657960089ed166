"""The user's own files in ``~/.gpuspawner/``: read where nobody else may."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

FOLDER = ".gpuspawner"
LARGEST_BYTES = 2**20
"""Arbitrary: far more than variables or a script need."""


class NotUsedError(Exception):
    """A file is not used. The message says why, and what to do."""


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return the folder in the home, there or not."""
    return Path(environ.get("HOME") or Path.home()) / FOLDER


def read_own(file: Path) -> str | None:
    """Return the text of a file; None where there is none.

    Raises:
        NotUsedError: it is not the user's alone (mode 0600), too large, no text, or can't be read.
    """
    shown = f"~/{FOLDER}/{file.name}"
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:  # noqa: PTH123 - a pipe would block
            seen = os.fstat(opened.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
                raise NotUsedError(f"{shown} is not used: others may read or change it. Do: chmod 600 {shown}")
            if seen.st_size > LARGEST_BYTES:
                raise NotUsedError(f"{shown} is not used: it has more than {LARGEST_BYTES:,} bytes. Shorten it.")
            return opened.read().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise NotUsedError(f"{shown} is not used: it is no text in UTF-8.") from None
    except OSError as error:
        raise NotUsedError(f"{shown} is not used: it can't be read ({error.strerror}).") from None
