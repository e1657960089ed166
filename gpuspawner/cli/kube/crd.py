"""``gpuspawner kube crd``: the custom resource definitions, and the release of finalizers before they go."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import click
import yaml

from gpuspawner.backends.custom_resources.cluster import FINALIZER, KIND, CustomResources
from gpuspawner.backends.kubernetes.api import ApiRefused
from gpuspawner.catalog.resources.definitions import everything
from gpuspawner.cli import base
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.output import say, say_lines
from gpuspawner.core.errors import Unavailable

QUIET_SECONDS = 6.0
"""Without a held request for this long, the release is done. A service that runs holds them again within 2 s."""
PAUSE_SECONDS = 1.0
MOST_LOOKS = 20
"""How often held requests are found before the command gives up. A write that met a change is tried again."""


@base.command(
    "crd",
    examples="""\
gpuspawner kube crd | kubectl apply --server-side --filename -
gpuspawner kube crd --release-finalizers --namespace jhub          how many there are
gpuspawner kube crd --release-finalizers --namespace jhub --yes""",
)
@click.option("--release-finalizers", is_flag=True, help="Let no request wait for the end of its workspace any more.")
@click.option("--namespace", metavar="NAME", default="jhub", show_default=True, help="Namespace of the requests.")
@click.option("--yes", is_flag=True, help="Do it. Without it, the command only says what would be done.")
@base.cluster_options
def crd(namespace: str, kubeconfig: str | None, context: str | None, *, release_finalizers: bool, yes: bool) -> None:
    """Print the custom resource definitions and their admission policy.

    They are what the chart gpuspawner-crds holds: DevGPUVMRequest, DevGPUVMTemplate, DevGPUVMLifecyclePolicy and
    DevGPUVMQuota, and the policy by which a user writes only their own requests.

    With --release-finalizers nothing is printed. The finalizer is removed from each DevGPUVMRequest, which otherwise
    stays until its workspace has ended. Use it if the service is gone, or has customResources.enabled=false. No
    workspace stops. The chart gpuspawner does the same when it is uninstalled.
    """
    if not release_finalizers:
        say_lines(definitions_text())
        return
    settings = base.cluster_settings(kubeconfig, context, namespace)
    resources = CustomResources(replace(settings, custom_resources=namespace))
    try:
        say(asyncio.run(_release_or_count(resources, namespace, yes=yes)))
    except Unavailable as error:
        if isinstance(error.__cause__, ApiRefused):
            rights = "this needs the rights to list and patch them, and to use the devgpuvmusers of their users"
            raise RefusedError(f"{error}. {KIND.plural} in {namespace}: {rights}.") from error
        raise AwayError(f"{error} Name another way to the cluster: --kubeconfig FILE, --context NAME.") from error


def definitions_text() -> str:
    """Return the definitions, the admission policy and its binding as YAML."""
    return yaml.safe_dump_all(everything(), sort_keys=False, width=120, allow_unicode=True)


async def _release_or_count(resources: CustomResources, namespace: str, *, yes: bool) -> str:
    """Return a sentence with the result, or without ``yes`` with the plan. Raises Unavailable and RefusedError."""
    try:
        if yes:
            return f"{await _release(resources, namespace)} released. No workspace was stopped."
        count = sum(one.held for one in await resources.read_requests())
    finally:
        await resources.close()
    return (
        f"{_counted(count, namespace)} kept until the workspace has ended, by the finalizer {FINALIZER}. With --yes it "
        "is removed, and no workspace stops. First uninstall the service, or set customResources.enabled=false."
    )


async def _release(resources: CustomResources, namespace: str) -> str:
    """Release held requests until no request is held for a while. Return how many there were."""
    released, looks, quiet_since = set[str](), 0, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        if held := [one for one in await resources.read_requests() if one.held]:
            if looks == MOST_LOOKS:
                raise RefusedError(
                    "They are held again: a service with custom resources is running. Uninstall it from "
                    f"{namespace}, or set customResources.enabled=false, and try again."
                )
            for one in held:
                await resources.release(one)
            released |= {one.uid for one in held}
            looks, quiet_since = looks + 1, time.monotonic()
        await asyncio.sleep(PAUSE_SECONDS)
    return _counted(len(released), namespace)


def _counted(count: int, namespace: str) -> str:
    return f"1 {KIND.name} in {namespace} is" if count == 1 else f"{count} {KIND.name}s in {namespace} are"
