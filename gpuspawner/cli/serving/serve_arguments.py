"""What ``gpuspawner serve`` takes: by option, or by the variable of its name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from gpuspawner.service.log import FORMS

VARIABLE = "GPUSPAWNER_SERVE_"
DESCRIPTION = """\
Runs the service. The hub starts it by itself, unless configure(c, ..., service_url=...) says that it runs as a process
of its own: under systemd, or in a pod. Then it takes --hub, and waits for the hub as the hub waits for it. Of two on
one store one works, and the other takes over within 10 s of its end.

Each option may be given by a variable instead: --secret-file by GPUSPAWNER_SERVE_SECRET_FILE.

On its own port it answers, to whoever asks, 200 or 503 and a line why:
  /healthz   rounds go on; else have it started again
  /readyz    it owns its store and has seen what runs, so that it may give GPUs
"""
EPILOG = """\
examples:
  gpuspawner serve --catalog catalog.yaml --data gpuspawner-data --hub http://127.0.0.1:8081/hub/api
  gpuspawner serve --catalog /etc/gpuspawner/catalog.yaml --data /var/lib/gpuspawner --hub http://hub:8081/hub/api \\
      --secret-file /etc/gpuspawner/secret --service-url http://gpuspawner:9470 --listen 0.0.0.0:9470 \\
      --backend kubernetes
"""


def add_serve(commands: Any, factor: Callable[[str], float]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="run the service (the hub does this by itself, where it is told nothing else)",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = Adder(parser)
    add("--catalog", "FILE", "the catalog, YAML or JSON", required=True)
    add("--data", "DIR", "its database; where hub and service share the folder, also secret and hub id", required=True)
    add_store_address(add)
    add("--fast", "N", "divide every time of the catalog by N", type=factor)
    add(
        "--log-format",
        "FORM",
        "text, or json for one JSON object a line (default: the setting log_format, which is text)",
        choices=FORMS,
    )
    add.into(parser.add_argument_group("as a process of its own"))
    add("--hub", "URL", "the hub's API, such as http://127.0.0.1:8081/hub/api")
    add("--secret-file", "FILE", "the secret that hub and service share, 64 hexadecimal digits (default: DIR/secret)")
    add("--token-file", "FILE", "its token of the hub, as configure() has it (default: made of the secret)")
    add("--hub-id", "ID", "the hub's id, as configure() has it (default: made of the secret, or DIR/hub-id)")
    add("--service-url", "URL", "where the hub reaches it (default: %(default)s)", default="http://127.0.0.1:9470")
    add("--listen", "ADDRESS:PORT", "where it listens (default: what --service-url says)")
    add("--base-url", "PATH", "the hub's base_url (default: %(default)s)", default="/")
    add("--public-url", "URL", "where people open the hub: messages link there")
    add("--metrics-token-file", "FILE", "a token by which Prometheus may read metrics, beside tokens of the hub")
    add(
        "--own-public-url",
        "URL",
        "where people open the service if the hub has subdomain_host: https://gpu--service.hub.example.org. The "
        "hub prints both options at its start",
    )
    add("--settings", "FILE", "YAML: the settings that configure() takes as service_settings")
    add("--backend", "NAME", "where workspaces live: local (default) or kubernetes", choices=["local", "kubernetes"])
    add(
        "--cluster",
        "FILE",
        "YAML: what configure() finds of the cluster in the hub's configuration, and tells: namespace, where "
        "workspaces are made; where KubeSpawner has them, tolerations, node_selector and all_namespaces (a namespace "
        "for each user); outside a pod kubeconfig and context; placement, preferred or required",
    )
    parser.set_defaults(run="gpuspawner.cli.serving.serve:serve")


def add_store_address(add: Callable[..., None]) -> None:
    """Add where the store is."""
    add("--store", "URL", "its database elsewhere: postgresql://USER@HOST/DATABASE (default: a file in DIR)")
    add("--store-password-file", "FILE", "the password for it, read at each connection")


class Adder:
    """Adds options, each with its variable."""

    def __init__(self, parser: Any) -> None:
        self._to = parser

    def into(self, group: Any) -> None:
        """Add what follows to a group."""
        self._to = group

    def __call__(
        self, name: str, metavar: str, text: str, *, required: bool = False, default: str | None = None, **more: Any
    ) -> None:
        """Add one, whose default is that of its variable."""
        given = os.environ.get(VARIABLE + name[2:].upper().replace("-", "_"), default)
        self._to.add_argument(
            name, metavar=metavar, help=text, default=given, required=required and given is None, **more
        )
