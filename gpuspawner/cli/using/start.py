"""``gpuspawner start``: ask for a workspace, and wait for it as its page does."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from gpuspawner.cli.asking import ID_LETTERS, ask
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.meant import title
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.using.workspaces import address_of, tell

ASK_SECONDS = 2.0
CONFLICT = 409
OPTIONS = ("template", "gpu", "gpu_memory", "count", "cpu", "memory", "lifetime", "team", "repository", "own_image")
UP = {"running", "reclaiming"}


def start(arguments: argparse.Namespace) -> None:
    """Ask, tell what the form says before Start and where it stands whenever that changes, and end once it runs.

    With ``--detach`` it ends at once.
    """
    asked = {**asked_options(arguments), "server": arguments.name}
    if arguments.dry_run:
        told = _ask_to_start(arguments, "/check", asked)
        show(arguments, told, lambda outlook: print(shown(outlook["sentence"])))
        return
    sentence = _outlook(arguments, asked)
    one = _ask_to_start(arguments, "/workspaces", asked)
    if sentence:
        tell(sentence)
    if not arguments.detach:
        one = _waited(arguments, one)
        if one["arrival"] and sys.stdin.isatty():  # no script's wait is a person's
            one = ask(arguments, f"/workspaces/{one['id']}/came", "POST")
    show(arguments, one, lambda told: _print(arguments, told))


def _ask_to_start(arguments: argparse.Namespace, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer; where the workspace without a name is there already, say how to start another one."""
    try:
        return ask(arguments, path, "POST", asked)
    except RefusedError as error:
        if error.status != CONFLICT or arguments.name:
            raise
        words = f"{error} To start another one beside it: gpuspawner start --name NAME."
        raise RefusedError(words, CONFLICT) from error


def _outlook(arguments: argparse.Namespace, asked: dict[str, Any]) -> str:
    """Return what the form says before Start of what starts now; of what waits, its place tells, and this is "".

    So it is where that can't be told: the start itself says why, or waits for whom it takes to answer.
    """
    try:
        told = ask(arguments, "/check", "POST", asked)
    except (AwayError, RefusedError):
        return ""
    return str(told["sentence"]) if told["starts_now"] else ""


def asked_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a start asks for, as it was written."""
    options: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    if arguments.instead:
        options["substitutes"] = arguments.instead
    if arguments.tool:
        options["tools"] = arguments.tool
    return options


def _waited(arguments: argparse.Namespace, one: dict[str, Any]) -> dict[str, Any]:
    """Return it once it runs. Raises RefusedError where it ends before. Ctrl-C leaves it waiting, and says so."""
    told = ""
    try:
        while one["phase"] not in UP and not one["end"]:
            words = one["queue"]["sentence"] if one["queue"] else f"{one['words']}."
            if words != told:
                tell(words)
                told = words
            time.sleep(ASK_SECONDS)
            one = ask(arguments, f"/workspaces/{one['id']}")
    except KeyboardInterrupt:
        tell(f"It goes on without you: gpuspawner show {one['id'][:ID_LETTERS]}, or gpuspawner stop {one['id']}.")
        raise
    if one["end"]:
        raise RefusedError(shown(f"{title(one)} did not start. {one['end']['why']}"))
    return one


def _print(arguments: argparse.Namespace, one: dict[str, Any]) -> None:
    if one["phase"] in UP:
        ends = "" if one["ends_at"] is None else f" It ends {show_time(one['ends_at'], one['now'])}."
        print(shown(f"{title(one)}: {one['words']}.{ends}"))
        print(address_of(arguments, one))
        return
    print(shown(f"{title(one)}: {one['queue']['sentence'] if one['queue'] else one['words']}"))
