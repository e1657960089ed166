"""The view of a large cluster: memory, time to the first offer, and how old it is after a change.

A real API server of its own (`make cluster`'s programs) with static objects: 5,000 nodes of 8 GPUs, 5,000 pods that use
one each. Its controllers are stopped, so that nothing changes but what is measured. Needs root; about three minutes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.kubernetes import KubernetesScheduler
from tools.cluster.static import fill, static_cluster

NODES, GPUS, PODS = (
    int(os.environ.get(name, default)) for name, default in (("NODES", 5000), ("GPUS", 8), ("PODS", 5000))
)
CHANGES, NAMESPACE = 100, "bench"


def a_node(number: int) -> dict[str, Any]:
    name = f"node-{number:05}"
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.replicas": "1",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{index}": "true" for index in range(40)},
    }
    counts = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    images = [
        {"names": [f"registry.example.org/image-{index}@sha256:{'0' * 64}"], "sizeBytes": 10**9} for index in range(50)
    ]
    status = {
        "capacity": counts,
        "allocatable": counts,
        "images": images,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def a_pod(number: int) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"}}
    container = {"name": "train", "image": "registry.example.org/train:1", "resources": limits}
    spec = {
        "nodeName": f"node-{number % NODES:05}",
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    return {"metadata": {"name": f"train-{number}", "labels": {"app": "train"}}, "spec": spec}


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def highest_rss_mib() -> float:
    status = Path("/proc/self/status").read_text()  # getrusage() counts the parent's, from before exec
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def backend_of(kubeconfig: Path) -> tuple[KubernetesBackend, KubernetesScheduler]:
    kinds = {"a100": GpuKind("a100", "A100", 80 * 2**30, match="NVIDIA-A100*")}
    backend = KubernetesBackend(kinds.values(), "h" * 32, ClusterSettings("jhub", str(kubeconfig)))
    return backend, KubernetesScheduler(backend, kinds)


async def first_look(kubeconfig: Path) -> None:
    """Run in a process of its own: its memory is the view's and Python's."""
    backend, scheduler = backend_of(kubeconfig)
    before, began = rss_mib(), time.perf_counter()
    while not scheduler.fleet.complete:
        await scheduler.observe(0.0)
    seen = time.perf_counter()
    (offer,) = scheduler.stock(Snapshot(0.0, scheduler.kinds, fleet=scheduler.fleet, room=scheduler.room))
    offered = 1000 * (time.perf_counter() - seen)
    print(f"{len(scheduler.fleet.gpus):,} GPUs on {NODES:,} nodes, {PODS:,} pods; {offer.free:,} free")
    print(f"first view after {seen - began:.1f} s, first offer {offered:.0f} ms later")
    grown = rss_mib() - before
    print(
        f"memory: {grown:.0f} MiB for the view, {rss_mib():.0f} MiB with Python, {highest_rss_mib():.0f} at its highest"
    )
    await backend.close()


async def follow(kubeconfig: Path, core: Any) -> None:
    backend, _ = backend_of(kubeconfig)
    await backend.fleet()
    ages = []
    for number in range(CHANGES):
        name, cordoned = f"node-{number // 2:05}", number % 2 == 0
        await asyncio.to_thread(core.patch_node, name, {"spec": {"unschedulable": cordoned}})
        began = time.perf_counter()
        while (await backend.fleet()).gpus[number // 2 * GPUS].healthy is cordoned:  # noqa: ASYNC110 - it is measured
            await asyncio.sleep(0.001)
        ages.append(1000 * (time.perf_counter() - began))
    median, p99 = statistics.median(ages), sorted(ages)[int(0.99 * len(ages))]
    print(f"age of the view after a change, from the API server's answer on: median {median:.0f} ms, p99 {p99:.0f} ms")
    print("(aim at 1,000 nodes: p99 under 1 s)")
    await backend.close()


def main() -> int:
    if len(sys.argv) > 1:
        asyncio.run(first_look(Path(sys.argv[1])))
        return 0
    if os.geteuid() != 0:
        print("skipped: a cluster needs root")
        return 0
    with static_cluster() as (cluster, core):
        fill(cluster, core, NAMESPACE, map(a_node, range(NODES)), map(a_pod, range(PODS)))
        subprocess.run([sys.executable, __file__, str(cluster.kubeconfig)], check=True)
        asyncio.run(follow(cluster.kubeconfig, core))
    return 0


if __name__ == "__main__":
    sys.exit(main())
