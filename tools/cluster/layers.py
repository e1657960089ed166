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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tools.cluster.build import cache, one_at_a_time, run_with_progress
from tools.cluster.images import Layer, write_archive, write_layer
from tools.install import ROOT
from tools.progress import StepError, say

SUITE = "bookworm"
PYTHON = "3.11"
"""The suite's own."""
RECIPE = ROOT / "images" / "workspace"
"""How administrators build the workspaces' image; what is here is read from there."""
DEBIAN = (RECIPE / "debian.txt").read_text().split()
LAYER, DIGEST = "layer.tar.zst", "digest"
UNNEEDED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists", "var/log")
COMPRESS = ("zstd", "--quiet", "--threads=0", "-3")
"""Under a third of the bytes to pull and to keep, for 17 s of a processor where all layers are built. A seventh less of
them (-9) takes 58 s."""
IN_CHROOT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}


def ensure_layer(name: str, build: Callable[[Path], None], *recipe: str) -> Layer:
    """Return the layer that ``build`` packs in the folder that it is given, once for each recipe.

    Raises:
        StepError: it could not be built.
    """
    known = repr((COMPRESS, *recipe))
    done = cache() / f"layer-{name}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
    if not done.exists():
        with one_at_a_time(done.name):
            if not done.exists():
                work = done.with_name(f"{done.name}.partial")
                work.mkdir()
                build(work)
                work.rename(done)
    return Layer(done / LAYER, (done / DIGEST).read_text())


def ensure_debian() -> Layer:
    """Return the first layer of every image: Debian, with the users of the workspaces' image.

    Raises:
        StepError: it could not be built.
    """
    return ensure_layer("debian", _build_debian, SUITE, *DEBIAN, *UNNEEDED, (RECIPE / "setup-users").read_text())


def write_image(
    folder: Path, name: str, layers: Sequence[Layer], files: Mapping[str, Path], config: Mapping[str, Any]
) -> tuple[str, Path]:
    """Write the archive of an image in ``folder``: cached ``layers``, and one of ``files`` by their path in the image.

    Returns:
        Its whole name, which changes with its contents, and the archive.
    """
    title = name.rpartition("/")[2]
    archive = folder / f"{title}.tar"
    last = write_layer(folder / f"{title}.layer.tar", files, PYTHON)
    known = f"{[layer.digest for layer in (*layers, last)]} {config}"
    tag = hashlib.sha256(known.encode()).hexdigest()[:12]
    write_archive(archive, f"{name}:{tag}", [*layers, last], config)
    last.file.unlink()
    return f"{name}:{tag}", archive


@contextmanager
def unpacked(work: Path, base: Layer) -> Iterator[Path]:
    """Give the root of a file system that holds the layer ``base``, to change and then to `pack`."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        unpack = ["tar", "--extract", "--zstd", "--numeric-owner", f"--file={base.file}", f"--directory={root}"]
        subprocess.run(unpack, check=True)
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


def pack(root: Path, work: Path, what: str) -> None:
    """Write the content of the path ``what`` in ``root`` as the layer in ``work``.

    Raises:
        StepError: it could not be written.
    """
    tar = ["tar", "--create", "--sort=name", "--numeric-owner", f"--directory={root}", what]
    layer, digest, size_bytes = work / LAYER, hashlib.sha256(), 0
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing, layer.open("wb") as file:
        assert packing.stdout
        with subprocess.Popen(COMPRESS, stdin=subprocess.PIPE, stdout=file) as compressing:
            assert compressing.stdin
            with suppress(BrokenPipeError), compressing.stdin as stream:
                while part := packing.stdout.read(1 << 20):
                    digest.update(part)
                    size_bytes += len(part)
                    stream.write(part)
    if packing.returncode or compressing.returncode:
        raise StepError(f"{layer} could not be written: is the disk full?")
    (work / DIGEST).write_text(f"sha256:{digest.hexdigest()}")
    name = work.name.removesuffix(".partial")
    say(f"     {name}: {size_bytes >> 20} MiB, {layer.stat().st_size >> 20} MiB by zstd")


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
    pack(root, work, ".")
    shutil.rmtree(root)
