"""``gpuspawner server serve``: the service, as the hub starts it, or as a process of its own."""

from __future__ import annotations

from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.errors import InvalidError
from gpuspawner.core.errors import CatalogError, NoPort
from gpuspawner.core.text_fields import LOG_FORMATS
from gpuspawner.service.process.backend_choice import BackendError
from gpuspawner.service.process.serve_options import ServeOptions, StartError
from gpuspawner.service.process.start_up import run_service
from gpuspawner.service.settings import SettingsError

CLUSTER_HELP = """\
YAML: the cluster's settings that configure() otherwise finds in the hub's configuration: namespace, where workspaces
are made; tolerations, node_selector and all_namespaces (a namespace for each user), as KubeSpawner has them; outside a
pod kubeconfig and context; placement, preferred or required."""


@base.command(
    "serve",
    context_settings={"auto_envvar_prefix": "GPUSPAWNER_SERVE"},
    examples="""\
gpuspawner server serve --catalog catalog.yaml --data gpuspawner-data --hub http://127.0.0.1:8081/hub/api
gpuspawner server serve --catalog /etc/gpuspawner/catalog.yaml --data /var/lib/gpuspawner \\
    --hub http://hub:8081/hub/api --secret-file /etc/gpuspawner/secret \\
    --service-url http://gpuspawner:9470 --listen 0.0.0.0:9470 --backend kubernetes""",
)
@click.option("--catalog", metavar="FILE", required=True, help="The catalog, YAML or JSON.")
@click.option(
    "--data",
    metavar="DIR",
    required=True,
    help="Its database. If hub and service share the folder, also their secret and hub ID.",
)
@click.option("--store", metavar="URL", help="Its database elsewhere: postgresql://USER@HOST/DATABASE.")
@click.option("--store-password-file", metavar="FILE", help="The password for --store, read at each connection.")
@click.option("--fast", metavar="N", type=click.FloatRange(1, 3600), help="Divide every time of the catalog by N.")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    help="Text, or one JSON object for each line. Default: the setting log_format, which is text.",
)
@click.option("--hub", metavar="URL", help="The hub's API, for example http://127.0.0.1:8081/hub/api.")
@click.option("--secret-file", metavar="FILE", help="The secret of hub and service. Default: DIR/secret.")
@click.option("--token-file", metavar="FILE", help="Its token of the hub. Default: made of the secret.")
@click.option("--hub-id", metavar="ID", help="The hub's ID. Default: made of the secret, or DIR/hub-id.")
@click.option(
    "--service-url",
    metavar="URL",
    default="http://127.0.0.1:9470",
    show_default=True,
    help="Where the hub reaches it.",
)
@click.option("--listen", metavar="ADDRESS:PORT", help="Where it listens. Default: what --service-url says.")
@click.option("--base-url", metavar="PATH", default="/", show_default=True, help="The hub's base_url.")
@click.option("--public-url", metavar="URL", help="Where people open the hub. Messages link there.")
@click.option(
    "--metrics-token-file", metavar="FILE", help="A token for Prometheus to read metrics. Tokens of the hub also work."
)
@click.option(
    "--own-public-url",
    metavar="URL",
    help="Where people open the service if the hub has subdomain_host: https://gpu--service.hub.example.org. The hub "
    "prints both addresses at its start.",
)
@click.option("--settings", metavar="FILE", help="YAML: the settings that configure() takes as service_settings.")
@click.option("--backend", type=click.Choice(("local", "kubernetes")), help="Where workspaces live. Default: local.")
@click.option("--cluster", metavar="FILE", help=CLUSTER_HELP)
def serve(**options: Any) -> None:
    """Run the service. Usually the hub starts it.

    With configure(c, ..., service_url=...) the service is a process of its own, under systemd or in a pod. It then
    needs --hub. Hub and service wait for each other. If two share a store, one works, and the other takes over within
    10 s of its end.

    A variable can replace each option, for example GPUSPAWNER_SERVE_SECRET_FILE for --secret-file.

    On its own port it answers to everybody, with a line that says why:

    \b
      /healthz   200 while rounds go on. 503 means that a restart would help.
      /readyz    200 once it owns its store and has seen what runs, so that it can grant GPUs.
    """  # noqa: D301 - click does not wrap a paragraph with this character
    try:
        run_service(ServeOptions(**options))
    except CatalogError as error:
        raise InvalidError(str(error)) from error
    except (StartError, BackendError, SettingsError, NoPort) as error:
        raise InvalidError(f"gpuspawner server serve: {error}") from error
