"""``gpuspawner kubernetes-secret``: the chart's Jobs make the secret of hub and service and Prometheus' token."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from aiohttp import ClientError
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration, CoreV1Api, V1ObjectMeta, V1Secret

from gpuspawner.cli.errors import AWAY, REFUSED

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECRET_BYTES = 32
CONFLICT, NOT_FOUND = 409, 404


def kubernetes_secret(arguments: argparse.Namespace) -> int:
    """Make or remove Secrets in the namespace of the pod that this runs in. One that is there stays as it is."""
    try:
        namespace = (ACCOUNT / "namespace").read_text(encoding="ascii").strip()
        for name in arguments.names:
            print(asyncio.run(_done(arguments.action, name, namespace)))
    except (OSError, config.ConfigException) as error:
        print(f"This runs in a pod with a service account, as the chart's Jobs do ({error}).", file=sys.stderr)
        return REFUSED
    except ApiException as error:
        verb = {"make": "create", "remove": "delete"}[arguments.action]
        right = f"The Job's account needs the right to {verb} secrets in {namespace}."
        print(
            f"The API server says {error.status} {error.reason} to Secrets {', '.join(arguments.names)}. {right}",
            file=sys.stderr,
        )
        return REFUSED
    except ClientError as error:
        print(f"The API server does not answer ({error}).", file=sys.stderr)
        return AWAY
    return 0


async def _done(action: str, name: str, namespace: str) -> str:
    """Return what was done, in a sentence. Raises what kubernetes_asyncio raises."""
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
            return f"Secret {name} is there, and stays as it is."
        return f"Secret {name} is made."


async def _removed(api: CoreV1Api, name: str, namespace: str) -> str:
    try:
        await api.delete_namespaced_secret(name, namespace)
    except ApiException as error:
        if error.status != NOT_FOUND:
            raise
        return f"There is no Secret {name}."
    return f"Secret {name} is removed."
