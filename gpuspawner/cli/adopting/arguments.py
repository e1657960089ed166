"""``gpuspawner server init`` and ``import``: their options."""

from __future__ import annotations

import argparse
from typing import Any

import click

from gpuspawner.cli import base


@base.command(
    "init",
    examples="""\
gpuspawner server init                                   this machine's GPUs, into catalog.yaml
gpuspawner server init gpu/catalog.yaml
gpuspawner server init - --kubernetes                    the GPUs of the cluster that kubectl asks, printed""",
)
@click.argument("file", metavar="[FILE]", required=False, default="catalog.yaml")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--kubernetes", is_flag=True, help="Of a cluster: the GPUs that its nodes advertise.")
@base.cluster_options
def init(**options: Any) -> int:
    """Write a first catalog of the GPUs of this machine or a cluster.

    FILE is catalog.yaml by default; - prints the catalog.
    """
    from gpuspawner.cli.adopting.init import init as run  # noqa: PLC0415 - help needs none of it

    return run(argparse.Namespace(**options))


@base.command(
    "import",
    examples="""\
gpuspawner server import values.yaml                     into catalog.yaml
gpuspawner server import jupyterhub_config.py -          printed""",
)
@click.argument("source", metavar="FILE")
@click.argument("file", metavar="[CATALOG]", required=False, default="catalog.yaml")
@click.option("--force", is_flag=True, help="Replace CATALOG if it exists.")
def import_profiles(**options: Any) -> int:
    """Make a catalog of KubeSpawner's profiles.

    FILE is the values of a Zero to JupyterHub release (singleuser.profileList), a jupyterhub_config.py with
    c.KubeSpawner.profile_list, which is read and not run, or a JSON file with the result of your function. Profiles
    with choices, also those of jupyterhub-fancy-profiles, become templates with images and sizes. Everything that
    cannot be converted is named. CATALOG is catalog.yaml by default; - prints the catalog.
    """
    from gpuspawner.cli.importing.command import import_profiles as run  # noqa: PLC0415 - help needs none of it

    return run(argparse.Namespace(**options))
