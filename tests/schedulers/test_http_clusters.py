"""A scheduler over HTTP that places across the clusters of a hub: the grant names the cluster, within consent."""

import asyncio
from dataclasses import replace

import pytest
from lease_builders import GIB, a_lease, a_request
from reference_server import TOKEN, reference_server

from gpuspawner.backends.clusters import ClustersBackend
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.gpus.fleet import GpuKind, Group
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.schedulers.http.client import SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.kubernetes import KubernetesScheduler

HERE, THERE = "a100", "a100@east"
KINDS = {HERE: GpuKind(HERE, "A100 in west", 80 * GIB), THERE: GpuKind(THERE, "A100 in east", 80 * GIB, cluster="east")}
INVENTORY = """
clusters:
  - {name: west, near: true, price: {a100: 2}, nodes: {node: {a100: 2}}}
  - {name: east, near: false, price: {a100: 1}, nodes: {node: {a100: 4}}}
"""
WAIT_SECONDS = 20


class OneNode(FakeBackend):
    """A cluster with one node in memory, whose GPUs are only counted. Nodes of all clusters have the same name."""

    limits = ()

    def __init__(self, pool, count):
        group = Group("node", "nvidia.com/gpu")
        gpus = (replace(gpu, id=group.gpu(gpu.index), group=group, node="node") for gpu in fake_gpus(pool, count))
        super().__init__(tuple(gpus))

    def room(self):
        return NamespaceBounds()


class Hub:
    """The leases of a hub with two clusters, and the adapter of its scheduler."""

    def __init__(self, url, token_file):
        backend = ClustersBackend({"west": OneNode(HERE, 2), "east": OneNode(THERE, 4)}, "west", KINDS.values())
        self.backend, mine = backend, KubernetesScheduler(backend, KINDS)
        self.scheduler = HttpScheduler(SchedulerClient(HttpSchedulerAddress(url, token_file), "hub"), mine, home="west")
        self.leases, self.now = {}, 1000.0

    async def look(self):
        for _ in range(2):
            await self.backend.workspaces()  # nothing is granted before what runs was seen
        await self.scheduler.observe(self.now)

    @property
    def seen(self):
        kinds, fleet = self.scheduler.kinds, self.scheduler.fleet
        return Snapshot(self.now, kinds, tuple(self.leases.values()), fleet, hub_answers=True)

    def ask(self, name, gpu=HERE, *others, count=1):
        request = a_request(name, gpu, count, substitutes=others)
        self.leases[name] = a_lease(name, user=name, request=request, asked_at=self.now)

    async def grants(self):
        """Sync, and let the granted leases hold their GPUs."""
        self.now += 1
        found = {one.claim.id: one for one in (await self.scheduler.sync(self.seen)).grants()}
        for name, one in found.items():
            held = {"phase": Phase.STARTING, "slots": one.slots, "granted_at": self.now, "given": one.kind}
            self.leases[name] = replace(self.leases[name], **held)
        return found

    async def granted(self, name):
        """Sync until a request is granted. Return the grant."""
        for _ in range(WAIT_SECONDS * 10):
            if name in (found := await self.grants()):
                return found[name]
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} was not granted in {WAIT_SECONDS} s")


@pytest.fixture
async def hub(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    with reference_server(INVENTORY) as (url, server):
        made = Hub(url, str(tmp_path / "token"))
        made.server = server
        await made.look()
        yield made
        await made.scheduler.close()


async def test_a_grant_is_in_the_cluster_that_was_asked_for(hub):
    hub.ask("east", THERE, count=3)
    grant = await hub.granted("east")
    assert [slot.gpu for slot in grant.slots] == [f"east:node/nvidia.com/gpu/{index}" for index in range(3)]
    assert grant.kind == "", "the requested kind"
    await hub.grants()
    (claim,) = hub.server.machine.claims.values()
    assert claim.asked["kind"] == "a100"
    assert claim.asked["accepts"] == [{"kind": "a100", "cluster": "east"}]
    assert (claim.asked["holds"]["kind"], claim.asked["holds"]["cluster"]) == ("a100", "east")


async def test_the_scheduler_chooses_by_its_own_policy_among_the_accepted_clusters(hub):
    hub.ask("first", THERE, HERE, count=2)
    grant = await hub.granted("first")
    assert grant.kind == HERE, "homes are near, says this scheduler, although its user prefers the other"
    hub.ask("second", HERE, THERE, count=2)
    grant = await hub.granted("second")
    assert (grant.kind, grant.slots[0].group.cluster) == (THERE, "east")


async def test_a_cluster_that_a_user_does_not_accept_is_never_given(hub):
    hub.ask("first", HERE, count=2)
    await hub.granted("first")
    hub.ask("waits", HERE)
    hub.ask("passes", THERE)
    await hub.granted("passes")
    for _ in range(3):
        assert "waits" not in await hub.grants()
    assert hub.server.machine.claims["hub", "waits"].waits


async def test_a_grant_without_consent_is_returned(hub, monkeypatch):
    monkeypatch.setattr("demo.scheduler.queue.is_accepted", lambda _asked, _kind, cluster: cluster == "east")
    hub.ask("here", HERE)
    for _ in range(5):
        assert await hub.grants() == {}
        await asyncio.sleep(0.05)
    claim = hub.server.machine.claims["hub", "here"]
    assert claim.revision > 1, "asked again under a higher number, which returns the grant"


async def test_the_form_reads_the_numbers_and_the_offer_of_each_cluster(hub):
    assert {one.kind: (one.free, one.total) for one in hub.scheduler.stock(hub.seen)} == {HERE: (2, 2), THERE: (4, 4)}
    hub.ask("east", THERE)
    preview = await hub.scheduler.offers(hub.seen, claim_of(hub.leases["east"]))
    assert (preview.kind, preview.place.likely_seconds) == ("", 0.0)
    assert "offers it on east" in preview.says
    hub.ask("both", THERE, HERE)
    preview = await hub.scheduler.offers(hub.seen, claim_of(hub.leases["both"]))
    assert preview.kind == HERE
    assert "offers it on west" in preview.says
