"""The version and the Git commit of this installation."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from gpuspawner import __version__

COMMIT_FILE = "_commit.txt"
"""Written into the wheel and the source archive when they are built (``tools/commit_hook.py``)."""
_PACKAGE = Path(__file__).parent


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the first 12 characters of the Git commit, or "" if it is not known.

    An installed package reads what its build recorded. A checkout asks git, and adds ``+`` if tracked files differ.
    """
    recorded = _PACKAGE / COMMIT_FILE
    if recorded.is_file():
        return recorded.read_text().strip()
    if not (_PACKAGE.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(_PACKAGE.parent), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5)  # noqa: S603  # fixed words
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def describe_version() -> str:
    """Return the version with its commit, such as ``1.0.0 (83270970ab12)``."""
    return f"{__version__} ({commit()})" if commit() else __version__
