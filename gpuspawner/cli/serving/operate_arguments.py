"""What ``gpuspawner operate`` takes."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.service.log import FORMS, TEXT

DESCRIPTION = """\
Sees DevGPUVMRequests and writes their status and finalizers, as a process beside the service, which decides: so the
service needs no right to them. It is for a service whose settings of the cluster say `operated_elsewhere: true`; by
itself a service does both. It keeps nothing, and may be ended at any time. Of several one leads.

On its own port it answers, to whoever asks, /healthz: 200 while rounds go on.
"""
EPILOG = """\
example:
  gpuspawner operate --service-url http://gpuspawner:9470 --secret-file /etc/gpuspawner/secret --cluster cluster.yaml

cluster.yaml, the same for it and for the service:
  namespace: jhub              # where workspaces are made
  custom_resources: jhub       # where the requests are
  operated_elsewhere: true     # it sees and writes them, and not the service
  kubeconfig: /etc/kubeconfig  # outside a pod; in one its own account is used
"""


def add_operate(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "operate",
        help="see and write custom resources for a service that does not (Kubernetes)",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--service-url", metavar="URL", required=True, help="where it reaches the service")
    parser.add_argument(
        "--base-url", metavar="PATH", default="/", help="the hub's base_url, as the service has it (default: /)"
    )
    parser.add_argument(
        "--secret-file", metavar="FILE", required=True, help="the secret that hub and service share, as serve takes it"
    )
    parser.add_argument(
        "--cluster", metavar="FILE", required=True, help="YAML: settings of the cluster, as serve takes them"
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9471", help="where it listens (default: %(default)s)"
    )
    parser.add_argument(
        "--log-format",
        choices=FORMS,
        default=TEXT,
        help="text, or json for one JSON object a line (default: %(default)s)",
    )
    parser.set_defaults(run="gpuspawner.cli.serving.operate:operate")
