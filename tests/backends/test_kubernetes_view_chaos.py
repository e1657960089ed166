"""Whatever happens to cluster, API server and connection: the view ends as a fresh look at the cluster would."""

import asyncio
import random
import time

import pytest
from cluster_objects import A100, SHARED, T4, a_node, a_pod, a_workspace, fleet_of, unschedulable
from kube_api import KubeApi

from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import cluster_kinds
from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.backends.kubernetes.pods import to_pod
from gpuspawner.backends.kubernetes.settings import HUB_TOLERATIONS, ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind, Group

HUB = "h" * 32
KINDS = cluster_kinds(
    {
        "a100": GpuKind("a100", "A100", 80 * 2**30, match="NVIDIA-A100*"),
        "half": GpuKind("half", "Half", 40 * 2**30, of="a100", shares=2),
        "t4": GpuKind("t4", "T4", 16 * 2**30, match="Tesla-T4"),
    }
)
STEPS, NODES = 80, 4


class World:
    """A cluster that changes at random, and an API server that fails at random."""

    def __init__(self, api, seed):
        self.api, self.random, self.pods = api, random.Random(seed), []

    async def step(self):
        what = self.random.choices(
            [
                self.node,
                self.pod,
                self.change,
                self.remove,
                self.break_,
                self.compact,
                self.restart,
                self.fail,
                self.wait,
            ],
            [5, 8, 6, 5, 1, 1, 1, 1, 3],
        )[0]
        await what()

    async def node(self):
        choose = self.random.choice
        name = f"node-{self.random.randrange(NODES)}"
        labels, count = choose([A100, SHARED, T4, {}]), self.random.randrange(5)
        state = {"cordoned": choose([False, False, True]), "ready": choose([True, True, False])}
        healthy = {"nvidia.com/gpu": self.random.randint(0, count)}
        node = a_node(name, labels, {"nvidia.com/gpu": count}, healthy=healthy, **state)
        (self.api.remove if self.random.random() < 0.2 else self.api.put)(node)

    async def pod(self):
        make = self.random.choice([a_pod, a_workspace])
        node = self.random.choice(["", *(f"node-{number}" for number in range(NODES))])
        name = f"pod-{len(self.pods)}"
        gpus = {"nvidia.com/gpu": self.random.randrange(3)}
        more = (
            {"lease": f"{self.random.randrange(6):032}", "attempt": self.random.randrange(3)}
            if make is a_workspace
            else {}
        )
        self.pods.append(self.api.put(make(name, gpus=gpus, node=node, **more)))

    async def change(self):
        if self.pods:
            pod = self.random.choice(self.pods)
            pod["status"]["phase"] = self.random.choice(["Pending", "Running", "Failed", "Succeeded"])
            pod["status"]["conditions"] = self.random.choice([[], [unschedulable()]])
            if self.random.random() < 0.3:
                pod["metadata"]["deletionTimestamp"] = "2026-11-21T15:00:00Z"
            if not pod["spec"].get("nodeName") and self.random.random() < 0.5:
                pod["spec"]["nodeName"] = f"node-{self.random.randrange(NODES)}"
            self.api.put(pod)

    async def remove(self):
        if self.pods:
            self.api.remove(self.pods.pop(self.random.randrange(len(self.pods))))

    async def break_(self):
        self.random.choice([self.api.break_watches, self.api.garble, self.api.bookmark])()

    async def compact(self):
        self.api.compact()

    async def restart(self):
        await self.api.stop()
        await asyncio.sleep(0.02)
        await self.api.start()

    async def fail(self):
        self.api.failing = self.random.randrange(4)

    async def wait(self):
        await asyncio.sleep(self.random.random() * 0.03)

    def seen_afresh(self):
        """The fleet, and what runs, by one look at everything that is there."""
        nodes = sorted(map(to_node, self.api.objects.get("/api/v1/nodes", {}).values()), key=lambda node: node.name)
        pods = [pod for pod in map(to_pod, self.api.objects.get("/api/v1/pods", {}).values()) if pod is not None]
        gpus = fleet_of(nodes, pods, list(KINDS.values()), HUB, HUB_TOLERATIONS).gpus
        running = [
            (p.lease, p.attempt, tuple((Group(p.node, name), n) for name, n in p.requests.items()) if p.node else None,
             p.deleting, p.refusal)
            for p in pods if p.hub == HUB and not p.ended
        ]  # fmt: skip
        return gpus, sorted(running, key=repr)


async def seen_by(backend):
    running = [(one.lease_id, one.attempt, one.given, one.ending, one.waiting) for one in await backend.workspaces()]
    return (await backend.fleet()).gpus, sorted(running, key=repr)


@pytest.mark.parametrize("seed", range(6))
async def test_the_view_ends_as_a_fresh_look_would(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(watches, "BACK_OFF_SECONDS", (0.02,))
    monkeypatch.setattr(watches, "MIN_WATCH_SECONDS", 0.0)
    api = KubeApi()
    await api.start()
    backend = KubernetesBackend(KINDS.values(), HUB, ClusterSettings("jhub", api.kubeconfig(tmp_path), page=3))
    try:
        world = World(api, seed)
        await backend.fleet()
        for _ in range(STEPS):
            await world.step()
        api.failing = 0
        until = time.monotonic() + 15
        while True:
            try:
                seen = await seen_by(backend)
            except Unavailable:
                seen = ((), [])
            wanted = world.seen_afresh()
            if seen == wanted:
                break
            assert time.monotonic() < until, f"{seen} is not {wanted}"
            await asyncio.sleep(0.05)
        refused = {pod.uid for pod in backend._view._own.values() if pod.refusal}
        assert set(backend._view._refused_at) >= refused
        assert {pod.uid for pods in backend._view._own_of.values() for pod in pods.values()} == set(backend._view._own)
        assert set(backend._view._pods_on) <= {"", *(f"node-{number}" for number in range(NODES))}
    finally:
        await backend.close()
        await api.stop()
