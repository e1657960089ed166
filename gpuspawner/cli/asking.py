"""How commands ask over HTTP: with the user's token of the hub, every answer but a good one told in words."""

from __future__ import annotations

import json
import os
import stat
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpuspawner import __version__

INVALID, REFUSED, AWAY = 1, 2, 3
TIMEOUT_SECONDS = 20.0
NOT_FOUND = 404
SERVER_ERROR = 500
"""HTTP's own: from here on it is not the asker's fault."""


class RefusedError(Exception):
    """It was asked and refused, or cannot be asked; says why. ``status`` is HTTP's, 0 where nothing was sent."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep both."""
        super().__init__(message)
        self.status = status


class AwayError(Exception):
    """Nobody answered who could do it; says who, and what to try."""


class _SameOrigin(HTTPRedirectHandler):
    """Follows no redirect to another origin: the token would go with it."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Return the request to follow; HTTPError where it leaves the origin."""
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = build_opener(_SameOrigin)


def token_of(file: Path | None = None) -> str:
    """Return the user's token: from the environment, or from a file that is theirs alone.

    Raises:
        RefusedError: there is none, it is none, or others can read it.
    """
    if file is None:
        token = os.environ.get("GPUSPAWNER_TOKEN", "").strip()
        if not token:
            raise RefusedError("GPUSPAWNER_TOKEN is not set. Make a token on the hub's page Token and export it.")
        return _sendable(token, "GPUSPAWNER_TOKEN")
    try:
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RefusedError(f"Others may read {file}, which holds your token. Run chmod 600 {file}.")
        return _sendable(file.read_text(encoding="ascii").strip(), str(file))
    except (OSError, ValueError) as error:
        raise RefusedError(f"{file} cannot be read as a token ({error}).") from error


def _sendable(token: str, source: str) -> str:
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise RefusedError(f"{source} holds no token: one has letters and digits alone. Copy it anew.")
    return token


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and _is_plain(url)
    except ValueError:  # half a bracket, or a port that is none
        return False


def _is_plain(url: str) -> bool:
    return url.isprintable() and " " not in url


def _wordless(service: str, status: int) -> str:
    """Return what to tell of an error without words: a 404 of the service has some, so it is another's."""
    if status != NOT_FOUND:
        return f"The service answered {status}."
    return (
        f"No GPU service is at {service}: {status} was answered there. Its address ends in /services/gpu. "
        "Set --url or GPUSPAWNER_URL."
    )


def call(url: str, token: str, method: str = "GET", body: Any = None, *, wordless: str = "") -> dict[str, Any]:
    """Return the JSON object that ``url`` answers; ``wordless`` tells of a workspace's error without words of its own.

    Raises:
        RefusedError: a 4xx, with the answer's own words; or the address is none.
        AwayError: a 5xx, likewise, or no answer.
    """
    service = url.partition("/api/v1")[0]
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise RefusedError("Write the address without a name and a password: your token says who you are.")
    if not _is_address(url):
        raise RefusedError(
            f"{service!r} is no http address. Set --url or GPUSPAWNER_URL, for example to "
            "http://127.0.0.1:8000/services/gpu."
        )
    request = Request(  # noqa: S310 - the scheme is checked above
        url,
        method=method,
        data=json.dumps(body or {}).encode() if method == "POST" or body else None,
        headers={
            "Authorization": f"token {token}",
            "Content-Type": "application/json",
            "User-Agent": f"gpuspawner/{__version__}",
        },
    )
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except HTTPError as error:
        try:
            message = json.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = wordless.format(status=error.code) or _wordless(service, error.code)
        if error.code >= SERVER_ERROR:
            raise AwayError(message) from error
        raise RefusedError(message, error.code) from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise AwayError(
            f"No GPU service answers at {service}. Is the hub running? Set --url or GPUSPAWNER_URL."
        ) from error


def told(error: Exception) -> int:
    """Print why a command ends, and return its exit code."""
    print(error, file=sys.stderr)
    return AWAY if isinstance(error, AwayError) else REFUSED
