"""How commands ask over HTTP: with the user's token, every answer but a good one told in words."""

from __future__ import annotations

import argparse
import json
import os
import stat
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpuspawner import __version__
from gpuspawner.cli.clock import note_zone
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.signing.credentials import kept_token
from gpuspawner.core.errors import label_of

TIMEOUT_SECONDS = 20.0
WITH_BODY = {"token", "ticket"}
"""How who asks says so, where a body is read."""
OF_OTHERS = {403, 404, 405}
"""What a hub, a proxy or another server answers where the service is not. The service's own have words."""
SERVER_ERROR = 500
"""HTTP's own: from here on it is not the asker's fault."""


class _SameOrigin(HTTPRedirectHandler):
    """Follows no redirect to another origin: the token would go with it."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Return the request to follow; HTTPError where it leaves the origin."""
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = build_opener(_SameOrigin)


def token_of(file: Path | None = None, url: str = "") -> str:
    """Return the user's token: from a file that is theirs alone, from the environment, or of their login at ``url``.

    Raises:
        RefusedError: there is none, it is none, or others can read it.
    """
    if file is None:
        token = os.environ.get("GPUSPAWNER_TOKEN", "").strip()
        if token:
            return _sendable(token, "GPUSPAWNER_TOKEN")
        kept = kept_token(url) if url else None
        if kept is None:
            raise RefusedError(
                "You are not signed in: run gpuspawner login --url ADDRESS, as the hub's page Command line shows it. "
                "Or set GPUSPAWNER_TOKEN to a token from its page Token."
            )
        return _sendable(str(kept["token"]), "your login")
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


def _check_address(url: str, service: str) -> None:
    """Refuse what is no address, or holds a password. Raises RefusedError."""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise RefusedError("Write the address without a name and a password: your token says who you are.")
    if not _is_address(url):
        raise RefusedError(
            f"{service!r} is no http address. Set --url or GPUSPAWNER_URL, for example to "
            "http://127.0.0.1:8000/services/gpu."
        )


def _is_plain(url: str) -> bool:
    return url.isprintable() and " " not in url


def _wordless(service: str, status: int) -> str:
    """Return what to tell of an error without words: those of the service have some, so it is another's."""
    if status not in OF_OTHERS:
        return f"The service answered {status}."
    return (
        f"No GPU service is at {service}: {status} was answered there. Its address ends in /services/gpu. "
        "Set --url or GPUSPAWNER_URL."
    )


def call(
    url: str, token: str, method: str = "GET", body: Any = None, *, wordless: str = "", scheme: str = "token"
) -> dict[str, Any]:
    """Return the JSON object that ``url`` answers; ``wordless`` tells of a workspace's error without words of its own.

    Without a token nothing says who asks, and no body is sent, which would not be read.

    Raises:
        RefusedError: a 4xx, with the answer's own words; or the address is none.
        AwayError: a 5xx, likewise, or no answer.
    """
    service = url.partition("/api/v1")[0].partition("/console/")[0]
    _check_address(url, service)
    request = Request(  # noqa: S310 - the scheme is checked above
        url,
        method=method,
        data=_sent(method, body) if scheme in WITH_BODY and token else _nothing(method),
        headers={
            **({"Authorization": f"{scheme} {token}"} if token else {}),
            "Content-Type": "application/json",
            "User-Agent": f"gpuspawner/{__version__}",
        },
    )
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            note_zone(response.headers)
            answer: dict[str, Any] = json.load(response)
            return answer
    except HTTPError as error:
        try:
            message = _words_of(json.load(error)["error"])
        except (ValueError, KeyError, TypeError):
            message = wordless.format(status=error.code) or _wordless(service, error.code)
        if error.code >= SERVER_ERROR:
            raise AwayError(message) from error
        raise RefusedError(message, error.code) from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise AwayError(
            f"No GPU service answers at {service}. Is the hub running? Set --url or GPUSPAWNER_URL."
        ) from error


def _words_of(error: dict[str, Any]) -> str:
    """Return what is told of an error; of several things wrong with options, each on a line."""
    first, fields = str(error["message"]), error.get("fields") or ()
    if len(fields) < 2:  # noqa: PLR2004 - that is the first
        return first
    return "\n".join(f"{label_of(one['field'])}: {one['words']}" for one in fields)


def _nothing(method: str) -> bytes | None:
    """Return what is sent where nobody would read a body: the service reads those of whom it knows."""
    return b"" if method == "POST" else None


def _sent(method: str, body: Any) -> bytes | None:
    return json.dumps(body or {}).encode() if method == "POST" or body else None


ID_LETTERS = 8
"""How much of an id is shown, and must be written of somebody else's."""


def ask(arguments: argparse.Namespace, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    """Return what the service's API answers below ``/api/v1``, to the user's token. Raises what :func:`call` does."""
    service = arguments.url.rstrip("/")
    _check_address(service, service)  # before a token is looked for, which is of an address
    return call(f"{service}/api/v1{path}", token_of(url=arguments.url), method, body)


def ask_all(arguments: argparse.Namespace, path: str, name: str) -> dict[str, Any]:
    """Return a long list whole, part after part: the first answer, with all of what it calls ``name``."""
    answer = ask(arguments, path)
    while following := answer.get("next"):
        more = ask(arguments, f"{path}{'&' if '?' in path else '?'}cursor={following}")
        answer = {**answer, name: [*answer[name], *more[name]], "next": more["next"]}
    return answer


def one_begins(listed: list[dict[str, Any]], beginning: str, what: str, where: str) -> dict[str, Any]:
    """Return the one of a list whose id begins so. Raises RefusedError for none and for several."""
    found = [one for one in listed if beginning and one["id"].startswith(beginning)]
    if len(found) != 1:
        count = f"No {what}" if not found else f"{len(found)} {what}s"
        raise RefusedError(f"{count} with an id that begins {beginning!r}. See {where}.")
    return found[0]
