"""The setups of the contract suite: one for each adapter, all with the same GPUs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import requests
from cluster_objects import SHARED, a_node
from fake_kueue import FakeKueue
from harness.waiting import until
from kube_api import KubeApi
from late_scheduler import LateScheduler
from lease_builders import KINDS
from reference_server import TOKEN, reference_server

from gpuspawner.backends.clusters import ClustersBackend
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import cluster_kinds
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.catalog import HttpSchedulerAddress, KueueQueues, PodQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Autoscale
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.schedulers.clusters import BoundedScheduler, ClustersScheduler, SharedGpus
from gpuspawner.schedulers.http.client import SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.kubernetes import KubernetesScheduler
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.scheduler import KueueScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from gpuspawner.schedulers.pod_queues import SYSTEMS, PodGroups, PodQueueScheduler


@dataclass
class World:
    """A scheduler with three whole A100 and, if the backend divides devices itself, also six halves."""

    scheduler: Scheduler
    cut_off: Callable[[], Awaitable[None]]
    gpus: int = 3
    half: Fraction = Fraction(1, 2)
    simulated: tuple[bool, ...] = (True, True, False)
    offers: tuple[tuple[int, ...], ...] = ((2, 3, 3, 1), (5, 6, 3, 1), (0, 0, 0, 0))
    """Free, total, largest, waiting of each kind, where one has a half, and then another wanted three."""
    patch_parts: frozenset[str] = frozenset({"environment", "path_prefix"})
    foretells: bool = True
    """Whether it is ours, and so knows before a request is made what it would get to the second."""
    forget: Callable[[], None] = lambda: None
    """Restarts the other side without its state."""
    notice_seconds: float | None = None
    """How long before the end it tells of a preemption."""

    def gpus_of(self, patch):
        """Return the GPUs that a patch shows its workspace."""
        return patch["environment"]["CUDA_VISIBLE_DEVICES"]

    def names(self, lease):
        """Return the GPUs of a lease."""
        return ",".join(slot.gpu for slot in lease.slots)


class Cluster(World):
    """A cluster in which pods request a number of GPUs, and the cluster chooses the GPUs."""

    def gpus_of(self, patch):
        return patch.get("pod", {}).get("container", {}).get("resources", {}).get("limits", {})

    def names(self, lease):
        return {"nvidia.com/gpu": str(len(lease.slots))} if lease.slots else {}


@asynccontextmanager
async def over_fake(_folder, _monkeypatch):
    backend = FakeBackend(fake_gpus("a100", 3))

    async def cut_off():
        backend.unreachable = "The machine does not answer."

    yield World(InMemoryScheduler(backend, KINDS), cut_off)


@asynccontextmanager
async def over_simulated(folder, monkeypatch):
    monkeypatch.setattr(nvidia, "find", lambda: None)  # whatever machine this is
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    backend = LocalBackend(KINDS.values(), {"a100": 3}, folder)

    async def fleet():
        raise Unavailable("The machine does not answer.")

    async def cut_off():
        backend.fleet = fleet

    yield World(InMemoryScheduler(backend, KINDS), cut_off)


class EmptyCluster(FakeBackend):
    """One of several clusters, without GPUs and workspaces."""

    limits = ()

    def room(self):
        return NamespaceBounds()

    async def close(self):
        pass


@asynccontextmanager
async def over_kubernetes(folder, _monkeypatch, t4=KINDS["t4"], most_t4=0, cluster=""):
    api = KubeApi()
    await api.start()
    api.put(a_node("whole", gpus={"nvidia.com/gpu": 3}))
    api.put(a_node("halves", SHARED, gpus={"nvidia.com/gpu": 6}))
    kinds = cluster_kinds({**KINDS, "a100": replace(KINDS["a100"], match="NVIDIA-A100-*"), "t4": t4})
    kinds = {name: replace(kind, cluster=cluster) for name, kind in kinds.items()}
    settings = ClusterSettings("jhub", api.kubeconfig(folder), stale_seconds=2.0)
    backend = there = KubernetesBackend(kinds.values(), "h" * 32, settings)
    empty = EmptyCluster()
    if cluster:
        backend = ClustersBackend({"home": empty, cluster: there}, "home", kinds.values())
        for _ in range(2):
            await backend.workspaces()  # nothing is given before what runs was seen

    async def cut_off():
        empty.unreachable = "It does not answer."
        await api.stop()
        with contextlib.suppress(Unavailable):
            while await backend.fleet():
                await asyncio.sleep(0.05)

    yield Cluster(
        KubernetesScheduler(backend, kinds),
        cut_off,
        gpus=9,
        half=Fraction(1),
        simulated=(False, False, False),
        offers=((0, 3, 3, 0), (5, 6, 6, 0), (0, 0, most_t4, 0)),
        patch_parts=frozenset({"environment", "path_prefix", "pod", *(["cluster"] if cluster else [])}),
    )
    await backend.close()
    await api.stop()


@asynccontextmanager
async def over_late(_folder, _monkeypatch):
    backend = FakeBackend(fake_gpus("a100", 3))

    async def cut_off():
        backend.unreachable = "The machine does not answer."

    late = LateScheduler(backend, KINDS)
    yield World(late, cut_off, forget=late.forget)


HTTP_INVENTORY = """
clusters:
  - {name: here, near: true, price: {a100: 2, half: 1, t4: 1}, nodes: {node-1: {a100: [%s], half: 6}, far: {t4: 1}}}
"""


class Settled(HttpScheduler):
    """A scheduler that decides a moment after a request, so the tests ask again."""

    def __init__(self, client, mine, server):
        super().__init__(client, mine)
        self.server = server

    async def sync(self, seen):
        for _ in range(3):  # requested, rejected and requested again, answered
            await super().sync(seen)
            await until(lambda: self.server._soon is None)
        return await super().sync(seen)


def forget(url):
    requests.post(f"{url}/admin/forget", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).raise_for_status()


@asynccontextmanager
async def over_http(folder, _monkeypatch):
    backend = FakeBackend(fake_gpus("a100", 3))
    mine = InMemoryScheduler(backend, KINDS)
    (folder / "token").write_text(TOKEN)
    names = ", ".join(gpu.id for gpu in backend.gpus)
    with reference_server(HTTP_INVENTORY % names) as (url, server):

        async def cut_off():
            backend.unreachable = "The machine does not answer."

        client = SchedulerClient(HttpSchedulerAddress(url, str(folder / "token")), "hub")
        scheduler = Settled(client, mine, server)
        yield World(
            scheduler,
            cut_off,
            offers=((0, 3, 3, 0), (5, 6, 3, 0), (0, 1, 0, 0)),
            foretells=False,
            forget=partial(forget, url),
            notice_seconds=120,
        )
        await scheduler.close()


class Turns(KueueScheduler):
    """A scheduler with Kueue, which decides after each write, so the tests ask again."""

    async def sync(self, seen):
        for _ in range(6):  # deactivated, cleared, requested again, and admitted
            await super().sync(seen)
            await asyncio.sleep(0.01)
        return await super().sync(seen)


def a_kueue(mine):
    """Return a simulated Kueue with the nodes of ``over_kubernetes``, and its adapter."""
    product = {"whole": "NVIDIA-A100", "halves": "shared", "small": "t4"}
    labels = {name: {"product": value} for name, value in product.items()}
    kueue = FakeKueue({"whole": 3, "halves": 6, "small": 0}, labels, {"whole": ["whole"], "halves": ["halves"]})
    cluster = KueueCluster(kueue, ClusterSettings("jhub"), "jhub", "h" * 32)
    return kueue, Turns(cluster, mine, KueueQueues("lq"), "h" * 32)


@asynccontextmanager
async def over_kueue(folder, monkeypatch):
    async with over_kubernetes(folder, monkeypatch) as world:
        kueue, scheduler = a_kueue(world.scheduler)
        yield replace(world, scheduler=scheduler, foretells=False, forget=kueue.forget, notice_seconds=300)
        await scheduler.close()


@asynccontextmanager
async def over_kueue_of_one_cluster(folder, monkeypatch):
    async with over_kubernetes(folder, monkeypatch, cluster="east") as world:
        kueue, there = a_kueue(SharedGpus(world.scheduler))
        scheduler = ClustersScheduler(world.scheduler, "home", {"east": BoundedScheduler("US East", there)})
        yield replace(world, scheduler=scheduler, foretells=False, forget=kueue.forget)
        await scheduler.close()


@asynccontextmanager
async def over_ours_of_one_cluster(folder, monkeypatch):
    async with over_kubernetes(folder, monkeypatch, cluster="east") as world:
        _, there = a_kueue(SharedGpus(world.scheduler))
        yield replace(
            world, scheduler=ClustersScheduler(world.scheduler, "home", {"home": BoundedScheduler("Here", there)})
        )
        await there.close()


@asynccontextmanager
async def over_pod_queues(folder, monkeypatch):
    async with over_kubernetes(folder, monkeypatch) as world:
        mine, backend, queues = world.scheduler, world.scheduler._cluster, PodQueues("volcano")
        groups = PodGroups(backend.api, backend.settings, SYSTEMS["volcano"])
        scheduler = PodQueueScheduler(backend, groups, mine, queues)
        yield replace(world, scheduler=scheduler, foretells=False, patch_parts=world.patch_parts | {"waits_in"})
        await scheduler.close()


def over_autoscaled(folder, monkeypatch):
    """Return a pool that is scaled to zero. A node with two GPUs may be started."""
    return over_kubernetes(folder, monkeypatch, replace(KINDS["t4"], autoscale=Autoscale(2, 2, 240.0)), 2)
