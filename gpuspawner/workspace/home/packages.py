"""Packages that a user installs into an image: list them, compare them with the image, and install them again.

Packages in the home (``pip install --user``, virtual environments) need none of this.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuspawner.workspace.home.own_files import run
from gpuspawner.workspace.home.session import Package

INSTALL_SECONDS = 1800.0
"""Time limit for all packages. Arbitrary: longer work belongs into an image."""

Versions = Mapping[tuple[str, str], str]
"""The version of each package by ``pip`` or ``conda`` and name."""
_NAME, _VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


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


class Wanted:
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


async def install(
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
