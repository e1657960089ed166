"""Images as archives of the Open Container Initiative, put together without any tool, and their way into a cluster."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def write_archive(archive: Path, name: str, layers: list[bytes], config: dict[str, Any]) -> None:
    """Write ``archive``, an image of that ``name`` of uncompressed tar ``layers``; ``config`` as the standard says."""
    history = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    blobs = [json.dumps(history).encode(), *(gzip.compress(layer, 1, mtime=0) for layer in layers)]
    kinds = ["config.v1+json", *("layer.v1.tar+gzip" for _ in layers)]
    parts = [
        {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(blob), "size": len(blob)}
        for kind, blob in zip(kinds, blobs, strict=True)
    ]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": parts[0],
            "layers": parts[1:],
        }
    ).encode()
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": _digest(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        **{f"blobs/{_digest(blob).replace(':', '/')}": blob for blob in (manifest, *blobs)},
    }
    archive.write_bytes(tar(files))


def tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    """Return a tar archive of ``files``, the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as stream:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            stream.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
