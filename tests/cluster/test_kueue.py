"""Kueue itself decides about leases: two queues in a cohort, whose quota is in two flavors.

The leases are made by hand and no pod is started: what is tried is what the adapter and Kueue make of each other. The
nodes are objects alone.
"""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from fake_kueue import is_true
from kubernetes import client
from lease_builders import KINDS, NOW, a_lease, a_request

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import KueueQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.core.gpus.names import Group
from gpuspawner.core.leases.coming_back import again
from gpuspawner.core.leases.endings import Reason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.schedulers.kueue.asks import name_of
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.scheduler import KueueScheduler
from gpuspawner.schedulers.memory import InMemoryScheduler
from tools.cluster.kueue import NAME, Kueue

HUB = "h" * 32
RESOURCE = "nvidia.com/gpu"
API = "kueue.x-k8s.io/v1beta2"
WAIT_SECONDS = 240
KINDS_OF = {"node-a": "a100", "node-t": "t4"}
NOTICE_SECONDS = 300


@pytest.fixture(scope="module")
def kueue(one_machine):
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
    one_machine.own.stop_process(NAME)


def apply(cluster, *objects):
    items = [{"apiVersion": API, **one} for one in objects]
    cluster.own.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


class World:
    """Four A100 and two T4, and what Kueue has in one namespace."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace, self.leases = cluster, namespace, {}
        self.api = Api(ClusterSettings(namespace, str(cluster.kubeconfig)))
        gpus = [
            Gpu(f"{node}/{RESOURCE}/{n}", kind, node, n, kind, 2**36, group=Group(node, RESOURCE))
            for node, kind in KINDS_OF.items()
            for n in range(4 if kind == "a100" else 2)
        ]
        mine = InMemoryScheduler(FakeBackend(gpus), KINDS)
        self.kueue = KueueCluster(self.api, ClusterSettings(namespace, str(cluster.kubeconfig)), namespace, HUB)
        self.scheduler = KueueScheduler(self.kueue, mine, KueueQueues("ours", {"them": "theirs"}), HUB)
        self.objects = client.CustomObjectsApi(cluster.api)

    def put(self, *leases):
        self.leases |= {lease.key: lease for lease in leases}

    def drop(self, lease):
        del self.leases[lease.key]

    async def sync(self, now=NOW):
        seen = Snapshot(now, self.scheduler.kinds, tuple(self.leases.values()), self.scheduler.fleet)
        return await self.scheduler.sync(seen)

    async def until(self, look, what, now=NOW):
        """Sync until ``look`` of the answer is true, and return that."""
        until, last = time.monotonic() + WAIT_SECONDS, None
        while time.monotonic() < until:
            try:
                last = await self.sync(now)
            except Unavailable as error:
                last = error
            else:
                if found := look(last):
                    return found
            await asyncio.sleep(0.2)
        raise AssertionError(f"not within {WAIT_SECONDS} s: {what}; {last}; {self.workloads()}")

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


@pytest.fixture
async def world(kueue, one_machine):
    with one_machine.namespace() as namespace:
        queues = [
            {
                "kind": "LocalQueue",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterQueue": name},
            }
            for name in ("ours", "theirs")
        ]
        apply(one_machine, *queues)
        world = World(one_machine, namespace)
        await world.scheduler.meet()
        await world.scheduler.observe(NOW)
        yield world
        world.leases.clear()
        await world.until(lambda _: not world.workloads(), "all is finished and gone")
        await world.scheduler.close()
        await world.api.close()


def asks(name, at=0, count=1, team="", gpu="a100", **changes):
    return a_lease(name, asked_at=NOW + at, request=a_request(gpu=gpu, count=count, team=team, **changes))


async def test_it_lends_what_is_free_and_takes_it_back_after_the_notice(world):
    borrows, own = await world.granted(asks("borrows", 1, count=2), asks("own", 0, count=2))
    await world.until(lambda _: world.borrowed() == "2", "two of four are borrowed")
    lender = asks("lender", 2, count=2, team="them")
    world.put(lender)
    preempted = await world.until(lambda answer: answer.preempted, "one of them is to make room")
    victim = next(x for x in (borrows, own) if x.id == preempted[0].lease_id)
    assert len(preempted) == 1
    assert (preempted[0].at, preempted[0].why) == (
        NOW + NOTICE_SECONDS,
        "Kueue: its GPUs were borrowed, and those who lent them need them back.",
    )
    assert is_true(world.of(victim), "QuotaReserved"), "its quota is its own while it runs"
    says = await world.until(lambda answer: answer.places()["lender"].says, "who lent them reads why they wait")
    assert says.startswith("Kueue says: ")
    assert "Others are making room for it." in says, says
    made = world.of(victim)["metadata"]["uid"]
    ended = replace(victim, phase=Phase.ENDED, reason=Reason.MADE_ROOM, ended_by="Kueue")
    back = again(ended, "back", NOW + NOTICE_SECONDS)
    world.put(back)
    (lender,) = await world.granted(lender)
    place = await world.until(lambda answer: answer.places().get("back"), "it waits again")
    assert world.of(back)["metadata"]["uid"] == made, "one Workload for one place"
    await world.until(lambda answer: answer.places()["back"].number == 1, f"it has a place: {place}")
    world.drop(lender)
    await world.until(lambda answer: {"back"} == {x.claim.id for x in answer.grants()}, "it has its GPUs again")


async def test_only_kinds_that_its_user_takes_are_given(world):
    await world.granted(asks("own", 0, count=4))
    strict, takes = asks("strict", 1), asks("takes", 2, substitutes=("t4",))
    world.put(strict, takes)
    grants = await world.until(lambda answer: answer.grants(), "one takes another kind")
    assert [(x.claim.id, x.kind) for x in grants] == [("takes", "t4")]
    place = (await world.sync()).places()["strict"]
    assert "It waits for quota that others use." in place.says, place


async def test_a_restart_of_kueue_doubles_and_loses_nothing(world, kueue):
    (runs,) = await world.granted(asks("runs", 0, count=4))
    waits = asks("waits", 1)
    world.put(waits)
    await world.until(lambda answer: answer.places()["waits"].number == 1, "it has a place")
    before = {one["metadata"]["uid"] for one in world.workloads()}
    kueue.crash()
    new = asks("new", 2)
    world.put(new)
    answer = await world.until(lambda answer: world.scheduler.unseen and answer, "that it is away is told")
    assert (answer.grants(), answer.preempted) == ([], ())
    kueue.again()
    await world.until(lambda answer: (answer.places()["new"].number or 0) == 2, "who came meanwhile has a place")
    assert before < {one["metadata"]["uid"] for one in world.workloads()}
    assert is_true(world.of(runs), "Admitted")
    world.drop(runs)
    await world.until(lambda answer: {"waits", "new"} == {x.claim.id for x in answer.grants()}, "both are granted")


async def test_one_deleted_by_hand_is_made_again_and_what_runs_is_not_granted_twice(world):
    (runs,) = await world.granted(asks("runs", 0, count=2))
    group, version = API.split("/")
    before = world.of(runs)["metadata"]["uid"]
    world.objects.delete_namespaced_custom_object(group, version, world.namespace, "workloads", name_of(runs))
    await world.until(lambda _: world.of(runs).get("metadata", {}).get("uid") not in {None, before}, "it is made again")
    await world.until(lambda answer: not answer.grants() and is_true(world.of(runs), "Admitted"), "and has its quota")


async def test_a_queue_on_hold_says_so_and_an_emptied_one_gives_notice(world):
    (runs,) = await world.granted(asks("runs", 0, count=2))
    try:
        hold(world, "HoldAndDrain")
        (told,) = await world.until(lambda answer: answer.preempted, "it is drained with notice")
        assert (told.lease_id, told.at) == ("runs", NOW + NOTICE_SECONDS)
        world.drop(runs)
        world.put(asks("waits", 1))
        says = await world.until(lambda answer: "on hold" in answer.places()["waits"].says, "it says so")
        assert says
    finally:
        hold(world, "None")
    await world.until(lambda answer: answer.grants(), "it is open again")


def hold(world, policy):
    group, version = API.split("/")
    world.objects.patch_cluster_custom_object(group, version, "clusterqueues", "ours", {"spec": {"stopPolicy": policy}})
