"""Common parts of the tests of the cluster's view: wait until it observes something, and list its requests."""

import asyncio
import time

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.view import accept_all
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind

HUB = "h" * 32
KINDS = [GpuKind("a100", "A100", 80 * 2**30, match="*A100*80GB")]
NODES, PODS, QUOTAS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/jhub/resourcequotas"
LIMITS = "/api/v1/namespaces/jhub/limitranges"


def make_view(kubeconfig, believes=accept_all, **settings):
    there = ClusterSettings("jhub", kubeconfig, **{"stale_seconds": 2.0, **settings})
    return KubernetesBackend(KINDS, HUB, there, believes)


async def eventually(look, wanted, seconds=60.0):
    """Look until it is so; a view is never asked to be newer than what it heard."""
    until = time.monotonic() + seconds
    while True:
        try:
            seen = await look()
        except Unavailable as error:
            seen = error
        if seen == wanted:
            return
        assert time.monotonic() < until, f"{seen!r} is not {wanted!r}"
        await asyncio.sleep(0.02)


def free(backend):
    async def look():
        return sum(gpu.healthy and not gpu.foreign for gpu in (await backend.fleet()).gpus)

    return look


def running(backend):
    async def look():
        return [(r.lease_id[:1], r.attempt, r.given) for r in await backend.workspaces()]

    return look


def limits(backend):
    async def look():
        return backend.limits

    return look


def lists(api, path=NODES):
    """Return how often all of a collection was listed; a question for one object asks whether there is data."""
    return sum((verb, asked) == ("get", path) and query.get("limit") != "1" for verb, asked, query in api.asked)


async def listed(api, path, times):
    async def short():
        return max(0, times - lists(api, path))

    await eventually(short, 0)
