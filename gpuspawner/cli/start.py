"""``gpuspawner start``: request a workspace and wait for it, as its page does."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import Session, title_of
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.output import escape, say, say_progress, short_id, show_time
from gpuspawner.cli.workspaces import RUNNING_PHASES, address_of

F = TypeVar("F", bound=Callable[..., Any])
POLL_SECONDS = 2.0
LONGEST_SCRIPT = 16384
"""Characters of a script. The service refuses a longer one."""
CONFLICT = 409
_OPTIONS = base.join_options(
    click.argument("template", metavar="[TEMPLATE]", required=False),
    click.option("--gpu", metavar="KIND", help="GPU kind as gpuspawner offers shows it; any; or none."),
    click.option("--gpu-memory", metavar="SIZE", help="Least memory of each GPU, for example 40GiB."),
    click.option("--count", metavar="N", help="Number of GPUs."),
    click.option("--cpu", metavar="CORES", help="CPU cores, for example 4 or 0.5."),
    click.option("--memory", metavar="SIZE", help="Memory, for example 64 or '64 GB'."),
    click.option("--lifetime", metavar="TIME", help="Run time, for example 90 (minutes), 1h30 or '3 days'."),
    click.option("--team", metavar="TEAM", help="Team that is charged."),
    click.option("--instead", "substitutes", metavar="KIND", multiple=True, help="Accept this kind if it is sooner."),
    click.option("--tool", "tools", metavar="NAME", multiple=True, help="Install this tool of the template."),
    click.option("--repository", metavar="URL", help="Clone this repository into your home; https or ssh."),
    click.option(
        "--variable",
        "variables",
        metavar="NAME=VALUE",
        multiple=True,
        help="Set this variable. Do not use it for secrets.",
    ),
    click.option("--script", type=click.File(), metavar="FILE", help="Run this script when the workspace has started."),
    click.option("--own-image", metavar="IMAGE", help="Your own image, if the template takes any image."),
)
OPTION_NAMES = (
    "template",
    "gpu",
    "gpu_memory",
    "count",
    "cpu",
    "memory",
    "lifetime",
    "team",
    "substitutes",
    "tools",
    "repository",
    "own_image",
    "variables",
    "script",
)
"""The template and these options, as the API names them."""
EXAMPLES = """\
gpuspawner start                                         the first template, as its form has it
gpuspawner start pytorch --gpu a100 --count 2 --lifetime 8h
gpuspawner start pytorch --gpu a100 --instead h100 --name train --detach
gpuspawner start pytorch --gpu a100 --dry-run            what it would do now
"""


def request_options(function: F) -> F:
    """Add template and options of a request. The function gets ``request``: the values that the user gave."""

    @functools.wraps(function)
    def run(**options: Any) -> Any:
        given = {name: value for name in OPTION_NAMES if (value := options.pop(name)) not in {None, ()}}
        if "variables" in given:
            given["variables"] = "\n".join(given["variables"])
        if "script" in given:
            given["script"] = given["script"].read(LONGEST_SCRIPT + 1)
        return function(request=given, **options)

    return cast("F", _OPTIONS(run))


@base.command("start", examples=EXAMPLES)
@request_options
@click.option("--name", metavar="NAME", default="", help="Name of the workspace. Default: the one without a name.")
@click.option("--detach", is_flag=True, help="Do not wait for the workspace.")
@click.option("--dry-run", is_flag=True, help="Print the outcome, and request nothing.")
@base.session_options
def start(session: Session, request: dict[str, Any], name: str, *, detach: bool, dry_run: bool) -> None:
    """Start a workspace and wait until it runs.

    The request is the same as on the form. While the workspace waits, each change of its queue position is printed.
    With Ctrl-C, or if you close the terminal, the workspace keeps its queue position.
    """
    body = {**request, "server": name}
    if dry_run:
        session.show(_request(session, "/check", body), lambda outlook: say(outlook["sentence"]))
        return
    sentence = _outlook(session, body)
    one = _request(session, "/workspaces", body)
    if sentence:
        say_progress(sentence)
    if not detach:
        one = _wait(session, one)
        if one["arrival"] and sys.stdin.isatty():  # a script that waits is not a person at the terminal
            one = session.ask(f"/workspaces/{one['id']}/came", "POST")
    session.show(one, lambda workspace: _print(session, workspace))


def _request(session: Session, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer. If the workspace without a name is live already, say how to start another one."""
    try:
        return session.ask(path, "POST", body)
    except RefusedError as error:
        if error.status != CONFLICT or body["server"]:
            raise
        raise RefusedError(f"{error} To start another workspace: gpuspawner start --name NAME.", CONFLICT) from error


def _outlook(session: Session, body: dict[str, Any]) -> str:
    """Return the form's sentence for a workspace that starts at once.

    Return "" if it waits, because its queue position says more, or if the service cannot say: the start itself then
    fails with a reason, or waits.
    """
    try:
        outlook = session.ask("/check", "POST", body)
    except (AwayError, RefusedError):
        return ""
    return str(outlook["sentence"]) if outlook["starts_now"] else ""


def _wait(session: Session, one: dict[str, Any]) -> dict[str, Any]:
    """Return the workspace once it runs. Ctrl-C leaves it in the queue and says so.

    Raises:
        RefusedError: it ended before it ran.
    """
    last = ""
    try:
        while one["phase"] not in RUNNING_PHASES and not one["end"]:
            words = one["queue"]["sentence"] if one["queue"] else f"{one['words']}."
            if words != last:
                say_progress(words)
                last = words
            time.sleep(POLL_SECONDS)
            one = session.ask(f"/workspaces/{one['id']}")
    except KeyboardInterrupt:
        show, stop = f"gpuspawner show {short_id(one['id'])}", f"gpuspawner stop {one['id']}"
        say_progress(f"The workspace keeps its place in the queue. See {show}, or withdraw it with {stop}.")
        raise
    if one["end"]:
        raise RefusedError(escape(f"{title_of(one)} did not start. {one['end']['why']}"))
    return one


def _print(session: Session, one: dict[str, Any]) -> None:
    if one["phase"] in RUNNING_PHASES:
        ends = "" if one["ends_at"] is None else f" It ends {show_time(one['ends_at'], one['now'])}."
        say(f"{title_of(one)}: {one['words']}.{ends}")
        say(address_of(session, one))
        return
    say(f"{title_of(one)}: {one['queue']['sentence'] if one['queue'] else one['words']}")
    if one["request"]["gpu"]:
        say("Open it soon after it starts, or you may lose its GPU.")
