"""Packages that a user installs into an image: found, compared with what the image has, and installed again.

What lies in the home (``pip install --user``, virtual environments) is there at the next start by itself.
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

from gpuspawner.workspace.home.programs import run
from gpuspawner.workspace.home.session import Package

INSTALL_SECONDS = 1800.0
"""How long all may take. Arbitrary: what takes longer belongs into an image."""

Versions = Mapping[tuple[str, str], str]
"""By ``pip`` or ``conda`` and the name of a package, its version."""
_NAME, _VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


class Image:
    """The packages of this server's own Python: what they were when it started, and what was installed since."""

    def __init__(self, home: Path) -> None:
        """Look for the first time: what is there now is the image's, or lies on the machine."""
        prefix = Path(sys.prefix).resolve()
        self._in_home = prefix.is_relative_to(home.resolve())
        self._folders = [] if self._in_home else [*map(Path, site.getsitepackages()), Path(sys.prefix, "conda-meta")]
        self._stamp: tuple[int, ...] = ()
        self._now: Versions = {}
        self.had = self.now()

    def now(self) -> Versions:
        """Return what is there now, read anew only where a folder has changed."""
        stamp = tuple(_changed(folder) for folder in self._folders)
        if stamp != self._stamp:
            self._stamp, self._now = stamp, _installed(self._folders)
        return self._now


class Wanted:
    """The packages that are its user's: those of the last session, and what was installed since the start."""

    def __init__(self, image: Image, last: Sequence[Package]) -> None:
        """Compare the last session with what the image has."""
        self._image, had = image, image.had
        self.missing = [one for one in last if not _has(had, one.name)]
        self.others = [one for one in last if _has(had, one.name) and had.get((one.by, one.name)) != one.version]
        """Those that the image has in a version of its own: that one stays."""
        self._kept = {(x.by, x.name): x.version for x in last if x not in self.others}
        self._seen: set[tuple[str, str]] = set()

    def now(self) -> tuple[Package, ...]:
        """Return what is to be kept. What was not installed again stays, what was uninstalled does not."""
        now, had = self._image.now(), self._image.had
        self._seen |= now.keys()
        kept = {key: version for key, version in self._kept.items() if key in now or key not in self._seen}
        kept |= {key: version for key, version in now.items() if had.get(key) != version}
        return tuple(Package(by, name, now.get((by, name), version)) for (by, name), version in sorted(kept.items()))


async def install(
    packages: Sequence[Package], home: Path, log: Path, environ: Mapping[str, str]
) -> tuple[list[Package], str]:
    """Install packages as they were; return those that could not be, and the last line of what was printed."""
    failed = [one for one in packages if not (_NAME.fullmatch(one.name) and _VERSION.fullmatch(one.version))]
    printed = ""
    until = asyncio.get_running_loop().time() + INSTALL_SECONDS
    for by in ("conda", "pip"):  # pip's own go on top of conda's
        groups = [[one for one in packages if one.by == by and one not in failed]]
        while groups:
            group = groups.pop(0)
            left_seconds = until - asyncio.get_running_loop().time()
            program = _program(by, group) if left_seconds > 1 else ()
            if not group:
                continue
            failure, line = await run(program, home, log, environ, left_seconds) if program else ("no time", "")
            if failure and len(group) > 1:
                groups += [[one] for one in group]  # one that is to be had no more stands in no other's way
            elif failure:
                failed, printed = [*failed, *group], line or printed
    return failed, printed


def _program(by: str, group: Sequence[Package]) -> Sequence[str]:
    if by == "pip":
        # All that they need is in the list, too: what the image has is left as it is.
        pip = (sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps")
        return (*pip, *(f"{one.name}=={one.version}" for one in group))
    conda = find_conda()
    if not conda:
        return ()
    return (conda, "install", "--yes", "--quiet", "--prefix", sys.prefix, *(f"{x.name}={x.version}" for x in group))


def find_conda() -> str:
    """Return the program that installs conda's packages into this server's Python; "" where the image has none."""
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
    """Return what stands in folders. What was installed from an address or a folder has no name to be asked for by."""
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
