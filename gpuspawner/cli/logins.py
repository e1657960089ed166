"""The user's token and service: of a file, of the environment, or of the login that ``gpuspawner login`` saved."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from gpuspawner.cli.errors import InvalidError, RefusedError

LOCAL_SERVICE = "http://127.0.0.1:8000/services/gpu"
LOGIN_FIELDS = ("token", "id", "user")
"""Fields of a saved login, all text."""


def read_token(file: Path | None = None, url: str = "") -> str:
    """Return the user's token: of a file, of the environment, or of the login at ``url``.

    Raises:
        RefusedError: there is no token, or other users can read it.
    """
    if file is not None:
        try:
            if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise RefusedError(f"Other users can read {file}, which holds your token. Run chmod 600 {file}.")
            return _checked_token(file.read_text(encoding="ascii").strip(), str(file))
        except (OSError, ValueError) as error:
            raise RefusedError(f"{file} cannot be read as a token ({error}).") from error
    if token := os.environ.get("GPUSPAWNER_TOKEN", "").strip():
        return _checked_token(token, "GPUSPAWNER_TOKEN")
    if (login := saved_login(url) if url else None) is not None:
        return _checked_token(str(login["token"]), "your login")
    raise RefusedError(
        "You are not signed in. Run gpuspawner login --url ADDRESS: the hub's page Command line shows the address. "
        "Or set GPUSPAWNER_TOKEN to a token from the hub's page Token."
    )


def _checked_token(token: str, source: str) -> str:
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise RefusedError(f"{source} holds no token. A token has only letters, digits and signs. Copy it again.")
    return token


def logins_file() -> Path:
    """Return the file of the tokens that ``gpuspawner login`` got, in the folder of the user's configuration."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuspawner" / "tokens.json"


def default_url() -> str:
    """Return the service that a command asks if its user names none."""
    return os.environ.get("GPUSPAWNER_URL") or _read_logins()["last"] or LOCAL_SERVICE


def saved_login(url: str) -> dict[str, Any] | None:
    """Return the login at a service (``token``, ``id``, ``user``), or None.

    Raises:
        InvalidError: the file is damaged.
        RefusedError: other users can read the file.
    """
    found: dict[str, Any] | None = _read_logins()["tokens"].get(url.rstrip("/"))
    file = logins_file()
    if found is not None and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RefusedError(f"Other users can read {file}, which holds your tokens. Run chmod 600 {file}.")
    return found


def save_login(url: str, login: dict[str, Any] | None) -> None:
    """Save the login at a service, or forget it with None. A damaged file is replaced.

    Raises:
        RefusedError: the file cannot be written.
    """
    url = url.rstrip("/")
    try:
        saved = _read_logins()["tokens"]
    except InvalidError:
        saved = {}
    logins = {name: value for name, value in saved.items() if name != url}
    if login is not None:
        logins[url] = login
    last = url if login is not None else next(iter(logins), "")
    file = logins_file()
    new = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            json.dump({"tokens": logins, "last": last}, written, indent=1)
        new.replace(file)
    except OSError as error:
        raise RefusedError(f"{file} holds your token and cannot be written ({error.strerror}).") from error


def _read_logins() -> dict[str, Any]:
    """Return the contents of the file of logins: ``tokens`` by service, and ``last``, the service of the last login.

    Raises:
        InvalidError: the file is damaged.
    """
    try:
        text = logins_file().read_text(encoding="utf-8")
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        text = "{}"
    except ValueError:
        text = ""
    try:
        found = {"tokens": {}, "last": "", **json.loads(text)}
        logins = [found["last"], *(login[name] for login in found["tokens"].values() for name in LOGIN_FIELDS)]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        logins = [None]
    if not all(isinstance(one, str) for one in logins):
        raise InvalidError(f"{logins_file()} is damaged. Remove it, then sign in again with gpuspawner login.")
    return found
