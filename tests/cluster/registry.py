"""A registry of images inside the cluster's network, at localhost: one that lacks, refuses, is busy, or is slow.

Run as ``registry.py PORT ARCHIVE GATE``: it speaks the distribution API to containerd. ``slow/...`` is the archive's
image with one more layer, which is new at each start and does not come whole as long as there is a file GATE.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

SIZE = 2 << 20
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(BaseHTTPRequestHandler):
    """Answers by the first part of an image's name."""

    archive = ""
    gate = ""
    blobs: ClassVar[dict[str, bytes]] = {}
    manifest = b""
    slow = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if len(parts) < 4:
            self._send(200, b"{}")
        elif parts[1] == "private":
            self._send(401, _error("UNAUTHORIZED"), **{"WWW-Authenticate": 'Basic realm="registry"'})
        elif parts[1] == "busy":
            self._send(429, _error("TOOMANYREQUESTS"))
        elif parts[1] == "slow" and parts[-2] == "manifests":
            self._send(200, self.manifest, MANIFEST, **{"Docker-Content-Digest": _digest(self.manifest)})
        elif parts[1] == "slow" and parts[-1] in self.blobs:
            self._send(200, self.blobs[parts[-1]], "application/octet-stream")
        elif parts[1] == "slow" and parts[-2] == "blobs" and self._send_from_archive(parts[-1]):
            pass
        else:
            self._send(404, _error("MANIFEST_UNKNOWN"))

    def _send_from_archive(self, digest: str) -> bool:
        """Send a layer of the archive, which the node may have already and then never asks for."""
        with tarfile.open(self.archive) as stream:
            try:
                file = stream.extractfile(f"blobs/{digest.replace(':', '/')}")
            except KeyError:
                return False
            assert file is not None
            self.send_response(200)
            self.send_header("Content-Length", str(file.seek(0, io.SEEK_END)))
            self.end_headers()
            file.seek(0)
            if self.command != "HEAD":
                shutil.copyfileobj(file, self.wfile, 1 << 20)
        return True

    def _send(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        held = len(body) // 2 if body is self.blobs.get(self.slow) else 0
        self.wfile.write(body[:held])
        while held and Path(self.gate).exists():
            time.sleep(0.1)
        self.wfile.write(body[held:])


def _error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _load(archive: str) -> None:
    """Take the image of an archive, and add a layer that no node has."""
    with tarfile.open(archive) as stream:

        def read(digest: str) -> Any:
            file = stream.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file is not None
            return json.load(file)

        index = stream.extractfile("index.json")
        assert index is not None
        manifest = read(json.load(index)["manifests"][0]["digest"])
        config = read(manifest["config"]["digest"])
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as stream:
        entry = tarfile.TarInfo("opt/slow")
        entry.size = SIZE
        stream.addfile(entry, io.BytesIO(os.urandom(SIZE)))
    blob = layer.getvalue()
    Registry.slow = _digest(blob)
    manifest["layers"].append(
        {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": Registry.slow, "size": len(blob)}
    )
    config["rootfs"]["diff_ids"].append(Registry.slow)
    config_blob = json.dumps(config).encode()
    manifest["config"] |= {"digest": _digest(config_blob), "size": len(config_blob)}
    Registry.manifest = json.dumps(manifest).encode()
    Registry.blobs = {
        Registry.slow: blob,
        _digest(config_blob): config_blob,
        _digest(Registry.manifest): Registry.manifest,
    }


if __name__ == "__main__":
    Registry.archive, Registry.gate = sys.argv[2:]
    _load(Registry.archive)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
