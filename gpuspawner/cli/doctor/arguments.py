"""``gpuspawner server doctor``: its options."""

from __future__ import annotations

import argparse
from typing import Any

import click

from gpuspawner.cli import base


@base.command(
    "doctor",
    examples="""\
gpuspawner server doctor --secret-file gpuspawner-data/secret --catalog catalog.yaml
gpuspawner server doctor --kubernetes --namespace jhub --as system:serviceaccount:jhub:hub \\
    --hub http://127.0.0.1:8081/hub/api --service http://127.0.0.1:9470 --catalog catalog.yaml""",
)
@click.option(
    "--hub",
    metavar="URL",
    envvar="JUPYTERHUB_API_URL",
    default="http://127.0.0.1:8081/hub/api",
    show_default=True,
    help="The hub's API.",
)
@click.option(
    "--service", metavar="URL", default="http://127.0.0.1:9470", show_default=True, help="The service's own port."
)
@click.option("--token-file", metavar="FILE", help="A file with a token of the hub.")
@click.option("--secret-file", metavar="FILE", help="The secret of hub and service, which makes the service's token.")
@click.option("--catalog", metavar="FILE", help="Check whether its GPU kinds exist.")
@click.option("--kubernetes", is_flag=True, help="Examine a cluster, too.")
@base.cluster_options
@click.option("--namespace", metavar="NAME", default="jhub", show_default=True, help="The workspaces' namespace.")
@click.option("--as", "account", metavar="ACCOUNT", help="Check the rights of this account, as kubectl --as does.")
@click.option("--json", is_flag=True, help="Print JSON.")
def doctor(**options: Any) -> int:
    """Examine hub, service and cluster, and say what to repair.

    The token comes from --token-file, --secret-file, $GPUSPAWNER_TOKEN or $JUPYTERHUB_API_TOKEN. With the service's
    own token the command checks the service's scopes, with an administrator's also the hub's other services. It
    changes nothing. The exit code is 1 if anything is bad.
    """
    from gpuspawner.cli.doctor.command import doctor as run  # noqa: PLC0415 - help needs none of it

    return run(argparse.Namespace(**options))
