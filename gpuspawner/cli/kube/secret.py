"""``gpuspawner kube secret``: the chart's Jobs create the secret of hub and service and Prometheus' token."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import click
from aiohttp import ClientError
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration, CoreV1Api, V1ObjectMeta, V1Secret

from gpuspawner.cli import base
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.cli.output import say

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
        if action == "remove":
            return await _removed(api, name, namespace)
        about, data = V1ObjectMeta(name=name), {"secret": secrets.token_hex(SECRET_BYTES)}
        try:
            await api.create_namespaced_secret(namespace, V1Secret(metadata=about, string_data=data))
        except ApiException as error:
            if error.status != CONFLICT:
                raise
            return f"Secret {name} exists and is unchanged."
        return f"Secret {name} was created."


async def _removed(api: CoreV1Api, name: str, namespace: str) -> str:
    try:
        await api.delete_namespaced_secret(name, namespace)
    except ApiException as error:
        if error.status != NOT_FOUND:
            raise
        return f"There is no Secret {name}."
    return f"Secret {name} was removed."
