"""Certificates and kubeconfigs of one cluster. openssl makes new ones at each start."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

ELLIPTIC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650")


class Authority:
    """One certificate authority in ``folder``, made there if that is new, and what it signed: NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.exists():
            self._make()

    def _make(self) -> None:
        folder = self.folder
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        # A configuration of our own: the machine's may set what an authority must not have.
        (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = name\n[name]\n")
        self._request("ca", "/CN=gpuspawner-test-cluster", ("-addext", "basicConstraints=critical,CA:TRUE"))
        name = "service-accounts"
        _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.path(name, "key"))
        _openssl("pkey", "-in", self.path(name, "key"), "-pubout", "-out", self.path(name, "pub"))

    def path(self, name: str, kind: str = "crt") -> str:
        """Return the path of ``name``'s certificate, or with "key" of its key."""
        return str(self.folder / f"{name}.{kind}")

    def issue(self, name: str, subject: str, addresses: tuple[str, ...] = ()) -> None:
        """Sign a certificate for both ends of a connection; ``addresses`` like "IP:127.0.0.1" or "DNS:localhost"."""
        extensions = ["basicConstraints=CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
        extensions += [f"subjectAltName={','.join(addresses)}"] if addresses else []
        signed = ("-CA", self.path("ca"), "-CAkey", self.path("ca", "key"))
        self._request(name, subject, (*signed, *(word for text in extensions for word in ("-addext", text))))

    def write_kubeconfig(self, path: Path, server: str, name: str) -> Path:
        """Write a kubeconfig, whole in itself, with which ``name`` speaks to ``server``; return its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "gpuspawner",
            "contexts": [{"name": "gpuspawner", "context": {"cluster": "gpuspawner", "user": name}}],
            "clusters": [
                {
                    "name": "gpuspawner",
                    "cluster": {"server": server, "certificate-authority-data": _base64(self.path("ca"))},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _base64(self.path(name)),
                        "client-key-data": _base64(self.path(name, "key")),
                    },
                }
            ],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path

    def _request(self, name: str, subject: str, arguments: tuple[str, ...]) -> None:
        out = ("-keyout", self.path(name, "key"), "-out", self.path(name))
        config = ("-config", str(self.folder / "openssl.cnf"))
        _openssl("req", "-x509", *config, *ELLIPTIC, *out, "-subj", subject, *arguments)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _base64(path: str) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()
