"""The tokens that ``gpuspawner login`` got, one for each service, in a file that is its user's alone."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from gpuspawner.cli.errors import RefusedError

HERE = "http://127.0.0.1:8000/services/gpu"


def file_of_tokens() -> Path:
    """Return where they are kept: in the folder of the user's configuration."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuspawner" / "tokens.json"


def default_url() -> str:
    """Return the service that is asked where a command names none."""
    return os.environ.get("GPUSPAWNER_URL") or _read().get("last") or HERE


def kept_token(url: str) -> dict[str, Any] | None:
    """Return what is kept of a service: ``token``, ``id``, ``user``; None for nothing.

    Raises:
        RefusedError: others can read the file.
    """
    found: dict[str, Any] | None = _read().get("tokens", {}).get(url.rstrip("/"))
    if found is not None and file_of_tokens().stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file = file_of_tokens()
        raise RefusedError(f"Others may read {file}, which holds your tokens. Run chmod 600 {file}.")
    return found


def keep_token(url: str, one: dict[str, Any] | None) -> None:
    """Keep the token of a service; None forgets it.

    Raises:
        RefusedError: the file can't be written.
    """
    kept, url = _read(), url.rstrip("/")
    tokens = {name: value for name, value in kept.get("tokens", {}).items() if name != url}
    if one is not None:
        tokens[url] = one
    last = url if one is not None else next(iter(tokens), "")
    file = file_of_tokens()
    new = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            json.dump({"tokens": tokens, "last": last}, written, indent=1)
        new.replace(file)
    except OSError as error:
        raise RefusedError(f"{file} cannot be written ({error.strerror}): your token is kept there.") from error


def _read() -> dict[str, Any]:
    """Return what the file holds; nothing where it is not there, or not as it was written."""
    try:
        found = json.loads(file_of_tokens().read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a home
        return {}
    return found if isinstance(found, dict) else {}
