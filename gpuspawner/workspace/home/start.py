"""The start of a workspace: variables at once, and in the background the repository, the script and the tools."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from gpuspawner.workspace.home.own_files import FOLDER, Notes, NotUsedError, folder_of, read_own, read_variables, run
from gpuspawner.workspace.home.packages import Tool, install_tool, selected_tools, show_kernels
from gpuspawner.workspace.service import ServiceClient

SCRIPT_VARIABLE = "GPUSPAWNER_SCRIPT"
"""The script of the start form. Set by the spawner."""
VARIABLE = "GPUSPAWNER_REPOSITORY"
"""Set by the spawner and checked by the service."""
FOLDERS = "GPUSPAWNER_FOLDERS"
"""The folders of this machine to link into the home, as JSON. Set by the spawner from the template."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ONLY = ("-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always")


def folder_name(url: str) -> str:
    """Return the folder of the clone in the home, or "" for an address without a name."""
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return name if _NAME.fullmatch(name) else ""


async def clone(url: str, home: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    """Clone a repository into ``home``. Return why it failed, or "", and the last line of the output.

    An existing folder is kept. Git does not ask for a password: it uses the user's SSH keys and credential helpers. The
    folder appears in the home once the clone is complete.
    """
    name = folder_name(url)
    if not name or not url.startswith(("https://", "ssh://")):
        return "its address cannot be cloned", ""
    if (home / name).exists():
        return "", ""
    own = home / FOLDER
    own.mkdir(mode=0o700, exist_ok=True)
    part = tempfile.mkdtemp(prefix="clone-", dir=own)
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    try:
        program = ("git", *_ONLY, "clone", "--", url, f"{part}/{name}")
        failure, line = await run(program, home, own / "clone.log", {**quiet, **environ})
        if not failure:
            os.rename(f"{part}/{name}", home / name)  # noqa: PTH104 - it is fast, and no other task runs
    except OSError as error:
        return f"it can't be put there ({error.strerror})", ""
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return failure, line if failure else ""


LEASE_VARIABLE = "GPUSPAWNER_LEASE_ID"
"""Set in every workspace. Elsewhere, for example on the user's own machine, nothing is done."""
GOES_ON = "The workspace goes on without it."


def take_variables(environ: MutableMapping[str, str], notes: Notes) -> None:
    """Add the variables of ``~/.gpuspawner/env`` to this process, whose kernels and terminals inherit them."""
    file = folder_of(environ) / "env"
    try:
        text = read_own(file)
    except NotUsedError as error:
        notes.warn(str(error))
        return
    found, wrong = read_variables(text or "", f"~/{FOLDER}/{file.name}")
    environ.update(found)
    for sentence in wrong:
        notes.warn(sentence)


def link_folders(environ: Mapping[str, str], notes: Notes) -> None:
    """Link the template's folders of this machine into the home. Nothing in the home is replaced."""
    home = folder_of(environ).parent
    for mount, folder in json.loads(environ.get(FOLDERS, "{}")).items():
        link = home / mount.removeprefix("~/")
        if not Path(folder).is_dir():
            notes.warn(f"{mount} is missing: this machine has no folder {folder}. {GOES_ON}")
        elif link.is_symlink() and os.readlink(link) == folder:  # noqa: PTH115 - as text
            continue
        elif link.is_symlink() or link.exists():
            notes.warn(f"{mount} does not lead to {folder}, because your home has something of that name. {GOES_ON}")
        else:
            try:
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(folder)
            except OSError as error:
                notes.warn(f"{mount} was not linked to {folder} ({error.strerror}). {GOES_ON}")


async def clone_and_run(environ: MutableMapping[str, str], notes: Notes) -> None:
    """Clone the repository, then run the script of the start form and ``~/.gpuspawner/startup.sh``.

    A failure is only reported.
    """
    own, asked = folder_of(environ), environ.pop(SCRIPT_VARIABLE, "")
    if url := environ.get(VARIABLE, ""):
        notes.busy = f"Cloning {folder_name(url)} into your home…"
        failure, line = await clone(url, own.parent, environ)
        if failure:
            notes.warn(f"{url} was not cloned: {failure}. {GOES_ON} See ~/{FOLDER}/clone.log.", line)
    notes.busy = ""
    if asked:
        await _run_shell(("-c", asked), "The start-up script", "start-script.log", environ, notes)
    script = own / "startup.sh"
    try:
        there = read_own(script) is not None
    except NotUsedError as error:
        notes.warn(str(error))
        return
    if there:
        await _run_shell((str(script),), f"~/{FOLDER}/{script.name}", "startup.log", environ, notes)


async def _run_shell(arguments: Sequence[str], name: str, log: str, environ: Mapping[str, str], notes: Notes) -> None:
    """Run a script with bash, else with sh. ``name`` is its name for the user."""
    own = folder_of(environ)
    own.mkdir(mode=0o700, exist_ok=True)
    notes.busy = f"Running {name[0].lower()}{name[1:]}…"
    shell = shutil.which("bash") or "/bin/sh"
    failure, line = await run((shell, *arguments), own.parent, own / log, environ)
    if failure:
        notes.warn(f"{name} failed: {failure}. {GOES_ON} See ~/{FOLDER}/{log}.", line)
    notes.busy = ""


async def install_all(tools: Sequence[Tool], environ: MutableMapping[str, str], notes: Notes) -> None:
    """Make a kernel of each selected tool unless it exists. A failure is only reported."""
    for tool in tools:
        if tool.is_whole:
            continue
        notes.busy = f"Installing the tool {tool.name} into your home…"
        failure, line = await install_tool(tool, environ)
        if failure:
            log = f"~/{tool.folder.relative_to(folder_of(environ).parent)}.log"
            notes.warn(f"The tool {tool.name} was not installed: {failure}. {GOES_ON} See {log}.", line)
        notes.busy = ""


async def take_secrets(client: ServiceClient, environ: MutableMapping[str, str], notes: Notes) -> None:
    """Add the user's secrets to this process. A failure is only reported. No sentence contains a value."""
    reply = await client.secrets()
    for _ in range(SECRET_TRIES):
        if "away" not in reply.body:
            break
        await asyncio.sleep(SECRET_SECONDS)
        reply = await client.secrets()
    values, unreadable = reply.body.get("values"), reply.body.get("unreadable")
    if not isinstance(values, dict) or not isinstance(unreadable, list):
        notes.warn("Your secrets are missing: the GPU service did not answer them. Restart the workspace for them.")
        return
    environ.update({str(name): str(value) for name, value in values.items()})
    if unreadable:
        names = ", ".join(map(str, unreadable))
        notes.warn(f"These secrets can't be decrypted any more: {names}. Save them again on the page Secrets.")


SECRET_TRIES, SECRET_SECONDS = 5, 2.0
"""How often secrets are asked for while the service is away. Arbitrary: a restart of the service takes seconds."""


def begin(
    environ: MutableMapping[str, str],
    notes: Notes,
    kernel_folders: list[str] | None = None,
    client: ServiceClient | None = None,
) -> asyncio.Task[None] | None:
    """Start all parts in the running loop. Return None in a server that is no workspace.

    ``kernel_folders`` are the folders in which this server finds kernels. ``client`` asks the service, if there is one.
    """
    if not environ.get(LEASE_VARIABLE):
        return None
    take_variables(environ, notes)
    link_folders(environ, notes)
    tools: list[Tool] = []
    try:
        tools = selected_tools(environ, folder_of(environ))
    except ValueError as error:
        notes.warn(f"{error}. {GOES_ON}")
    show_kernels(tools, environ, [] if kernel_folders is None else kernel_folders)
    return asyncio.get_event_loop().create_task(_run_all(tools, environ, notes, client))


async def _run_all(
    tools: Sequence[Tool], environ: MutableMapping[str, str], notes: Notes, client: ServiceClient | None
) -> None:
    try:
        if client is not None:
            await take_secrets(client, environ, notes)
        await clone_and_run(environ, notes)
        await install_all(tools, environ, notes)
    except Exception as error:  # noqa: BLE001 - no failure may stop the workspace
        notes.warn(f"What you asked for at the start was not done ({type(error).__name__}). {GOES_ON}")
    finally:
        notes.busy = ""
