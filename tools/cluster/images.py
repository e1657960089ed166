"""Images as archives of the Open Container Initiative, put together without any tool."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
STANDARD = "application/vnd.oci.image"


def write_archive(archive: Path, name: str, layers: Sequence[Path], config: Mapping[str, Any]) -> None:
    """Write ``archive``, an image of that ``name`` of uncompressed tar ``layers``; ``config`` as the standard says."""
    about = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{STANDARD}.manifest.v1+json",
        "config": _describe(f"{STANDARD}.config.v1+json", blob := json.dumps(about).encode()),
        "layers": [_describe(f"{STANDARD}.layer.v1.tar", layer) for layer in layers],
    }
    entry = {
        **_describe(f"{STANDARD}.manifest.v1+json", manifest_blob := json.dumps(manifest).encode()),
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
    }
    with tarfile.open(archive, "w") as stream:
        _add(stream, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(stream, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        contents: tuple[bytes | Path, ...] = (manifest_blob, blob, *layers)
        for content in contents:
            path = f"blobs/{_digest(content).replace(':', '/')}"
            if isinstance(content, bytes):
                _add(stream, path, content)
            else:
                stream.add(content, path)


def write_layer(layer: Path, files: Mapping[str, Path]) -> None:
    """Write a layer of ``files`` and folders by their path in the image: the same bytes for the same contents."""
    with tarfile.open(layer, "w") as stream:
        for path, source in sorted(files.items()):
            found = [source] if source.is_file() else sorted(source.rglob("*"))
            for file in found:
                if file.is_file() and "__pycache__" not in file.parts:
                    inside = path if file == source else f"{path}/{file.relative_to(source)}"
                    _add(stream, inside, file.read_bytes(), file.stat().st_mode & 0o755)


def _add(stream: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    stream.addfile(entry, io.BytesIO(content))


def _describe(media_type: str, content: bytes | Path) -> dict[str, Any]:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    return {"mediaType": media_type, "digest": _digest(content), "size": size}


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    digest = hashlib.sha256()
    with content.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"
