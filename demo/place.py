"""Where `make run-cluster` runs: the cluster that `make cluster` started, one that it starts itself, or another."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.__main__ import launch
from tools.cluster.clients import Kubectl
from tools.cluster.cluster import Cluster
from tools.cluster.gpus import node_gpus
from tools.cluster.hub import ensure_hub_image
from tools.cluster.node_gpus import NodeGpus
from tools.cluster.nvidia_gpus import NvidiaGpus
from tools.cluster.standin_gpus import StandinGpus
from tools.cluster.workspace import ensure_image
from tools.progress import StepError, Steps

MARK = "gpuspawner.io/run-cluster"
"""The label of all that is to be removed in the end; its value is the namespace."""
GPUS = 4
NO_DRIVER = "none"
"""The profile by which our own simulation serves also where NVIDIA's simulated driver is."""
GONE_WITHIN_SECONDS = 60
MADE = "namespaces,persistentvolumes,clusterroles,clusterrolebindings,priorityclasses"
"""The kinds of what the whole cluster would keep."""
KUBECONFIG, HUB_IMAGE, IMAGE = ("GPUSPAWNER_TEST_KUBECONFIG", "GPUSPAWNER_TEST_HUB_IMAGE", "GPUSPAWNER_TEST_IMAGE")
LABELS = ("product", "memory", "compute.major", "compute.minor", "count")
"""Node labels, without their prefix "nvidia.com/gpu."."""


@dataclass(frozen=True)
class Images:
    """Of hub and workspaces, by whole name, and whether a node pulls them: "Never" or "IfNotPresent"."""

    hub: str
    workspace: str
    pull_policy: str


@dataclass(frozen=True)
class Place:
    """A reachable cluster, with the name of a new namespace.

    ``own`` is its parts where it runs on this machine, else None; ``ends`` tells that it ends with this run. ``served``
    are the GPUs that this run gave its node. ``kinds`` is None if those are our own simulation, else what the nodes'
    labels tell: product, memory in MiB, compute capability and how many of it one node has at most.
    """

    kubectl: Kubectl
    namespace: str
    images: Images
    own: Cluster | None = None
    ends: bool = False
    served: NodeGpus | None = None
    kinds: list[tuple[str, str, str, int]] | None = None

    @property
    def gpus(self) -> str:
        """A sentence on its GPUs."""
        if self.served:
            return self.served.words
        listed = ", ".join(f"{name} (up to {count})" for name, _, _, count in self.kinds or ())
        return f"by its nodes' labels: {listed or 'none'}"

    @property
    def control(self) -> Path | None:
        """The program that changes the state of the GPUs, None if notebooks do that or they are real."""
        return self.served.control if isinstance(self.served, NvidiaGpus) else None

    @property
    def homes(self) -> Path | None:
        """A folder of the node for people's files, None where the cluster makes volumes itself."""
        return self.own.folder / self.namespace if self.own else None

    def remove(self, hurry: Callable[[], bool]) -> None:
        """Remove what was made, and wait until it is gone, for a minute or until ``hurry()``.

        Raises:
            StepError: it is not gone; says what is left.
        """
        everything = (MADE, f"--selector={MARK}={self.namespace}")
        self.kubectl("delete", "pods", "--all", f"--namespace={self.namespace}", "--grace-period=1", "--wait=false")
        self.kubectl("delete", *everything, "--wait=false")
        deadline = time.monotonic() + GONE_WITHIN_SECONDS
        while left := self.kubectl("get", *everything, "--output=name").split():
            if hurry() or time.monotonic() > deadline:
                raise StepError(f"Not gone yet: {', '.join(left)}. Their removal is under way.")
            time.sleep(0.2)
        if self.homes and self.homes.exists():
            shutil.rmtree(self.homes)


@contextmanager
def a_place(
    steps: Steps, folder: Path, python: Path, environment: Mapping[str, str], profile: str = ""
) -> Iterator[Place]:
    """Give a place, with simulated GPUs where it is on this machine; what was started for it ends with it.

    Args:
        steps: where it says what it does.
        folder: of the cluster on this machine.
        python: the one for the simulated GPUs, with grpcio.
        environment: may name another cluster and its images.
        profile: the machine that NVIDIA's driver simulates; "" for an A100, if the driver is there.

    Raises:
        StepError: no cluster exists and none can be started, or the other cluster's images are not named.
    """
    namespace = f"gpuspawner-run-{secrets.token_hex(3)}"
    if environment.get(KUBECONFIG):
        yield _elsewhere(namespace, environment)
        return
    with _own(steps, folder) as (cluster, started):
        with steps.step("Image of the hub", streams=True):
            hub = cluster.give_image(ensure_hub_image(folder))
        with steps.step("Image of workspaces", streams=True):
            images = Images(hub, cluster.give_image(ensure_image(folder)), "Never")
        if profile == NO_DRIVER:
            gpus: NodeGpus = StandinGpus(cluster, GPUS, python=python)
        else:
            gpus = node_gpus(cluster, GPUS, profile or "a100", python=python)
        try:
            with steps.step(f"{GPUS} simulated GPUs"):
                gpus.start()
            kinds = kinds_of([gpus.labels]) if isinstance(gpus, NvidiaGpus) else None
            yield Place(cluster.kubectl, namespace, images, cluster, started, gpus, kinds)
        finally:
            if not started:
                gpus.stop()


@contextmanager
def _own(steps: Steps, folder: Path) -> Iterator[tuple[Cluster, bool]]:
    """Give the cluster in ``folder``, and whether it was started for it."""
    cluster = Cluster.load(folder)
    if cluster and cluster.runs:
        yield cluster, False
        return
    try:
        yield launch(folder, steps), True
    finally:
        if left := Cluster.load(folder):
            left.stop()


def _elsewhere(namespace: str, environment: Mapping[str, str]) -> Place:
    missing = [name for name in (HUB_IMAGE, IMAGE) if not environment.get(name)]
    if missing:
        raise StepError(
            f"{KUBECONFIG} names another cluster: name images that it can pull by {' and '.join(missing)}.\n"
            "What is in them: tools/cluster/hub.py and tools/cluster/workspace.py."
        )
    kubectl = Kubectl(["kubectl", f"--kubeconfig={Path(environment[KUBECONFIG]).absolute()}"])
    images = Images(environment[HUB_IMAGE], environment[IMAGE], "IfNotPresent")
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    return Place(kubectl, namespace, images, kinds=kinds_of([node["metadata"]["labels"] for node in nodes]))


def kinds_of(nodes: Sequence[Mapping[str, str]]) -> list[tuple[str, str, str, int]]:
    """Return the GPUs that nodes' labels, as GPU Feature Discovery sets them, tell of; see `Place.kinds`."""
    found: dict[tuple[str, str, str], int] = {}
    for labels in nodes:
        told = [labels.get(f"nvidia.com/gpu.{name}") for name in LABELS]
        if None not in told:
            product, memory, major, minor, count = map(str, told)
            kind = (product, memory, f"{major}.{minor}")
            found[kind] = max(found.get(kind, 0), int(count))
    return [(*kind, count) for kind, count in sorted(found.items()) if count]
