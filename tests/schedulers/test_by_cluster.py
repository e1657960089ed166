"""Several clusters, of which one has a scheduler of its own: who is told of what, and what stands where it is away."""

import asyncio
from dataclasses import replace

import pytest
from gpuspawner.schedulers.clusters import BoundedScheduler, ClustersScheduler, asked
from harness.waiting import until
from hypothesis import given
from hypothesis import strategies as st
from late_scheduler import LateScheduler
from lease_builders import GIB, NOW, a_lease, a_request, slots

from gpuspawner.backends.clusters import ClustersBackend
from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind, Group
from gpuspawner.core.leases.lease import WAITING, Phase
from gpuspawner.core.outages import Outage
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.namespaces import Room
from gpuspawner.core.rules import HeldBack, Notice
from gpuspawner.schedulers.base import SCHEDULER, Capabilities, Preempted, UnusableScheduler
from gpuspawner.schedulers.kubernetes import KubernetesScheduler

GPU = "nvidia.com/gpu"
HERE, THERE, THIRD = "a100", "a100@east", "a100@south"
KINDS = {
    HERE: GpuKind(HERE, "A100 in west", 80 * GIB),
    THERE: GpuKind(THERE, "A100 in east", 80 * GIB, cluster="east"),
    THIRD: GpuKind(THIRD, "A100 in south", 80 * GIB, cluster="south"),
}
SAYS_AWAY = Outage("The scheduler of cluster US East", NOW).waiting_words(NOW)


class FakeCluster(FakeBackend):
    """One node in memory, whose GPUs are only counted."""

    limits = ()

    def __init__(self, pool):
        group = Group("node", GPU)
        super().__init__(tuple(replace(x, id=group.gpu(x.index), group=group, node="node") for x in fake_gpus(pool, 4)))

    def room(self):
        return Room()


class Batch(LateScheduler):
    """Owns the queue of one cluster. ``told`` is what it was told last."""

    capabilities = replace(LateScheduler.capabilities, title="Batch", pod_waits_seconds=60.0)
    unfit = closed = False
    told = None

    def __init__(self, mine):
        super().__init__(mine._cluster, KINDS)

    async def meet(self):
        if self.unfit:
            raise UnusableScheduler("There is no Batch.")

    async def sync(self, seen):
        self.told = seen
        return await super().sync(seen)

    async def close(self):
        self.closed = True


class World:
    """West, the hub's own, and south have our queue; Batch owns that of east."""

    def __init__(self, kinds=KINDS):
        clusters = {"west": FakeCluster(HERE), "east": FakeCluster(THERE), "south": FakeCluster(THIRD)}
        self.backend = ClustersBackend(clusters, "west", kinds.values())
        self.ours = KubernetesScheduler(self.backend, kinds)
        self.batch = Batch(self.ours)
        self.asked = Asked("US East", self.batch)
        self.scheduler = ClustersScheduler(self.ours, "west", {"east": self.asked})

    async def looked(self):
        for _ in range(2):
            await self.backend.workspaces()  # nothing is given before what runs was seen
        await self.scheduler.observe(NOW)
        return self

    def seen(self, *line, **more):
        return Snapshot(NOW, self.scheduler.kinds, line, self.scheduler.fleet, **more)

    async def sync(self, *line):
        return await self.scheduler.sync(self.seen(*line))


@pytest.fixture
async def world(monkeypatch):
    monkeypatch.setattr(asked, "PATIENCE_SECONDS", 0.05)
    world = await World().looked()
    yield world
    await world.scheduler.close()
    assert world.batch.closed


def waits(name, gpu, count=1, asked_at=NOW, **changes):
    return a_lease(name, asked_at=asked_at, request=a_request(gpu=gpu, count=count), **changes)


class Told:
    """Counts how often the scheduler told that something changed."""

    def __init__(self, scheduler):
        self.times, self._heard = 0, asyncio.Event()
        scheduler.listen(self._hear)

    def _hear(self):
        self.times += 1
        self._heard.set()

    async def heard(self):
        await asyncio.wait_for(self._heard.wait(), 10)


def granted(answer):
    return {grant.claim.id: {slot.group.cluster for slot in grant.slots} for grant in answer.grants()}


async def test_each_is_told_of_what_asks_for_its_kinds_and_grants_its_gpus(world):
    line = [waits("here", HERE), waits("there", THERE, 2), waits("third", THIRD), waits("none", None)]
    answer = await world.sync(*line)
    assert granted(answer) == {"here": {""}, "there": {"east"}, "third": {"south"}, "none": set()}
    assert [lease.id for lease in world.batch.told.leases] == ["there"]
    assert {gpu.cluster for gpu in world.batch.told.fleet.gpus} == {"east"}
    assert list(world.batch.told.kinds) == [THERE]
    again = await world.sync(*line)
    assert [x.claim for x in again.grants()] == [x.claim for x in answer.grants()]
    assert set(answer.places()) == {"here", "there", "third", "none"}


async def test_what_each_can_is_asked_by_kind_and_of_all_it_is_the_least(world):
    of = world.scheduler.capabilities_of
    assert (of(THERE).title, of(THERE).owns_queue, of(THERE).pod_waits_seconds) == ("Batch", True, 60.0)
    for kind in (HERE, THIRD, None, "left the catalog"):
        assert of(kind) == KubernetesScheduler.capabilities
    least = Capabilities("clusters", substitutes=True, answers_at_once=False, keeps_from_all=False)
    assert world.scheduler.capabilities == least


async def test_what_holds_gpus_elsewhere_counts_for_our_quotas_and_who_waits_elsewhere_does_not(world):
    line = [
        a_lease("up", Phase.RUNNING, request=a_request(gpu=THERE), held=slots(f"east:node/{GPU}/0")),
        waits("there", THERE),
        waits("here", HERE),
    ]
    ours = world.scheduler.part(world.seen(*line), "")
    assert [lease.id for lease in ours.leases] == ["up", "here"]
    assert list(ours.kinds) == list(KINDS)
    assert {gpu.cluster for gpu in ours.fleet.gpus} == {"west", "south"}


async def test_no_node_is_started_by_our_queue_where_another_owns_it():
    pool = Autoscale(8, 4, 240.0)
    world = await World({name: replace(kind, autoscale=pool) for name, kind in KINDS.items()}).looked()
    ours = world.scheduler.part(world.seen(), "")
    assert {kind.name for kind in ours.kinds.values() if kind.autoscale} == {HERE, THIRD}
    assert world.scheduler.part(world.seen(), "east").kinds[THERE].autoscale == pool


async def test_consent_from_before_takes_nobody_into_another_queue(world):
    both = a_request(gpu=HERE, count=5, substitutes=(THERE, THIRD))
    there = a_request(gpu=THERE, count=5, substitutes=(HERE, THIRD))
    answer = await world.sync(a_lease("a", request=both), a_lease("b", request=there))
    assert granted(answer) == {}
    smaller = await world.sync(a_lease("a", request=replace(both, count=4)), waits("x", HERE, asked_at=NOW - 1))
    assert granted(smaller)["a"] == {"south"}


async def test_one_that_is_away_stops_no_grant_elsewhere_and_what_stood_stands(world):
    notice = Notice(SCHEDULER, NOW + 300, "Others need it.", "Batch")
    up = a_lease("up", Phase.RUNNING, request=a_request(gpu=THERE), held=slots(f"east:node/{GPU}/0"), notice=notice)
    held = waits("held", THERE, held_back=HeldBack("queue q", "It is on hold.", NOW))
    line = [up, held, waits("there", THERE), waits("here", HERE)]
    world.batch.mode = "away"
    answer = await world.sync(*line)
    assert granted(answer) == {"here": {""}}
    assert {name: place.says for name, place in answer.places().items() if name != "here"} == {
        "held": SAYS_AWAY,
        "there": SAYS_AWAY,
    }
    assert answer.preempted == (Preempted("up", NOW + 300, "Others need it."),)
    assert answer.held_back()["held"] == ("queue q", "It is on hold.")
    assert "The scheduler of cluster US East does not answer: The batch" in world.scheduler.unseen[0]
    with pytest.raises(Unavailable, match="US East"):
        await world.scheduler.offers(world.seen(*line), claim_of(line[2]))
    assert (await world.scheduler.offers(world.seen(*line), claim_of(line[3]))).place.likely_seconds == 0


async def test_one_that_is_back_tells_and_grants_again(world):
    told = Told(world.scheduler)
    world.batch.mode = "away"
    await world.sync(waits("there", THERE))
    world.batch.mode = "well"
    world.batch.gate.clear()
    assert granted(await world.sync(waits("there", THERE))) == {}, "it is not waited for while it is away"
    world.batch.gate.set()
    await told.heard()
    assert granted(await world.sync(waits("there", THERE))) == {"there": {"east"}}
    assert world.scheduler.unseen == ()
    assert told.times == 1, "it tells of what changed alone"


async def test_one_that_takes_long_is_asked_once_at_a_time_and_its_answer_counts_later(world):
    told = Told(world.scheduler)
    world.batch.gate.clear()
    for _ in range(3):
        assert granted(await world.sync(waits("here", HERE), waits("there", THERE))) == {"here": {""}}
    assert (world.batch.at_once, world.batch.most_at_once) == (1, 1)
    world.batch.gate.set()
    await told.heard()
    assert set(granted(await world.sync(waits("here", HERE), waits("there", THERE)))) == {"here", "there"}


async def test_what_stands_has_changed_by_leases_and_by_what_a_scheduler_tells_and_not_by_each_look(world):
    async def changed_at(now, *line):
        return (await world.scheduler.sync(replace(world.seen(*line), now=now))).last_changed

    line, batch = [waits("here", HERE), waits("there", THERE)], world.batch
    batch.capabilities = replace(batch.capabilities, answers_at_once=True)  # it changes with the snapshot alone
    assert [await changed_at(NOW + second, *line) for second in range(3)] == [NOW, NOW, NOW]
    assert await changed_at(NOW + 3, *line, waits("third", THIRD)) == NOW + 3
    batch.mode = "away"
    assert [await changed_at(NOW + 4 + second, *line) for second in range(2)] == [NOW + 4, NOW + 4]
    batch.mode, batch.capabilities = "well", replace(batch.capabilities, answers_at_once=False)
    await changed_at(NOW + 6, *line)
    await until(lambda: not world.asked.away)
    assert [await changed_at(NOW + 7 + second, *line) for second in range(2)] == [NOW + 7, NOW + 8], "as it tells"
    batch.mode = "old"
    assert await changed_at(NOW + 9, *line) == NOW + 9
    batch.gate.clear()
    assert [await changed_at(NOW + second, *line) for second in (10, 11)] == [NOW + 9] * 2, "what stood is told"
    batch.gate.set()


async def test_one_that_always_takes_long_is_heard_as_well(world, monkeypatch):
    told, decide = Told(world.scheduler), world.batch.sync

    async def slowly(seen):
        answer = await decide(seen)
        await asyncio.sleep(0.2)
        return answer

    monkeypatch.setattr(world.batch, "sync", slowly)
    assert granted(await world.sync(waits("here", HERE), waits("there", THERE))) == {"here": {""}}
    await told.heard()
    assert set(granted(await world.sync(waits("here", HERE), waits("there", THERE)))) == {"here", "there"}
    world.batch.mode = "away"
    await until(lambda: world.asked._task is None)
    await world.sync(waits("there", THERE))
    await until(lambda: world.asked.away)
    assert granted(await world.sync(waits("there", THERE))) == {}


async def test_one_that_can_not_be_used_is_away_until_it_can(world, caplog):
    world.batch.unfit = True
    assert granted(await world.sync(waits("there", THERE), waits("here", HERE))) == {"here": {""}}
    assert "There is no Batch." in world.asked.away
    world.batch.unfit = False
    for _ in range(2):
        await world.sync(waits("there", THERE))
        await asyncio.sleep(0.01)
    assert world.asked.away == ""
    assert "The scheduler of cluster US East answers again" in caplog.text


async def test_an_answer_that_can_not_be_taken_stops_nothing_elsewhere(world, monkeypatch, caplog):
    monkeypatch.setattr(world.batch, "_decide", lambda _seen: {}["what"])
    assert granted(await world.sync(waits("there", THERE), waits("here", HERE))) == {"here": {""}}
    assert world.asked.away.endswith("KeyError: the service's log says where.")
    assert "could not be taken" in caplog.text


async def test_what_is_about_one_lease_is_asked_of_the_one_that_has_it(world):
    up = a_lease("up", Phase.RUNNING, request=a_request(gpu=THERE), held=slots(f"east:node/{GPU}/0"))
    world.batch.patch = lambda *_: {"batch": True}
    world.batch.start_words = lambda _lease: "it waits in Batch's queue"
    assert world.scheduler.patch(up) == {"batch": True}
    assert world.scheduler.start_words(up) == "it waits in Batch's queue"
    here = a_lease("here", Phase.RUNNING, request=a_request(gpu=HERE), held=slots(f"node/{GPU}/0"))
    assert "pod" in (world.scheduler.patch(here) | {"pod": {}})
    assert world.scheduler.start_words(here) == ""
    gone = replace(up, request=a_request(gpu="left the catalog"))
    assert world.scheduler.patch(gone) == {"batch": True}, "the GPUs that it holds tell"


NAMES = st.sampled_from([HERE, THERE, THIRD, None, "left the catalog"])
PHASES = st.sampled_from([Phase.QUEUED, Phase.PARKED, Phase.RUNNING, Phase.STARTING])
HELD = st.sampled_from([(), (f"node/{GPU}/0",), (f"east:node/{GPU}/1",), (f"~{THERE}-0/{GPU}/0",)])


@st.composite
def leases(draw):
    found = []
    for number in range(draw(st.integers(0, 8))):
        phase, gpu = draw(PHASES), draw(NAMES)
        also = tuple(name for name in (HERE, THERE, THIRD) if name != gpu and draw(st.booleans())) if gpu else ()
        held = () if phase in WAITING or gpu is None else draw(HELD)
        request = a_request(gpu=gpu, count=draw(st.integers(1, 3)), substitutes=also)
        found.append(a_lease(f"l{number}", phase, asked_at=NOW + number, request=request, held=slots(*held)))
    return found


@given(leases())
def test_no_claim_is_ever_in_two_queues(line):
    async def judge():
        world = await World().looked()
        seen = world.seen(*line)
        ours, theirs = (world.scheduler.part(seen, cluster) for cluster in ("", "east"))
        waiting = [{x.id for x in part.leases if x.phase in WAITING} for part in (ours, theirs)]
        assert waiting[0].isdisjoint(waiting[1])
        assert waiting[0] | waiting[1] == {x.id for x in line if x.phase in WAITING}
        assert {x.id for x in line} == {x.id for part in (ours, theirs) for x in part.leases}
        grants = list((await world.scheduler.sync(seen)).grants())
        assert len({grant.claim.id for grant in grants}) == len(grants)
        for grant in grants:
            there = {slot.group.cluster == "east" for slot in grant.slots}
            assert there <= {grant.claim.id in waiting[1]}, "what is given is of the queue in which it stands"
        await world.scheduler.close()

    asyncio.run(judge())
