"""A real hub whose service is a process of its own: they share a secret, and no folder."""

import json
import os
import secrets
import subprocess
from collections.abc import Mapping
from types import MappingProxyType

from harness.fork_server import start_python
from harness.hub import REPO, RealHub, eventually
from harness.hub_configuration import CONFIGURE

from gpuspawner.core.authentication import derive_hub_id

APART = """
from gpuspawner.spawner import configure
configure(
    c, catalog={catalog!r}, data_dir="{folder}/hub-data", service_url="http://127.0.0.1:{service_port}",
    secret_file="{folder}/gpu/secret",
)
"""


class HubApart(RealHub):
    """The test starts the service, by its command line."""

    more_options: Mapping[str, str] = MappingProxyType({})
    """More options of the service."""
    service: subprocess.Popen[bytes] | None = None

    def start(self) -> RealHub:
        """Nobody waits for anybody: the service is there before its hub is."""
        self.start_service()
        return super().start()

    def config(self) -> str:
        return super().config().replace(CONFIGURE.format(**self.values()), APART.format(**self.values()))

    def values(self):
        settings = {**self.times, **self.settings}
        return {**vars(self), "catalog": str(self.catalog), "settings": settings}

    def start_service(self) -> None:
        secret, settings = self.folder / "gpu" / "secret", self.folder / "settings.yaml"
        if not secret.exists():
            secret.parent.mkdir(mode=0o700)
            secret.write_text(secrets.token_hex(32))
            hub_id = derive_hub_id(bytes.fromhex(secret.read_text()))
            (secret.parent / "hub-id").write_text(hub_id)  # for the test alone: by it, it finds what runs
        settings.write_text(json.dumps({**self.times, **self.settings}))
        options = {
            "hub": f"http://127.0.0.1:{self.hub_port}/hub/api",
            "service-url": f"http://127.0.0.1:{self.service_port}",
            "catalog": self.catalog,
            "data": self.folder / "gpu-service",
            "secret-file": secret,
            "settings": settings,
            **self.more_options,
        }
        command = [self.python, "-m", "gpuspawner.cli", "server", "serve", *(f"--{k}={v}" for k, v in options.items())]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB_", "GPUSPAWNER_"))}
        with (self.folder / "service.log").open("ab") as log:
            self.service = start_python(
                command,
                real=self.real,
                cwd=self.folder,
                env={**environment, "PYTHONPATH": str(REPO)},
                stdout=log,
                stderr=log,
            )

    def end_service(self, *, crash: bool = False) -> None:
        assert self.service is not None
        (self.service.kill if crash else self.service.terminate)()
        code = self.service.wait(30)
        assert crash or code == 0, (self.folder / "service.log").read_text()[-3000:]

    def until_it_answers(self) -> None:
        eventually(lambda: self.gpu("/"), 90, "the service answers behind its hub")

    def close(self) -> None:
        super().close()
        if self.service is not None:
            self.service.kill()
            self.service.wait()
