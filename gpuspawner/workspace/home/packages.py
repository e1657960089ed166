"""Packages of a user: those installed into the image, and the environments of selected tools.

Packages that a user installs into an image are listed, compared with the image, and installed again. Packages in the
home (``pip install --user``, virtual environments) need none of this.

Each selected tool has a kernel with its own environment, made once for its list of packages in
``~/.gpuspawner/tools/TEMPLATE/pythonX.Y/NAME-DIGEST``. It includes the packages of the server's own Python, so that an
image's PyTorch is not installed again. Only unfinished environments are ever deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import site
import sys
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuspawner.workspace.home.own_files import Outcome, run

INSTALL_SECONDS = 1800.0
"""Time limit for all packages, and for one environment. Arbitrary: longer work belongs into an image."""

Versions = Mapping[tuple[str, str], str]
"""The version of each package by ``pip`` or ``conda`` and name."""
_NAME, _VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


class Package(NamedTuple):
    """A package that the user installed into the image, by ``pip`` or ``conda``."""

    by: str
    name: str
    version: str

    @property
    def words(self) -> str:
        """Return its name and version for the user."""
        return f"{self.name} {self.version}"


class Image:
    """The packages of this server's own Python, at its start and now."""

    def __init__(self, home: Path) -> None:
        """List the packages of the image or the machine."""
        prefix = Path(sys.prefix).resolve()
        self._in_home = prefix.is_relative_to(home.resolve())
        self._folders = [] if self._in_home else [*map(Path, site.getsitepackages()), Path(sys.prefix, "conda-meta")]
        self._stamp: tuple[int, ...] = ()
        self._now: Versions = {}
        self.had = self.now()

    def now(self) -> Versions:
        """Return the current packages. They are listed again only if a folder has changed."""
        stamp = tuple(_changed(folder) for folder in self._folders)
        if stamp != self._stamp:
            self._stamp, self._now = stamp, _installed(self._folders)
        return self._now


class UserPackages:
    """The user's packages: those of the last session, and those installed since the start."""

    def __init__(self, image: Image, last: Sequence[Package]) -> None:
        """Compare the last session with the image."""
        self._image, had = image, image.had
        self.missing = [one for one in last if not _has(had, one.name)]
        self.others = [one for one in last if _has(had, one.name) and had.get((one.by, one.name)) != one.version]
        """Packages of which the image has another version. The image's version is kept."""
        self._kept = {(x.by, x.name): x.version for x in last if x not in self.others}
        self._seen: set[tuple[str, str]] = set()

    def now(self) -> tuple[Package, ...]:
        """Return the packages to save: without uninstalled ones, but with those that could not be installed again."""
        now, had = self._image.now(), self._image.had
        self._seen |= now.keys()
        kept = {key: version for key, version in self._kept.items() if key in now or key not in self._seen}
        kept |= {key: version for key, version in now.items() if had.get(key) != version}
        return tuple(Package(by, name, now.get((by, name), version)) for (by, name), version in sorted(kept.items()))


async def install_packages(
    packages: Sequence[Package], home: Path, log: Path, environ: Mapping[str, str]
) -> tuple[list[Package], str]:
    """Install packages in their versions. Return the failed ones and the last line of the output."""
    failed = [one for one in packages if not (_NAME.fullmatch(one.name) and _VERSION.fullmatch(one.version))]
    printed = ""
    until = asyncio.get_running_loop().time() + INSTALL_SECONDS
    for by in ("conda", "pip"):  # pip's packages are installed after conda's
        groups = [[one for one in packages if one.by == by and one not in failed]]
        while groups:
            group = groups.pop(0)
            left_seconds = until - asyncio.get_running_loop().time()
            program = _program(by, group) if left_seconds > 1 else ()
            if not group:
                continue
            failure, line = await run(program, home, log, environ, left_seconds) if program else ("no time", "")
            if failure and len(group) > 1:
                groups += [[one] for one in group]  # one unavailable package must not prevent the others
            elif failure:
                failed, printed = [*failed, *group], line or printed
    return failed, printed


def _program(by: str, group: Sequence[Package]) -> Sequence[str]:
    if by == "pip":
        # The list also contains all dependencies. The image's own packages are not changed.
        pip = (sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps")
        return (*pip, *(f"{one.name}=={one.version}" for one in group))
    conda = find_conda()
    if not conda:
        return ()
    return (conda, "install", "--yes", "--quiet", "--prefix", sys.prefix, *(f"{x.name}={x.version}" for x in group))


def find_conda() -> str:
    """Return the program that installs conda packages into this server's Python, or ""."""
    folder = os.pathsep.join([str(Path(sys.prefix, "bin")), str(Path(sys.prefix, "condabin"))])
    return os.environ.get("CONDA_EXE") or shutil.which("conda", path=folder) or shutil.which("conda") or ""


def _has(versions: Versions, name: str) -> bool:
    return ("pip", name) in versions or ("conda", name) in versions


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _installed(folders: Sequence[Path]) -> Versions:
    """Return the packages in folders. A package from an address or a folder has no name to install it by."""
    found: dict[tuple[str, str], str] = {}
    for file in (file for folder in folders for file in folder.glob("*.json") if folder.name == "conda-meta"):
        name, version, _build = [*file.stem.rsplit("-", 2), "", ""][:3]
        found["conda", name] = version
    for one in (one for folder in folders for one in folder.glob("*.dist-info")):
        name, _, version = one.stem.rpartition("-")
        if name and not (one / "direct_url.json").exists() and not _is_condas(one):
            found["pip", re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def _is_condas(folder: Path) -> bool:
    try:
        return (folder / "INSTALLER").read_text().strip() == "conda"
    except OSError:
        return False


TOOLS_VARIABLE = "GPUSPAWNER_TOOLS"
"""Set by the spawner as JSON, ``{"template": str, "tools": {name: [package]}}``, and checked by the catalog."""
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


def selected_tools(environ: Mapping[str, str], own: Path) -> list[Tool]:
    """Return the selected tools of this workspace. ``own`` is ``~/.gpuspawner``.

    Raises:
        ValueError: The variable has another form than the spawner's.
    """
    if not (text := environ.get(TOOLS_VARIABLE, "")):
        return []
    try:
        told = json.loads(text)
        below = own / "tools" / told["template"] / f"python{VERSION}"
        wanted = {name: tuple(packages) for name, packages in told["tools"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{TOOLS_VARIABLE} is not what a spawner sets") from error
    return [Tool(name, packages, below / f"{name}-{_digest(packages)}") for name, packages in wanted.items()]


def show_kernels(tools: Sequence[Tool], environ: MutableMapping[str, str], folders: list[str]) -> None:
    """Let this server find their kernels once they are made, and its child processes by JUPYTER_PATH."""
    for tool in tools:
        folders.append(str(tool.data / "kernels"))
        before = environ.get("JUPYTER_PATH")
        environ["JUPYTER_PATH"] = f"{before}{os.pathsep}{tool.data}" if before else str(tool.data)


async def install_tool(tool: Tool, environ: Mapping[str, str], longest_seconds: float = INSTALL_SECONDS) -> Outcome:
    """Make an environment unless it exists. Return why it failed, or "", and the last line of the output.

    If another workspace of the same home is making it, wait for that.
    """
    log = tool.folder.with_name(f"{tool.folder.name}.log")
    try:
        tool.folder.parent.mkdir(parents=True, exist_ok=True)
        async with _alone(tool.folder.with_name(f"{tool.folder.name}.lock"), longest_seconds):
            return Outcome("", "") if tool.is_whole else await _make_environment(tool, log, environ, longest_seconds)
    except TimeoutError:
        return Outcome(f"another workspace has been installing it for {longest_seconds:g} s", "")
    except OSError as error:
        return Outcome(f"it can't be put there ({error.strerror})", "")


async def _make_environment(tool: Tool, log: Path, environ: Mapping[str, str], longest_seconds: float) -> Outcome:
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
