"""Images as archives of the Open Container Initiative, put together without any tool."""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import platform
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any

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
