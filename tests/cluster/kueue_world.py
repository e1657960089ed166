"""Kueue itself on a cluster, for tests: two queues in a cohort, and leases that are made by hand.

No pod is started: what is tried is what the adapter and Kueue make of each other. The nodes are objects alone.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import replace

from fake_kueue import is_true
from kubernetes import client
from lease_builders import KINDS, NOW, a_lease, a_request

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import KueueQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, Group
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.scheduler import KueueScheduler
from gpuspawner.schedulers.kueue.workloads import HELD, name_of
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from tools.cluster.kueue import Kueue

HUB = "h" * 32
RESOURCE = "nvidia.com/gpu"
API = "kueue.x-k8s.io/v1beta2"
WAIT_SECONDS = 240
KINDS_OF = {"node-a": "a100", "node-t": "t4"}
NOTICE_SECONDS = 300


@contextlib.contextmanager
def installed(one_machine):
    """Kueue with two queues in a cohort, whose quota is in two flavors."""
    kueue = Kueue(one_machine.own)
    kueue.start()
    for name, kind in KINDS_OF.items():
        one_machine.core.create_node({"metadata": {"name": name, "labels": {"product": kind}}})
    objects = [
        {"kind": "ResourceFlavor", "metadata": {"name": kind}, "spec": {"nodeLabels": {"product": kind}}}
        for kind in KINDS_OF.values()
    ]
    objects += [
        {
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "cohortName": "all",
                "namespaceSelector": {},
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {
                        "coveredResources": [RESOURCE],
                        "flavors": [
                            {"name": "a100", "resources": [{"name": RESOURCE, "nominalQuota": 2}]},
                            {"name": "t4", "resources": [{"name": RESOURCE, "nominalQuota": 1}]},
                        ],
                    }
                ],
            },
        }
        for name in ("ours", "theirs")
    ]
    apply(one_machine, *objects)
    yield kueue
    for name in KINDS_OF:
        one_machine.core.delete_node(name)
    kueue.stop()


def apply(cluster, *objects):
    """Make these objects of Kueue."""
    items = [{"apiVersion": API, **one} for one in objects]
    cluster.own.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


class OnCluster(InMemoryScheduler):
    """Its workspaces are pods."""

    def patch(self, lease, off=()):
        return {**super().patch(lease, off), "pod": {"spec": {}}}


class World:
    """Four A100 and two T4, and what Kueue has in one namespace."""

    def __init__(self, cluster, namespace, kubeconfig="", **queues):
        self.cluster, self.namespace, self.leases = cluster, namespace, {}
        settings = ClusterSettings(namespace, kubeconfig or str(cluster.kubeconfig))
        self.api = Api(settings)
        gpus = [
            Gpu(f"{node}/{RESOURCE}/{n}", kind, node, n, kind, 2**36, group=Group(node, RESOURCE))
            for node, kind in KINDS_OF.items()
            for n in range(4 if kind == "a100" else 2)
        ]
        self.mine = OnCluster(FakeBackend(gpus), KINDS)
        self.queues = KueueQueues("ours", {"them": "theirs", **queues.pop("teams", {})}, **queues)
        self.kueue = KueueCluster(self.api, settings, namespace, HUB)
        self.scheduler = KueueScheduler(self.kueue, self.mine, self.queues, HUB)
        self.objects = client.CustomObjectsApi(cluster.api)

    def put(self, *leases):
        self.leases |= {lease.key: lease for lease in leases}

    def drop(self, lease):
        del self.leases[lease.key]

    async def sync(self, now=NOW):
        seen = Snapshot(now, self.scheduler.kinds, tuple(self.leases.values()), self.scheduler.fleet)
        return await self.scheduler.sync(seen)

    async def until(self, look, what, now=NOW, seconds=WAIT_SECONDS):
        """Sync until ``look`` of the answer is true, and return that."""
        until, last = time.monotonic() + seconds, None
        while time.monotonic() < until:
            try:
                last = await self.sync(now)
            except Unavailable as error:
                last = error
            else:
                if found := look(last):
                    return found
            await asyncio.sleep(0.2)
        raise AssertionError(f"not within {seconds} s: {what}; {last}; {self.workloads()}")

    async def granted(self, *leases):
        """Have these leases granted, and run."""
        self.put(*leases)
        names = {lease.id for lease in leases}

        def look(answer):
            grants = {grant.claim.id: grant for grant in answer.grants()}
            return grants if names <= set(grants) else None

        grants = await self.until(look, f"{names} are granted")
        for lease in leases:
            slots = grants[lease.id].slots
            self.put(replace(lease, phase=Phase.RUNNING, slots=slots, running_at=NOW, given=grants[lease.id].kind))
        await self.until(lambda _: all(is_true(self.of(x), "PodsReady") for x in leases), "Kueue knows that they run")
        return [self.leases[lease.key] for lease in leases]

    async def taken(self, lease):
        """Wait until Kueue's side says that this attempt took what it was admitted with."""
        await self.until(lambda _: HELD in self.of(lease)["metadata"]["annotations"], f"{lease.id} is taken")

    async def freed(self, lease):
        """Wait until no quota is set aside for it."""
        await self.until(lambda _: not is_true(self.of(lease), "QuotaReserved"), f"{lease.id} holds no quota")

    async def close(self):
        """End all of it, as the service does: each is finished and gone."""
        self.leases.clear()
        await self.until(lambda _: not self.workloads(), "all is finished and gone")
        await self.scheduler.close()
        await self.api.close()

    def begin_again(self):
        """Restart the service, which loses everything it knew."""
        self.kueue = KueueCluster(self.api, self.kueue._settings, self.namespace, HUB)
        self.scheduler = KueueScheduler(self.kueue, self.mine, self.queues, HUB)

    def borrowed(self):
        """How much our queue has borrowed of the first flavor; "" while Kueue has not told it yet."""
        group, version = API.split("/")
        queue = self.objects.get_cluster_custom_object(group, version, "clusterqueues", "ours")
        usage = queue.get("status", {}).get("flavorsUsage")
        return usage[0]["resources"][0].get("borrowed", "") if usage else ""

    def workloads(self):
        group, version = API.split("/")
        return self.objects.list_namespaced_custom_object(group, version, self.namespace, "workloads")["items"]

    def of(self, lease):
        return next((one for one in self.workloads() if one["metadata"]["name"] == name_of(lease)), {})


@contextlib.asynccontextmanager
async def a_world(cluster, namespace, also=(), **queues):
    """Yield a World whose namespace has LocalQueues for the ClusterQueues ours, theirs and each of ``also``."""
    for name in ("ours", "theirs", *also):
        spec = {"clusterQueue": name}
        apply(cluster, {"kind": "LocalQueue", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    world = World(cluster, namespace, teams={name: name for name in also}, **queues)
    await world.scheduler.observe(NOW)
    try:
        await world.scheduler.connect()
        yield world
    finally:
        await world.close()


def asks(name, at=0, count=1, team="", gpu="a100", **changes):
    return a_lease(name, asked_at=NOW + at, request=a_request(gpu=gpu, count=count, team=team, **changes))


def hold(world, policy):
    group, version = API.split("/")
    world.objects.patch_cluster_custom_object(group, version, "clusterqueues", "ours", {"spec": {"stopPolicy": policy}})
