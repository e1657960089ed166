"""``gpuspawner server init``: a first catalog of the GPUs of this machine or of a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from gpuspawner.adoption.discovered_gpus import Discovery, to_draft
from gpuspawner.adoption.doctor.hub_checks import remedy_of, running_hubs, warning_of
from gpuspawner.adoption.draft import render, write_catalog
from gpuspawner.cli import base
from gpuspawner.cli.errors import AwayError, InvalidError, RefusedError
from gpuspawner.cli.output import say_lines, say_progress
from gpuspawner.core.errors import GpuspawnerError, Unavailable


@base.command(
    "init",
    examples="""\
gpuspawner server init                                   this machine's GPUs, into catalog.yaml
gpuspawner server init gpu/catalog.yaml
gpuspawner server init - --kubernetes                    the GPUs of the cluster that kubectl asks, printed""",
)
@click.argument("file", metavar="[FILE]", required=False, default="catalog.yaml")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--kubernetes", is_flag=True, help="Find the GPUs that the nodes of a cluster advertise.")
@base.cluster_options
def init(file: str, kubeconfig: str | None, context: str | None, *, force: bool, kubernetes: bool) -> None:
    """Write a first catalog of the GPUs of this machine or a cluster.

    FILE is catalog.yaml by default; - prints the catalog.
    """
    try:
        discovery = _of_cluster(kubeconfig, context) if kubernetes else _of_machine()
        write_catalog(file, render(to_draft(discovery)), force=force)
    except ImportError as error:
        words = f"{error.name} is not installed. Run pip install '.[kubernetes]' in a checkout."
        raise InvalidError(words) from error
    except GpuspawnerError as error:
        way = " Or name another way to the cluster: --kubeconfig FILE, --context NAME." if kubernetes else ""
        kind = AwayError if isinstance(error, Unavailable) else RefusedError
        raise kind(f"{error}{way}") from error
    for line in _report(discovery, file):
        say_lines(line, to_stderr=file == "-")
    for hub in running_hubs():
        if hub.ends_servers is not False:
            say_progress(f"{warning_of(hub)} {remedy_of(hub)}")


def _report(discovery: Discovery, file: str) -> list[str]:
    found = ", ".join(one.words for one in discovery.gpus) or "no GPU"
    lines = [f"Found on {discovery.where}: {found}.", *discovery.notes]
    if file == "-":
        return lines
    return [
        *lines,
        f"{file} is written. Its policy only records idle workspaces and stops none of them (mode: observe).",
        f"Next: read its comments, decide, and run gpuspawner server check {file}. {_use_of(discovery, file)}",
        *(["gpuspawner server import makes templates from KubeSpawner's profiles."] if discovery.image else []),
    ]


def _use_of(discovery: Discovery, file: str) -> str:
    """Return how a hub gets the catalog: by the chart on a cluster, by configure() on a machine."""
    if discovery.image:
        return (
            f"Then install the chart with --set-file catalog={file}, and add the values that gpuspawner kube values "
            "prints to those of your hub: see docs/tutorials/zero-to-jupyterhub.md."
        )
    return f'Then put configure(c, catalog="{Path(file).absolute()}") last into the hub\'s configuration.'


def _of_machine() -> Discovery:
    from gpuspawner.adoption.found_gpus import find_on_machine  # noqa: PLC0415 - where it is asked

    return find_on_machine()


def _of_cluster(kubeconfig: str | None, context: str | None) -> Discovery:
    from gpuspawner.adoption.found_gpus import of_nodes  # noqa: PLC0415
    from gpuspawner.backends.kubernetes.api import Api  # noqa: PLC0415 - an extra of the package

    async def asked() -> Discovery:
        api = Api(base.cluster_settings(kubeconfig, context))
        try:
            return of_nodes(await api.list_all("/api/v1/nodes"))
        finally:
            await api.close()

    return asyncio.run(asked())
