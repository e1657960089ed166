"""Layers of images that change seldom, built once for each recipe into the cache, and images of them.

The last layer of an image is this checkout's package, written each time.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.cluster.build import cache, one_at_a_time, run_with_progress
from tools.cluster.images import write_archive, write_layer
from tools.install import ROOT
from tools.progress import StepError, say

SUITE = "bookworm"
PYTHON = "3.11"
"""The suite's own."""
RECIPE = ROOT / "images" / "workspace"
"""How administrators build the workspaces' image; what is here is read from there."""
DEBIAN = (RECIPE / "debian.txt").read_text().split()
UNNEEDED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists", "var/log")
IN_CHROOT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}


def ensure_layer(name: str, build: Callable[[Path], None], *recipe: str) -> Path:
    """Return the layer that ``build`` makes, as ``layer.tar`` in the folder that it is given, once for each recipe.

    Raises:
        StepError: it could not be built.
    """
    done = cache() / f"layer-{name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"
    if not done.exists():
        with one_at_a_time(done.name):
            if not done.exists():
                work = done.with_name(f"{done.name}.partial")
                work.mkdir()
                build(work)
                work.rename(done)
    return done / "layer.tar"


def ensure_debian() -> Path:
    """Return the first layer of every image: Debian, with the users of the workspaces' image.

    Raises:
        StepError: it could not be built.
    """
    return ensure_layer("debian", _build_debian, SUITE, *DEBIAN, *UNNEEDED, (RECIPE / "setup-users").read_text())


def write_image(
    folder: Path, name: str, layers: Sequence[Path], files: Mapping[str, Path], config: Mapping[str, Any]
) -> tuple[str, Path]:
    """Write the archive of an image in ``folder``: cached ``layers``, and one of ``files`` by their path in the image.

    Returns:
        Its whole name, which changes with its contents, and the archive.
    """
    title = name.rpartition("/")[2]
    last, archive = folder / f"{title}.layer.tar", folder / f"{title}.tar"
    write_layer(last, files)
    known = f"{[layer.parent.name for layer in layers]} {config}".encode()
    tag = hashlib.sha256(known + last.read_bytes()).hexdigest()[:12]
    write_archive(archive, f"{name}:{tag}", [*layers, last], config)
    last.unlink()
    return f"{name}:{tag}", archive


@contextmanager
def unpacked(work: Path, base: Path) -> Iterator[Path]:
    """Give the root of a file system that holds the layer ``base``, to change and then to `pack`."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        subprocess.run(["tar", "--extract", "--numeric-owner", f"--file={base}", f"--directory={root}"], check=True)
        yield root


def install_wheels(title: str, root: Path, prefix: str, wheels: tuple[str, ...], work: Path) -> None:
    """Install ``wheels`` into a virtual environment at ``prefix`` inside ``root``, with the logs in ``work``.

    Raises:
        StepError: they could not be fetched or installed.
    """
    # Fetched by this machine's pip, which knows its package index; the image's own then needs no network.
    with tempfile.TemporaryDirectory(dir=work) as fetcher:
        subprocess.run([sys.executable, "-m", "venv", fetcher], check=True)
        pip: list[str | Path] = [Path(fetcher) / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        fetched = [f"--dest={root}/wheels", f"--python-version={PYTHON}", "--only-binary=:all:", *wheels]
        run_with_progress(f"{title}: wheels", [*pip, "download", *fetched], work / "fetch.log")
    pip_install = f"/{prefix}/bin/pip install --no-index --find-links=/wheels {shlex.join(wheels)}"
    install = f"python3 -m venv /{prefix} && {pip_install}"
    run_with_progress(title, ["chroot", root, "sh", "-ec", install], work / "build.log", IN_CHROOT)


def pack(root: Path, layer: Path, what: str) -> None:
    """Write what lies at the path ``what`` in ``root`` as a layer.

    Raises:
        StepError: it could not be written.
    """
    done = subprocess.run(
        ["tar", "--create", "--sort=name", "--numeric-owner", f"--file={layer}", f"--directory={root}", what],
        check=False,
    )
    if done.returncode:
        raise StepError(f"{layer} could not be written: is the disk full?")
    say(f"     {layer.parent.name.removesuffix('.partial')}: {layer.stat().st_size >> 20} MiB")


def _build_debian(work: Path) -> None:
    root = work / "root"
    command: list[str | Path] = ["debootstrap", "--variant=minbase", f"--include={','.join(DEBIAN)}", SUITE, root]
    run_with_progress(f"Debian {SUITE}", command, work / "build.log")
    for folder in UNNEEDED:
        shutil.rmtree(root / folder, ignore_errors=True)
    for file in ("etc/resolv.conf", "etc/hostname"):
        (root / file).unlink(missing_ok=True)
    setup = (RECIPE / "setup-users").read_text()
    run_with_progress("Its users", ["chroot", root, "sh", "-ec", setup], work / "users.log", IN_CHROOT)
    pack(root, work / "layer.tar", ".")
    shutil.rmtree(root)
