"""``gpuspawner kube``: chart values, custom resources and their process on Kubernetes."""

from __future__ import annotations

import click

from gpuspawner.cli.base import LazyGroup

COMMANDS = {
    "values": ("cli.kube.values:values", "Print the values that add GPU workspaces to Zero to JupyterHub."),
    "crd": ("cli.kube.objects:crd", "Print the custom resource definitions and their admission policy."),
    "secret": ("cli.kube.objects:secret", "Create or remove Secrets with a random text (for the chart)."),
    "operate": ("cli.kube.operate:operate", "Read and write custom resources for a service that has no right to."),
}


@click.group("kube", cls=LazyGroup, lazy=COMMANDS)
def kube() -> None:
    """For Kubernetes: chart values, custom resources and their process."""
