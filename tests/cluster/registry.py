"""Debian's registry of images inside a cluster's network, at localhost: open at one port, by a password at another."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import registry_gate
import requests
from harness.hub import eventually

from tools.cluster.cluster import Cluster

PROGRAM = "/usr/bin/docker-registry"
OPEN_PORT, PRIVATE_PORT = registry_gate.OPEN_PORT, 5997
OPEN, PRIVATE = f"localhost:{registry_gate.PORT}", f"localhost:{PRIVATE_PORT}"
USER, PASSWORD = "puller", "of-the-tests"
HASHED = "$2b$05$Y2EYRZo05.J0hmg0jwECv.lsSeFeC9MSXQdYD.ykle9G.EmDxJX9O"
"""The password as the registry wants it: by bcrypt."""
CONFIG = """
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: "{folder}/images"}}}}
http: {{addr: "0.0.0.0:{port}"}}
"""
AUTH = 'auth: {{htpasswd: {{realm: tests, path: "{folder}/passwords"}}}}\n'


@contextlib.contextmanager
def registry(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """Run it over the images in ``folder``; yield the file that shuts its gate while it exists."""
    gate, passwords = folder / "gate", folder / "passwords"
    passwords.write_text(f"{USER}:{HASHED}\n")
    for name, port, auth in (("open", OPEN_PORT, ""), ("private", PRIVATE_PORT, AUTH)):
        config = folder / f"{name}.yml"
        config.write_text((CONFIG + auth).format(folder=folder, port=port))
        cluster.start_process(f"registry-{name}", [PROGRAM, "serve", str(config)])
    cluster.start_process("registry-gate", [sys.executable, registry_gate.__file__, str(gate)])
    for host in (OPEN, PRIVATE):
        known = cluster.folder / "registries" / host
        known.mkdir(parents=True, exist_ok=True)
        (known / "hosts.toml").write_text(f'server = "http://{host}"\n')
    try:
        eventually(lambda: _answers(cluster), 30, "the registry answers")
        yield gate
    finally:
        for name in ("gate", "open", "private"):
            cluster.stop_process(f"registry-{name}")


def push(cluster: Cluster, archive: Path, name: str) -> None:
    """Give the registry the image of an archive (OCI) under a name, tagged 1."""
    with tarfile.open(archive) as stream:

        def blob(digest: str) -> IO[bytes]:
            return _file(stream, f"blobs/{digest.replace(':', '/')}")

        (entry,) = json.load(_file(stream, "index.json"))["manifests"]
        manifest = blob(entry["digest"]).read()
        parts: dict[str, Any] = json.loads(manifest)
        for digest in (part["digest"] for part in (parts["config"], *parts["layers"])):
            begun = requests.post(_url(cluster, name, "blobs/uploads/"), timeout=60)
            begun.raise_for_status()
            where, query = begun.headers["Location"], {"digest": digest}
            requests.put(where, params=query, data=blob(digest), timeout=300).raise_for_status()
        headers = {"Content-Type": parts["mediaType"]}
        where = _url(cluster, name, "manifests/1")
        requests.put(where, data=manifest, headers=headers, timeout=60).raise_for_status()


def pull_secret() -> dict[str, Any]:
    """Return the secret, of the name "registry", that lets pods pull what the password guards."""
    known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    hosts = {"auths": {PRIVATE: {"auth": known}}}
    return {
        "metadata": {"name": "registry"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps(hosts)},
    }


def _file(stream: tarfile.TarFile, path: str) -> IO[bytes]:
    file = stream.extractfile(path)
    assert file is not None
    return file


def _url(cluster: Cluster, name: str, rest: str) -> str:
    return f"http://{cluster.address}:{OPEN_PORT}/v2/{name}/{rest}"


def _answers(cluster: Cluster) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        asked = [requests.get(f"http://{cluster.address}:{port}/v2/", timeout=10) for port in (OPEN_PORT, PRIVATE_PORT)]
        return [answer.status_code for answer in asked] == [200, 401]
    return False
