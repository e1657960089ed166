"""What ``gpuspawner doctor`` takes."""

from __future__ import annotations

import argparse
import os
from typing import Any

from gpuspawner.cli.adopting.arguments import add_cluster

EPILOG = """\
Asks with --token-file, --secret-file, $GPUSPAWNER_TOKEN or $JUPYTERHUB_API_TOKEN. By the service's own token it judges
the service's scopes, by an administrator's the hub's other services. It changes nothing, and exits with 1 where
anything is bad.

examples:
  gpuspawner doctor --secret-file gpuspawner-data/secret --catalog catalog.yaml
  gpuspawner doctor --kubernetes --namespace jhub --as system:serviceaccount:jhub:hub \\
      --hub http://127.0.0.1:8081/hub/api --service http://127.0.0.1:9470 --catalog catalog.yaml
"""


def add_doctor(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="look at hub, service and cluster, and say what to mend",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hub = os.environ.get("JUPYTERHUB_API_URL", "http://127.0.0.1:8081/hub/api")
    parser.add_argument("--hub", metavar="URL", default=hub, help="the hub's API (default: %(default)s)")
    usual = "http://127.0.0.1:9470"
    parser.add_argument("--service", metavar="URL", default=usual, help="the service's own port (default: %(default)s)")
    parser.add_argument("--token-file", metavar="FILE", help="a token of the hub")
    parser.add_argument(
        "--secret-file", metavar="FILE", help="the secret of hub and service: the service's token is of it"
    )
    parser.add_argument("--catalog", metavar="FILE", help="judge whether its kinds are there")
    parser.add_argument("--kubernetes", action="store_true", help="look at a cluster, too")
    add_cluster(parser)
    parser.add_argument("--namespace", metavar="NAME", default="jhub", help="the workspaces' (default: %(default)s)")
    parser.add_argument(
        "--as", dest="account", metavar="ACCOUNT", help="judge the rights of this account, as kubectl --as"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run="gpuspawner.cli.doctor.command:doctor")
