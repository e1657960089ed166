"""Makes a kernel of each selected tool: its own environment in the home, once for its list of packages.

The environment is in ``~/.gpuspawner/tools/TEMPLATE/pythonX.Y/NAME-DIGEST``. It includes the packages of the server's
own Python, so that an image's PyTorch is not installed again. Only unfinished environments are ever deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import site
import sys
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuspawner.workspace.home.own_files import Outcome, run

VARIABLE = "GPUSPAWNER_TOOLS"
"""Set by the spawner as JSON, ``{"template": str, "tools": {name: [package]}}``, and checked by the catalog."""
INSTALL_SECONDS = 1800.0
"""Time limit of one environment. Arbitrary: longer work belongs into an image."""
LOOK_SECONDS = 2.0
VERSION = ".".join(map(str, sys.version_info[:2]))


@dataclass(frozen=True)
class Tool:
    """A selected tool and the folder of its environment."""

    name: str
    packages: tuple[str, ...]
    folder: Path

    @property
    def data(self) -> Path:
        """The folder of its kernel for JUPYTER_PATH."""
        return self.folder / "share" / "jupyter"

    @property
    def is_whole(self) -> bool:
        """Whether the environment is complete. The kernel's description is written last."""
        return (self.data / "kernels" / self.name / "kernel.json").exists()


def ticked(environ: Mapping[str, str], own: Path) -> list[Tool]:
    """Return the selected tools of this workspace. ``own`` is ``~/.gpuspawner``.

    Raises:
        ValueError: The variable has another form than the spawner's.
    """
    if not (text := environ.get(VARIABLE, "")):
        return []
    try:
        told = json.loads(text)
        below = own / "tools" / told["template"] / f"python{VERSION}"
        wanted = {name: tuple(packages) for name, packages in told["tools"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{VARIABLE} is not what a spawner sets") from error
    return [Tool(name, packages, below / f"{name}-{_digest(packages)}") for name, packages in wanted.items()]


def show_kernels(tools: Sequence[Tool], environ: MutableMapping[str, str], folders: list[str]) -> None:
    """Let this server find their kernels once they are made, and its child processes by JUPYTER_PATH."""
    for tool in tools:
        folders.append(str(tool.data / "kernels"))
        before = environ.get("JUPYTER_PATH")
        environ["JUPYTER_PATH"] = f"{before}{os.pathsep}{tool.data}" if before else str(tool.data)


async def install(tool: Tool, environ: Mapping[str, str], longest_seconds: float = INSTALL_SECONDS) -> Outcome:
    """Make an environment unless it exists. Return why it failed, or "", and the last line of the output.

    If another workspace of the same home is making it, wait for that.
    """
    log = tool.folder.with_name(f"{tool.folder.name}.log")
    try:
        tool.folder.parent.mkdir(parents=True, exist_ok=True)
        async with _alone(tool.folder.with_name(f"{tool.folder.name}.lock"), longest_seconds):
            return Outcome("", "") if tool.is_whole else await _made(tool, log, environ, longest_seconds)
    except TimeoutError:
        return Outcome(f"another workspace has been installing it for {longest_seconds:g} s", "")
    except OSError as error:
        return Outcome(f"it can't be put there ({error.strerror})", "")


async def _made(tool: Tool, log: Path, environ: Mapping[str, str], longest_seconds: float) -> Outcome:
    await asyncio.to_thread(shutil.rmtree, tool.folder, ignore_errors=True)  # an unfinished environment
    python, home = str(tool.folder / "bin" / "python"), tool.folder.parent
    outcome = await run((sys.executable, "-m", "venv", str(tool.folder)), home, log, environ, longest_seconds)
    if not outcome.failure:
        _see_own_packages(tool.folder)
        pip = (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")
        outcome = await run((*pip, "ipykernel", *tool.packages), home, log, environ, longest_seconds)
    if outcome.failure:
        await asyncio.to_thread(shutil.rmtree, tool.folder, ignore_errors=True)
        return outcome
    _describe(tool, python)
    return Outcome("", "")


def _see_own_packages(folder: Path) -> None:
    """Let an environment use the packages of this server's Python after its own."""
    packages = folder / "lib" / f"python{VERSION}" / "site-packages"
    (packages / "gpuspawner-server.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))


def _describe(tool: Tool, python: str) -> None:
    description = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"{tool.name} (Python {VERSION})",
        "language": "python",
        "metadata": {"debugger": True},
    }
    part = tool.data / "kernels" / f".{tool.name}"
    part.mkdir(parents=True)
    (part / "kernel.json").write_text(json.dumps(description))
    part.rename(part.with_name(tool.name))


@contextlib.asynccontextmanager
async def _alone(file: Path, longest_seconds: float) -> AsyncIterator[None]:
    """Hold a lock that ends with this process. Continue without it if the home's file system has no locks.

    Raises:
        TimeoutError: Another process held it for the whole time.
    """
    end = asyncio.get_running_loop().time() + longest_seconds
    with file.open("w") as opened:
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if asyncio.get_running_loop().time() >= end:
                    raise TimeoutError from None
                await asyncio.sleep(LOOK_SECONDS)
                continue
            except OSError as error:
                if error.errno not in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}:
                    raise
            break
        yield


def _digest(packages: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(packages).encode()).hexdigest()[:8]
