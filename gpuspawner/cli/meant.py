"""Which workspace a NAME means."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from gpuspawner.cli.asking import ID_LETTERS, ask, ask_all
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import shown

LAST_ENDED = 200
"""Among so many that ended one is looked for. Arbitrary: more than anybody asks for by hand."""


class Meant(NamedTuple):
    """What a name means: several where it fits several. ``everybody``: everybody's were looked through for it."""

    found: list[dict[str, Any]]
    everybody: bool


def meant(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the one workspace that a name means; without a name, one's only one, else the one that ended last.

    Raises:
        RefusedError: none or several.
    """
    wanted = f"called {name!r}, or with an id that begins so" if name else "now"
    return _one(find(arguments, name), wanted)


def meant_to_change(arguments: argparse.Namespace, name: str, what: str) -> dict[str, Any]:
    """Return the one that a name means and that has not ended. Of somebody else's it takes the name or the ID.

    Raises:
        RefusedError: none or several; it has ended; or it is not certain that it is meant. ``what`` is not done then.
    """
    if not name:  # it begins every id: a script whose variable is empty means none
        raise RefusedError(f"An empty name {what} nothing. Name the workspace as gpuspawner list shows it.")
    looked = find(arguments, name)
    one = _one(looked, f"called {name!r}, or with an id that begins so")
    if one["end"]:
        raise RefusedError(shown(f"{title(one)} has ended already. {one['end']['why']}"))
    if looked.everybody and not _is_called(one, name) and len(name) < ID_LETTERS:
        raise RefusedError(f"{title(one)} is not yours. Write its ID, as gpuspawner list --all shows it.")
    return one


def find(arguments: argparse.Namespace, name: str) -> Meant:
    """Return the workspaces that a name means.

    The first of these that are any:

    1. One's own that live and are called so; without a name, all of them.
    2. One's own that live, by the beginning of their id.
    3. One's own that ended last and was called so.
    4. One's own that ended, by the beginning of their id.
    5. For administrators, everybody's: those of 1, 2 and 4.
    """
    for everybody in (False, True):
        if everybody and not ask(arguments, "/")["admin"]:
            return Meant([], everybody=False)
        live = ask_all(arguments, f"/workspaces?all={everybody:d}", "workspaces")["workspaces"]
        if found := [one for one in live if _is_called(one, name)] or [one for one in live if _begins(one, name)]:
            return Meant(found, everybody)
        ended = ask(arguments, f"/workspaces?all={everybody:d}&live=0&ended={LAST_ENDED}")["workspaces"]
        last = [] if everybody else [one for one in ended if _is_called(one, name)][:1]
        if found := last or [one for one in ended if name and _begins(one, name)]:
            return Meant(found, everybody)
    return Meant([], everybody=True)


def title(one: dict[str, Any]) -> str:
    """Return a workspace as people know it, for a terminal."""
    return shown(f"{one['user']}: {one['server'] or 'default workspace'} ({one['id'][:ID_LETTERS]})")


def _one(looked: Meant, wanted: str) -> dict[str, Any]:
    if len(looked.found) != 1:
        count = "No workspace" if not looked.found else f"{len(looked.found)} workspaces"
        raise RefusedError(f"{count} {wanted}. See gpuspawner list{' --all' if looked.everybody else ''}.")
    return looked.found[0]


def _is_called(one: dict[str, Any], name: str) -> bool:
    return not name or (one["server"] or "-") == name


def _begins(one: dict[str, Any], beginning: str) -> bool:
    is_begun: bool = one["id"].startswith(beginning)
    return is_begun
