"""Find the workspace that a user names."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuspawner.cli.client import Session
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import ID_LETTERS, escape, short_id

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

    1. The user's own live workspaces of this name. Without a name, all of them.
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
    return not name or (one["server"] or "-") == name


def _begins(one: dict[str, Any], beginning: str) -> bool:
    return str(one["id"]).startswith(beginning)
