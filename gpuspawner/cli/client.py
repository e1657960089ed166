"""The service's API over HTTP with the user's token, and the workspace that a user names.

Each answer but a good one becomes an error in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpuspawner import __version__
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.logins import LOCAL_SERVICE, read_token
from gpuspawner.cli.output import ID_LETTERS, Column, escape, note_zone, print_json, print_list, short_id
from gpuspawner.core.errors import label_of

TIMEOUT_SECONDS = 20.0
SCHEMES_WITH_BODY = {"token", "ticket"}
"""Authorization schemes of routes that read a body."""
STATUSES_OF_OTHERS = {403, 404, 405}
"""Answers of a hub, a proxy or another server at an address without the service, in addition to redirects. The
service's own have a message."""
FIRST_ERROR, FORBIDDEN, SERVER_ERROR = 400, 403, 500
STATUSES_OF_A_PROXY = {502, 503, 504}
"""A proxy before the service answers these while the service is away, for example while the hub restarts it."""


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect. It could send the token to another host, or to the server of another user of this hub."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing, so that urllib raises HTTPError."""


OPENER = build_opener(_NoRedirect)


@dataclass(frozen=True)
class Session:
    """The service that a command asks, and whether it prints JSON."""

    url: str
    as_json: bool = False

    def ask(self, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
        """Return the answer of the API below ``/api/v1`` to the user's token. Errors are those of :func:`call`."""
        service = self.url.rstrip("/")
        check_address(service, service)  # first: a token belongs to an address
        return call(f"{service}/api/v1{path}", read_token(url=self.url), method, body)

    def ask_all(self, path: str, name: str) -> dict[str, Any]:
        """Return the first part of a long list, with the entries of all its parts under ``name``."""
        answer = self.ask(path)
        while cursor := answer.get("next"):
            more = self.ask(f"{path}{'&' if '?' in path else '?'}cursor={cursor}")
            answer = {**answer, name: [*answer[name], *more[name]], "next": more["next"]}
        return answer

    def show(self, answer: Any, printer: Callable[[Any], None]) -> None:
        """Print an answer as JSON with ``--json``, else by ``printer``."""
        if self.as_json:
            print_json(answer)
        else:
            printer(answer)

    def show_list(self, answer: Any, name: str, columns: Sequence[Column], empty: str) -> None:
        """Print an answer as JSON with ``--json``, else its list ``name`` as :func:`print_list` does."""
        self.show(answer, lambda told: print_list(told, name, columns, empty))


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are neither empty nor false nor None."""
    return {name: value for name, value in values.items() if value}


def query_of(**values: object) -> str:
    """Return the query of an address. Values that are empty or None are left out."""
    given = [f"{name}={quote(str(value), safe='')}" for name, value in values.items() if value not in {"", None}]
    return f"?{'&'.join(given)}" if given else ""


def find_by_id(listed: list[dict[str, Any]], beginning: str, noun: str, command: str) -> dict[str, Any]:
    """Return the one entry whose ID begins so. Raises RefusedError for no entry and for several."""
    found = [one for one in listed if beginning and one["id"].startswith(beginning)]
    if len(found) != 1:
        count = f"No {noun} has" if not found else f"{len(found)} {noun}s have"
        raise RefusedError(f"{count} an ID that begins with {beginning!r}. See {command}.")
    return found[0]


def call(
    url: str, token: str, method: str = "GET", body: Any = None, *, wordless: str = "", scheme: str = "token"
) -> dict[str, Any]:
    """Return the JSON object that ``url`` answers. Arguments and errors are those of :func:`fetch`."""
    text = fetch(url, token, method, body, wordless=wordless, scheme=scheme)
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:  # a page of another server
        raise _no_service(_service_of(url)) from error
    if not isinstance(answer, dict):
        raise _no_service(_service_of(url))
    return answer


@contextmanager
def expect_service_answers(url: str) -> Iterator[None]:
    """Raise AwayError if the commands inside fail on an answer without the fields of the service's API."""
    try:
        yield
    except UnicodeError:  # what the user typed, not the answer
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise AwayError(
            f"The answer from {url} is not that of a GPU service of version {__version__} "
            f"({type(error).__name__}: {error}). Check --url and GPUSPAWNER_URL, and the version of the service."
        ) from error


def fetch(
    url: str, token: str, method: str = "GET", body: Any = None, *, wordless: str = "", scheme: str = "token"
) -> bytes:
    """Return the body that ``url`` answers.

    Args:
        url: a route of the service or of a workspace.
        token: the credential. Without one the request has neither an Authorization header nor a body.
        method: the HTTP method.
        body: sent as JSON.
        wordless: what to say of an error without a message of its own, with ``{status}``.
        scheme: the Authorization scheme.

    Raises:
        RefusedError: the answer is a 4xx, or the address is wrong.
        AwayError: the answer is a 5xx, or there is no answer.
    """
    service = _service_of(url)
    check_address(url, service)
    request = Request(  # noqa: S310 - the scheme is checked above
        url,
        method=method,
        data=_encode(method, body) if scheme in SCHEMES_WITH_BODY and token else (b"" if method == "POST" else None),
        headers={
            **({"Authorization": f"{scheme} {token}"} if token else {}),
            "Content-Type": "application/json",
            "User-Agent": f"gpuspawner/{__version__}",
        },
    )
    try:
        with OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            note_zone(response.headers)
            return bytes(response.read())
    except HTTPError as error:
        try:
            message = _message_of(json.load(error)["error"])
        except (ValueError, KeyError, TypeError):
            message = wordless.format(status=error.code) or _without_message(service, error.code)
        if error.code >= SERVER_ERROR:
            raise AwayError(message) from error
        if error.code == FORBIDDEN and message.startswith("Only "):  # a login is without roles by default
            message += " If you have such a role, sign in with gpuspawner login --admin."
        raise RefusedError(message, error.code) from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise _no_service(service) from error


def _service_of(url: str) -> str:
    return url.partition("/api/v1")[0].partition("/console/")[0]


def _no_service(service: str) -> AwayError:
    return AwayError(f"No GPU service answers at {service}. Is the hub running? Set --url or GPUSPAWNER_URL.")


def _encode(method: str, body: Any) -> bytes | None:
    return json.dumps(body or {}).encode() if method == "POST" or body else None


def _message_of(error: dict[str, Any]) -> str:
    """Return the message of an error. Several wrong options are on a line each."""
    fields = error.get("fields") or ()
    if len(fields) < 2:  # noqa: PLR2004 - of one field the message tells
        return str(error["message"])
    return "\n".join(f"{label_of(one['field'])}: {one['words']}" for one in fields)


def _without_message(service: str, status: int) -> str:
    """Return the message for an error that has no message. The service's own errors have one."""
    if status in STATUSES_OF_A_PROXY:
        return (
            f"The GPU service is away (status {status}). Your workspaces keep running, and your queue position is "
            "kept. Try again in a minute. If it stays away, tell your administrator."
        )
    if status not in STATUSES_OF_OTHERS and status >= FIRST_ERROR:
        return f"The service answered {status}."
    return (
        f"No GPU service is at {service}: the answer there was {status}. Its address ends in /services/gpu. "
        "Set --url or GPUSPAWNER_URL."
    )


def check_address(url: str, service: str) -> None:
    """Refuse an address that is not http or that holds a password. Raises RefusedError."""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise RefusedError("Write the address without a name and a password. Your token says who you are.")
    try:
        parts = urlsplit(url)
        is_host = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, or a port that is not a number
        is_host = False
    if not (is_host and url.isprintable() and " " not in url):
        raise RefusedError(
            f"{service!r} is not an http address. Set --url or GPUSPAWNER_URL, for example to {LOCAL_SERVICE}."
        )


MOST_ENDED = 200
"""How many ended workspaces are searched. Arbitrary: more than a person looks for by hand."""


class Found(NamedTuple):
    """The workspaces that fit a name. ``of_all_users``: no workspace of the user's own fits."""

    workspaces: list[dict[str, Any]]
    of_all_users: bool


def find_one(session: Session, name: str) -> dict[str, Any]:
    """Return the workspace with a name or an ID. Without a name, return the only one, else the one that ended last.

    Raises:
        RefusedError: no workspace fits, or several.
    """
    return _only(find(session, name), name)


def find_to_change(session: Session, name: str) -> dict[str, Any]:
    """Return the workspace with a name or an ID that an action is for. It has not ended.

    Raises:
        RefusedError: no workspace fits, or several; it has ended; or the ID of another user's workspace is too short.
    """
    if not name:  # an empty name begins every ID: a variable of a script may be empty
        raise RefusedError("The name is empty. Nothing was done. Name the workspace as gpuspawner list shows it.")
    found = find(session, name)
    one = _only(found, name)
    if one["end"]:
        raise RefusedError(escape(f"{title_of(one)} has ended already. {one['end']['why']}"))
    if found.of_all_users and not _has_name(one, name) and len(name) < ID_LETTERS:
        raise RefusedError(f"{title_of(one)} is not yours. Write its ID as gpuspawner list --all shows it.")
    return one


def find(session: Session, name: str) -> Found:
    """Return the workspaces that fit a name: the first of these groups that is not empty.

    1. The user's own live workspaces of this name, or of this USER/SERVER. Without a name, all of them.
    2. The user's own live workspaces whose ID begins so.
    3. The user's own workspace of this name that ended last.
    4. The user's own ended workspaces whose ID begins so.
    5. For administrators, groups 1, 2 and 4 of all users.
    """
    for all_users in (False, True):
        if all_users and not session.ask("/")["admin"]:
            return Found([], of_all_users=False)
        live = session.ask_all(f"/workspaces?all={all_users:d}", "workspaces")["workspaces"]
        if fits := [one for one in live if _has_name(one, name)] or [one for one in live if _begins(one, name)]:
            return Found(fits, all_users)
        ended = session.ask(f"/workspaces?all={all_users:d}&live=0&ended={MOST_ENDED}")["workspaces"]
        last = [] if all_users else [one for one in ended if _has_name(one, name)][:1]
        if fits := last or [one for one in ended if name and _begins(one, name)]:
            return Found(fits, all_users)
    return Found([], of_all_users=True)


def title_of(one: dict[str, Any]) -> str:
    """Return user, name and ID of a workspace for a terminal."""
    return escape(f"{one['user']}: {one['server'] or 'default workspace'} ({short_id(one['id'])})")


def _only(found: Found, name: str) -> dict[str, Any]:
    if len(found.workspaces) == 1:
        return found.workspaces[0]
    see = f"See gpuspawner list{' --all' if found.of_all_users else ''}."
    count = len(found.workspaces)
    if not name:
        raise RefusedError(f"There are {count} workspaces now. Name one. {see}" if count else f"No workspace. {see}")
    have = f"{count} workspaces have" if count else "No workspace has"
    raise RefusedError(f"{have} the name {name!r} or an ID that begins so. {see}")


def _has_name(one: dict[str, Any], name: str) -> bool:
    server = one["server"] or "-"
    return not name or name in {server, f"{one['user']}/{server}"}


def _begins(one: dict[str, Any], beginning: str) -> bool:
    return str(one["id"]).startswith(beginning)
