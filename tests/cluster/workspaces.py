"""Workspaces as the spawner makes them, without a hub."""

import asyncio
import json
import time

from nodes import wait_for

from gpuspawner.backends.kubernetes.pods import to_metadata
from gpuspawner.core.errors import Unavailable

HUB = "h" * 32
NODE = "gpu-node"
IDLE = ["sleep", "600"]


async def eventually(look, what, seconds=60):
    """Call ``look()`` until it returns a true value, and return that value. The view may be unavailable meanwhile."""
    until, away = time.monotonic() + seconds, ""
    while True:
        try:
            found, away = await look(), ""
        except Unavailable as error:
            found, away = None, str(error)
        if found:
            return found
        assert time.monotonic() < until, f"not within {seconds} s: {what}; {away}"
        await asyncio.sleep(0.1)


def start(cluster, namespace, name, lease, command=IDLE, gpus=1, *, attempt=1, wait=True, resource="nvidia.com/gpu",
          env=(), sidecars=(), **spec):  # fmt: skip
    """Start a workspace: what it carries of its lease is on it."""
    variables = {
        "GPUSPAWNER_HUB_ID": HUB, "GPUSPAWNER_LEASE_ID": lease, "GPUSPAWNER_ATTEMPT": str(attempt),
        "GPUSPAWNER_LEASE": json.dumps({"slots": [[f"{NODE}/{resource}/{n}", "1"] for n in range(gpus)]}),
    }  # fmt: skip
    labels, annotations = to_metadata(variables)
    container = {
        "name": "notebook", "image": cluster.image, "imagePullPolicy": "Never", "command": command, "env": list(env),
        "resources": {"limits": {resource: str(gpus)}} if gpus else {},
    }  # fmt: skip
    spec |= {"terminationGracePeriodSeconds": 1, "containers": [*sidecars, container]}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    cluster.core.create_namespaced_pod(namespace, {"metadata": metadata, "spec": spec})
    if wait:
        states = []

        def runs():
            status = cluster.core.read_namespaced_pod(name, namespace).status
            told = [condition.message for condition in status.conditions or () if condition.message]
            states[:] = [status.phase, status.reason, status.message, *told]
            return status.phase == "Running"

        try:
            wait_for(runs, f"pod {name} runs")
        except AssertionError as error:
            raise AssertionError(f"{error}: {states}") from None


async def one_of(backend, lease):
    """Return the processes or the pod of a lease, after it is seen."""

    async def look():
        return next((one for one in await backend.workspaces() if one.lease_id == lease), None)

    return await eventually(look, f"{lease} is seen")
