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
IMPORT_EPILOG = """\
FILE is the values of a Zero to JupyterHub release (singleuser.profileList), a jupyterhub_config.py with
c.KubeSpawner.profile_list, which is read and not run, or a JSON file with what a function of yours returned. Profiles
with choices, also those of jupyterhub-fancy-profiles, become templates with images and sizes. What can't is named.

examples:
  gpuspawner import values.yaml                     into catalog.yaml
  gpuspawner import jupyterhub_config.py -          printed
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
    importing = commands.add_parser(
        "import",
        help="make a catalog of KubeSpawner's profiles",
        epilog=IMPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    importing.add_argument("source", metavar="FILE", help="where the profiles are written")
    importing.add_argument(
        "file", metavar="CATALOG", nargs="?", default="catalog.yaml", help="default: %(default)s; - prints it"
    )
    importing.add_argument("--force", action="store_true", help="replace CATALOG where it is there")
    importing.set_defaults(run="gpuspawner.cli.importing.command:import_profiles")


def add_cluster(parser: Any) -> None:
    """Add the way to a cluster."""
    way = "(default: $KUBECONFIG, ~/.kube/config, or the account of the pod that this runs in)"
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"how to reach the cluster {way}")
    parser.add_argument("--context", metavar="NAME", help="of that file (default: its current one)")
