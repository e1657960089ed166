"""What the adopting commands take."""

from __future__ import annotations

import argparse
from typing import Any

INIT_EPILOG = """\
examples:
  gpuspawner init                                   this machine's GPUs, into catalog.yaml
  gpuspawner init gpu/catalog.yaml
  gpuspawner init - --kubernetes                    the GPUs of the cluster that kubectl asks, printed
"""


def add_adopting(commands: Any) -> None:
    """Add the commands."""
    parser = commands.add_parser(
        "init",
        help="write a first catalog of the GPUs that this machine, or a cluster, has",
        epilog=INIT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="catalog.yaml", help="default: %(default)s; - prints it"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE where it is there")
    parser.add_argument("--kubernetes", action="store_true", help="of a cluster: what its nodes advertise")
    add_cluster(parser)
    parser.set_defaults(run="gpuspawner.cli.adopting.init:init")


def add_cluster(parser: Any) -> None:
    """Add the way to a cluster."""
    way = "(default: $KUBECONFIG, ~/.kube/config, or the account of the pod that this runs in)"
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"how to reach the cluster {way}")
    parser.add_argument("--context", metavar="NAME", help="of that file (default: its current one)")
