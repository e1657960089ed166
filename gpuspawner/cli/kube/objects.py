"""Objects of the API server that the charts' Jobs create: custom resource definitions and Secrets."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from pathlib import Path

import click
import yaml
from aiohttp import ClientError
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration, CoreV1Api, V1ObjectMeta, V1Secret

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
@click.option("--release-finalizers", is_flag=True, help="Remove the finalizers, so that requests can be deleted.")
@click.option("--namespace", metavar="NAME", default="jhub", show_default=True, help="Namespace of the requests.")
@click.option("--yes", is_flag=True, help="Do it. Without it, the command only says what would be done.")
@base.cluster_options
def crd(namespace: str, kubeconfig: str | None, context: str | None, *, release_finalizers: bool, yes: bool) -> None:
    """Print the custom resource definitions and their admission policy.

    They are what the chart gpuspawner-crds holds: DevGPUVMRequest, DevGPUVMTemplate, DevGPUVMLifecyclePolicy,
    DevGPUVMQuota and DevGPUVMClusterLifecyclePolicy, and the policy by which a user writes only their own requests.

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


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECRET_BYTES = 32
CONFLICT, NOT_FOUND = 409, 404


@base.command("secret", examples="gpuspawner kube secret make gpuspawner-secret gpuspawner-metrics-token")
@click.argument("action", type=click.Choice(("make", "remove")))
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def secret(action: str, names: tuple[str, ...]) -> None:
    """Create or remove Secrets with a random text (for the chart).

    NAME is a Secret in the namespace of the pod that this runs in. Its key `secret` has 64 random digits. A Secret that
    exists is unchanged.
    """
    try:
        namespace = (ACCOUNT / "namespace").read_text(encoding="ascii").strip()
        for name in names:
            say(asyncio.run(_run(action, name, namespace)))
    except (OSError, config.ConfigException) as error:
        raise RefusedError(f"This runs in a pod with a service account, as the chart's Jobs do ({error}).") from error
    except ApiException as error:
        verb = {"make": "create", "remove": "delete"}[action]
        right = f"The Job's account needs the right to {verb} secrets in {namespace}."
        raise RefusedError(
            f"The API server answers {error.status} {error.reason} for {', '.join(names)}. {right}"
        ) from error
    except ClientError as error:
        raise AwayError(f"The API server does not answer ({error}).") from error


async def _run(action: str, name: str, namespace: str) -> str:
    """Create or remove the Secret and return a sentence about it. Raises the errors of kubernetes_asyncio."""
    configuration = Configuration()
    config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    async with ApiClient(configuration) as client:
        api = CoreV1Api(client)
        try:
            if action == "remove":
                await api.delete_namespaced_secret(name, namespace)
                return f"Secret {name} was removed."
            about, data = V1ObjectMeta(name=name), {"secret": secrets.token_hex(SECRET_BYTES)}
            await api.create_namespaced_secret(namespace, V1Secret(metadata=about, string_data=data))
        except ApiException as error:
            if (action, error.status) not in {("make", CONFLICT), ("remove", NOT_FOUND)}:
                raise
            return f"There is no Secret {name}." if action == "remove" else f"Secret {name} exists and is unchanged."
        return f"Secret {name} was created."
