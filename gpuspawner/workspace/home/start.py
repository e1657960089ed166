"""What is done once when the server starts: variables at once; beside it the repository, the script, the tools."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import MutableMapping, Sequence

from gpuspawner.workspace.home.notes import Notes
from gpuspawner.workspace.home.own_files import FOLDER, NotUsedError, folder_of, read_own
from gpuspawner.workspace.home.programs import run
from gpuspawner.workspace.home.repository import VARIABLE, clone, folder_name
from gpuspawner.workspace.home.tools import Tool, install, show_kernels, ticked
from gpuspawner.workspace.home.variables import read_variables

LEASE_VARIABLE = "GPUSPAWNER_LEASE_ID"
"""Set in every workspace; elsewhere, as on one's own machine, nothing is done."""
GOES_ON = "The workspace goes on without it."


def take_variables(environ: MutableMapping[str, str], notes: Notes) -> None:
    """Add the variables of ``~/.gpuspawner/env`` to this process, whose kernels and terminals inherit them."""
    file = folder_of(environ) / "env"
    try:
        text = read_own(file)
    except NotUsedError as error:
        notes.tell(str(error))
        return
    found, wrong = read_variables(text or "", f"~/{FOLDER}/{file.name}")
    environ.update(found)
    for sentence in wrong:
        notes.tell(sentence)


async def clone_and_run(environ: MutableMapping[str, str], notes: Notes) -> None:
    """Clone the repository that was asked for, then run ``~/.gpuspawner/startup.sh``. A failure is told and no more."""
    own = folder_of(environ)
    if url := environ.get(VARIABLE, ""):
        notes.busy = f"Cloning {folder_name(url)} into your home…"
        failure, line = await clone(url, own.parent, environ)
        if failure:
            notes.tell(f"{url} was not cloned: {failure}. {GOES_ON} See ~/{FOLDER}/clone.log.", line)
    notes.busy = ""
    script = own / "startup.sh"
    try:
        there = read_own(script) is not None
    except NotUsedError as error:
        notes.tell(str(error))
        return
    if there:
        notes.busy = f"Running ~/{FOLDER}/{script.name}…"
        shell = shutil.which("bash") or "/bin/sh"
        failure, line = await run((shell, str(script)), own.parent, own / "startup.log", environ)
        if failure:
            notes.tell(f"~/{FOLDER}/{script.name} failed: {failure}. {GOES_ON} See ~/{FOLDER}/startup.log.", line)
        notes.busy = ""


async def install_all(tools: Sequence[Tool], environ: MutableMapping[str, str], notes: Notes) -> None:
    """Make a kernel of each tool that was ticked, where there is none. A failure is told and no more."""
    for tool in tools:
        if tool.is_whole:
            continue
        notes.busy = f"Installing the tool {tool.name} into your home…"
        failure, line = await install(tool, environ)
        if failure:
            log = f"~/{tool.folder.relative_to(folder_of(environ).parent)}.log"
            notes.tell(f"The tool {tool.name} was not installed: {failure}. {GOES_ON} See {log}.", line)
        notes.busy = ""


def begin(
    environ: MutableMapping[str, str], notes: Notes, kernel_folders: list[str] | None = None
) -> asyncio.Task[None] | None:
    """Do all of it, in the running loop; None in a server that is no workspace.

    ``kernel_folders`` is where this server looks for kernels.
    """
    if not environ.get(LEASE_VARIABLE):
        return None
    take_variables(environ, notes)
    tools: list[Tool] = []
    try:
        tools = ticked(environ, folder_of(environ))
    except ValueError as error:
        notes.tell(f"{error}. {GOES_ON}")
    show_kernels(tools, environ, [] if kernel_folders is None else kernel_folders)
    return asyncio.get_event_loop().create_task(_told(tools, environ, notes))


async def _told(tools: Sequence[Tool], environ: MutableMapping[str, str], notes: Notes) -> None:
    try:
        await clone_and_run(environ, notes)
        await install_all(tools, environ, notes)
    except Exception as error:  # noqa: BLE001 - whatever it is, the workspace goes on
        notes.tell(f"What you asked for at the start was not done ({type(error).__name__}). {GOES_ON}")
    finally:
        notes.busy = ""
