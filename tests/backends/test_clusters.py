"""Several clusters as one backend: each known or unknown by itself."""

import asyncio
from dataclasses import replace

import pytest

from gpuspawner.backends.clusters import LOOK_SECONDS, ClustersBackend
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind, Group, Slot
from gpuspawner.core.gpus.placement import place
from gpuspawner.core.quotas.namespaces import NamespaceBounds

GPU = "nvidia.com/gpu"
HOME, AWAY = "eu-west", "us-east"
KINDS = {
    "a100": GpuKind("a100", "A100", 80 << 30),
    "a100@us-east": GpuKind("a100@us-east", "A100 in us-east", 80 << 30, cluster=AWAY),
}


class FakeCluster(FakeBackend):
    """One cluster in memory, whose GPUs are only counted."""

    limits = ()

    def room(self):
        return NamespaceBounds()

    async def close(self):
        """Nothing is followed."""

    def patch(self, slots, instead=(), *, one_domain=False):
        return {"environment": {}, "path_prefix": "", "pod": [slot.gpu for slot in slots]}


def cluster(pool, count=2, node="node-1"):
    """A cluster with one node, whose name may be another cluster's too."""
    group = Group(node, GPU)
    gpus = fake_gpus(pool, count)
    return FakeCluster(tuple(replace(gpu, id=group.gpu(gpu.index), group=group, node=node) for gpu in gpus))


@pytest.fixture
def home():
    return cluster("a100")


@pytest.fixture
def east():
    return cluster("a100@us-east")


@pytest.fixture
def unseen(home, east):
    return ClustersBackend({HOME: home, AWAY: east}, HOME, KINDS.values())


@pytest.fixture
async def both(unseen):
    await looked_at(unseen)
    return unseen


async def looked_at(both):
    """Have what runs seen, and taken in by the time of the next look."""
    for _ in range(2):
        await both.workspaces()


async def test_the_fleets_of_two_clusters_are_one(both):
    fleet = await both.fleet()
    assert fleet.complete
    assert [gpu.id for gpu in fleet.gpus] == [
        "node-1/nvidia.com/gpu/0",
        "node-1/nvidia.com/gpu/1",
        "us-east:node-1/nvidia.com/gpu/0",
        "us-east:node-1/nvidia.com/gpu/1",
    ]
    assert [gpu.cluster for gpu in fleet.gpus] == [HOME, HOME, AWAY, AWAY]
    assert {gpu.node for gpu in fleet.gpus} == {"node-1", "us-east:node-1"}  # drained, or looked at, one by one
    slots = place(KINDS["a100@us-east"], 2, fleet, {})
    assert [slot.group for slot in slots] == [Group("node-1", GPU, AWAY)] * 2
    assert place(KINDS["a100"], 3, fleet, {}) is None  # GPUs of one workspace are of one cluster


async def test_a_patch_is_of_the_cluster_that_has_the_gpus_by_its_own_names(both):
    there = both.patch((Slot("us-east:node-1/nvidia.com/gpu/1"),))
    assert (there["cluster"], there["pod"]) == (AWAY, ["node-1/nvidia.com/gpu/1"])
    here = both.patch((Slot("node-1/nvidia.com/gpu/1"),))
    assert here["pod"] == ["node-1/nvidia.com/gpu/1"]
    assert "cluster" not in here
    coming = both.patch((Slot("~a100@us-east-0/nvidia.com/gpu/0"),))
    assert coming["cluster"] == AWAY


async def test_an_absent_cluster_stops_only_its_own_grants(both, east):
    await both.fleet()
    east.unreachable = "The Kubernetes API server has not answered for 12 s."
    fleet = await both.fleet()
    assert fleet.complete
    assert place(KINDS["a100"], 1, fleet, {}) is not None
    assert place(KINDS["a100@us-east"], 1, fleet, {}) is None
    lost = [gpu for gpu in fleet.gpus if gpu.cluster == AWAY]
    assert {(gpu.healthy, gpu.reachable, gpu.note) for gpu in lost} == {
        (False, False, "cluster us-east does not answer")
    }
    assert fleet.outage_of("") is None
    assert fleet.outage_of(AWAY).part == "Cluster us-east"
    assert fleet.outage_of(AWAY).why == "The Kubernetes API server has not answered for 12 s."
    east.unreachable = ""
    await looked_at(both)
    assert place(KINDS["a100@us-east"], 1, await both.fleet(), {}) is not None
    assert (await both.fleet()).outages == {}


async def test_an_outage_lasts_until_both_gpus_and_workspaces_are_answered(both, east, caplog):
    async def no_answer():
        raise Unavailable("The Kubernetes API server does not answer.")

    answer, east.fleet = east.fleet, no_answer
    await both.fleet()
    begun = both.outages
    await both.workspaces()
    await both.fleet()
    assert both.outages == begun
    east.fleet = answer
    await both.fleet()
    assert both.outages == {}
    assert len(caplog.records) == 2  # its begin and its end


async def test_workspaces_in_an_absent_cluster_continue_and_are_unknown(both, home, east):
    home.run("here")
    east.run("there")
    assert [one.lease_id for one in await both.workspaces()] == ["here", "there"]
    assert not (await both.probe("there", 1, (), 5)).problem
    east.unreachable = "It is away."
    assert [one.lease_id for one in await both.workspaces()] == ["here", "there"]
    sample = await both.probe("there", 1, (), 5)
    assert sample.problem == "its cluster us-east does not answer: It is away."
    assert sample.text == ""
    assert not (await both.probe("here", 1, (), 5)).problem


async def test_nothing_is_known_of_a_cluster_before_its_first_answer(unseen, east):
    both = unseen
    east.unreachable = "It is away."
    fleet = await both.fleet()
    assert {gpu.cluster for gpu in fleet.gpus} == {HOME}
    east.unreachable = ""
    assert {gpu.cluster for gpu in (await both.fleet()).gpus} == {HOME, AWAY}


async def test_a_hanging_cluster_delays_the_others_by_a_second(both, east):
    async def hangs():
        await asyncio.sleep(3600)

    east.fleet = hangs
    assert {gpu.cluster for gpu in (await asyncio.wait_for(both.fleet(), 30)).gpus} == {HOME}


async def test_without_any_cluster_the_fleet_is_unavailable(both, home, east):
    home.unreachable = east.unreachable = "It is away."
    with pytest.raises(Unavailable, match=r"Cluster eu-west: It is away\. Cluster us-east: It is away\."):
        await both.fleet()
    with pytest.raises(Unavailable):
        await both.workspaces()


async def test_an_end_waits_for_the_cluster_that_may_still_run_it_and_for_no_other(both, home, east):
    home.run("here")
    east.run("there")
    await both.workspaces()
    east.unreachable = "It is away."
    assert await both.end("here", None, (Slot("node-1/nvidia.com/gpu/0"),))
    assert not home.running
    with pytest.raises(Unavailable):
        await both.end("there")  # by where it was seen
    with pytest.raises(Unavailable):
        await both.end("never seen", None, (Slot("us-east:node-1/nvidia.com/gpu/0"),))  # by what it holds
    assert await both.end("without a GPU")
    east.unreachable = ""
    assert await both.end("there")
    assert not east.running


async def test_grants_in_a_cluster_are_shown_with_its_name(both, home, east):
    given = ((Group("node-1", GPU), 1),)
    for one in (home, east):
        one.run("lease" if one is home else "other")
        one.running = {key: replace(value, given=given) for key, value in one.running.items()}
    assert [one.given for one in await both.workspaces()] == [given, ((Group("node-1", GPU, AWAY), 1),)]


async def test_a_cluster_removed_from_the_catalog_has_ended_nothing(both):
    with pytest.raises(Unavailable, match="Cluster asia is not in the catalog any more"):
        await both.end("lease", None, (Slot("asia:node-1/nvidia.com/gpu/0"),))


async def test_no_gpu_is_granted_before_its_clusters_workspaces_were_observed(unseen, east, monkeypatch):
    """At the start, and after each time that it was away: what was made there meanwhile may run on it."""

    async def slow():
        raise Unavailable("It has not answered yet.")

    def given(fleet):
        return [name for name in KINDS if place(KINDS[name], 1, fleet, {})]

    with monkeypatch.context() as patched:
        patched.setattr(east, "workspaces", slow)
        for _ in range(3):
            await unseen.workspaces()
            fleet = await unseen.fleet()
        assert given(fleet) == ["a100"]
    await unseen.workspaces()
    assert given(await unseen.fleet()) == ["a100"], "what it runs is not taken in yet"
    await unseen.workspaces()
    assert given(await unseen.fleet()) == ["a100", "a100@us-east"]
    east.unreachable = "It is away."
    await unseen.fleet()
    east.unreachable = ""
    assert given(await unseen.fleet()) == ["a100"], "a pod may have been made there since it was last seen"
    await looked_at(unseen)
    assert given(await unseen.fleet()) == ["a100", "a100@us-east"]


async def test_a_cluster_that_never_answered_is_waited_for_at_the_start(unseen, home, east, monkeypatch):
    """Else its servers would be taken for some that have no lease, where the store was lost: lists take seconds."""
    workspaces = east.workspaces

    async def slow():
        await asyncio.sleep(LOOK_SECONDS + 0.3)
        return await workspaces()

    home.run("here")
    east.run("there")
    with monkeypatch.context() as patched:
        patched.setattr(east, "workspaces", slow)
        assert [one.lease_id for one in await unseen.workspaces()] == ["here", "there"]
        home.run("later")
        assert [one.lease_id for one in await unseen.workspaces()] == ["here", "later", "there"]
        assert unseen.outages[AWAY].why == "It has not answered yet.", "and then for a second"
