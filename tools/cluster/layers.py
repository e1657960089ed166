"""Layers and images as archives of the Open Container Initiative, made without a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any

from tools.cluster.build import cache, one_at_a_time, run_with_progress
from tools.install import ROOT
from tools.progress import StepError, say

CACHE_TAG = sys.implementation.cache_tag
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
STANDARD = "application/vnd.oci.image"
UNCHECKED = (1).to_bytes(4, "little")
"""Of bytecode that Python takes without a look at its source (PEP 552)."""
WITHOUT_REFERENCES = 2
"""The newest format of `marshal` that depends on nothing else in the process."""


@dataclass(frozen=True)
class Layer:
    """The file of a layer, a tar or by its suffix one that zstd made smaller, and the digest of the tar itself."""

    file: Path
    digest: str

    @property
    def media_type(self) -> str:
        """The media type of this file in the OCI standard."""
        return f"{STANDARD}.layer.v1.tar{'+zstd' if self.file.suffix == '.zst' else ''}"


def write_archive(archive: Path, name: str, layers: Sequence[Layer], config: Mapping[str, Any]) -> None:
    """Write ``archive``, an image of that ``name`` and those ``layers``; ``config`` as the standard says."""
    files = [_blob(layer.media_type, layer.file) for layer in layers]
    about = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
    }
    about_file = _blob(f"{STANDARD}.config.v1+json", about_blob := json.dumps(about).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{STANDARD}.manifest.v1+json",
        "config": about_file,
        "layers": files,
    }
    entry = {
        **_blob(f"{STANDARD}.manifest.v1+json", manifest_blob := json.dumps(manifest).encode()),
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
    }
    with tarfile.open(archive, "w") as stream:
        _add(stream, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(stream, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _add(stream, _path(entry), manifest_blob)
        _add(stream, _path(about_file), about_blob)
        for file, layer in zip(files, layers, strict=True):
            stream.add(layer.file, _path(file))


def write_layer(file: Path, files: Mapping[str, Path], python: str = "") -> Layer:
    """Write a layer of ``files`` and folders by their path in the image: the same bytes for the same contents.

    Where ``python`` is the version that runs here, modules are compiled: no user of the image may write there, and each
    process would compile all that it imports.
    """
    compiles = python == f"{sys.version_info.major}.{sys.version_info.minor}"
    with tarfile.open(file, "w") as stream:
        for path, source in sorted(files.items()):
            found = [source] if source.is_file() else sorted(source.rglob("*"))
            for one in found:
                if one.is_file() and "__pycache__" not in one.parts:
                    inside = path if one == source else f"{path}/{one.relative_to(source)}"
                    _add(stream, inside, one.read_bytes(), one.stat().st_mode & 0o755)
                    if compiles and one.suffix == ".py":
                        folder, _, name = inside.rpartition("/")
                        _add(stream, f"{folder}/__pycache__/{name[:-3]}.{CACHE_TAG}.pyc", _bytecode(one))
    return Layer(file, _digest(file))


def _bytecode(source: Path) -> bytes:
    """Return a module's bytecode, the same bytes each time."""
    code = SourceFileLoader(source.stem, str(source)).get_code(source.stem)  # what this machine compiled serves, too
    return MAGIC_NUMBER + UNCHECKED + source_hash(source.read_bytes()) + marshal.dumps(code, WITHOUT_REFERENCES)


def _add(stream: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    stream.addfile(entry, io.BytesIO(content))


def _blob(media_type: str, content: bytes | Path) -> dict[str, Any]:
    """Describe a part of the archive as the standard does."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    return {"mediaType": media_type, "digest": _digest(content), "size": size}


def _path(blob: Mapping[str, Any]) -> str:
    return f"blobs/{blob['digest'].replace(':', '/')}"


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    digest = hashlib.sha256()
    with content.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"


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
