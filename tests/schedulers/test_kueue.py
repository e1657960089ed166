"""Workloads of leases, and the sentences of Kueue's answers. Kueue is simulated in memory."""

from dataclasses import replace

import pytest
from fake_kueue import RESOURCE, FakeKueue, is_true, requeued
from lease_builders import KINDS, NOW, a_lease, a_request

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import KueueQueues
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, Group
from gpuspawner.core.leases import lease as leases
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.successors import successor
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from gpuspawner.schedulers.kueue.models import Workload
from gpuspawner.schedulers.kueue.scheduler import KueueScheduler
from gpuspawner.schedulers.kueue.workloads import FAILURES, HELD, name_of
from gpuspawner.schedulers.own_queue import InMemoryScheduler

HUB = "h" * 32
LABELS = {"big": {"product": "A100"}, "small": {"product": "T4"}}
NODES = {"big": ["node-a"], "small": ["node-t"]}


class OnCluster(InMemoryScheduler):
    """A backend whose workspaces are pods."""

    def patch(self, lease, off=()):
        return {**super().patch(lease, off), "pod": {"spec": {}}}


def gpus(node, pool, count):
    group = Group(node, RESOURCE)
    return [Gpu(f"{node}/{RESOURCE}/{n}", pool, node, n, pool, 2**36, group=group) for n in range(count)]


class World:
    """Two A100 on one node and two T4 on another, each with a quota of two."""

    def __init__(self, **queues):
        self.kueue = FakeKueue({"big": 2, "small": 2}, LABELS, NODES)
        backend = FakeBackend([*gpus("node-a", "a100", 2), *gpus("node-t", "t4", 2)])
        self.cluster = KueueCluster(self.kueue, ClusterSettings("jhub"), "jhub", HUB)
        self.scheduler = KueueScheduler(self.cluster, OnCluster(backend, KINDS), KueueQueues("lq", **queues), HUB)

    async def sync(self, *line, now=NOW, turns=5, **conditions):
        """Sync until no write follows, and return the answer."""
        for _ in range(turns):
            seen = Snapshot(now, self.scheduler.kinds, line, self.scheduler.fleet, **conditions)
            answer = await self.scheduler.sync(seen)
            seen = [x for x in self.kueue.workloads.values() if x["metadata"]["labels"].get("gpuspawner.io/hub") == HUB]
            self.cluster._watch.objects = {x["metadata"]["uid"]: x for x in seen}
            self.cluster._cache.clear()
        return answer

    async def running(self, *line):
        """Return the leases as running, after their grants. Kueue knows that."""
        grants = {grant.claim.id: grant for grant in (await self.sync(*line)).grants()}
        up = tuple(
            a_lease(x.id, Phase.RUNNING, asked_at=x.asked_at, held=grants[x.id].slots, request=x.request, key=x.key)
            for x in line
        )
        await self.sync(*up)
        return up

    def of(self, lease):
        """Return the Workload of a lease."""
        return self.kueue.workloads[name_of(lease)]


async def again_with(world):
    """Return the adapter after a restart of the service."""
    mine = OnCluster(world.scheduler._own_queue._view._backend, KINDS)
    await mine.observe(NOW)
    world.scheduler = KueueScheduler(world.cluster, mine, KueueQueues("lq"), HUB)


@pytest.fixture
async def world():
    world = World()
    await world.scheduler.observe(NOW)
    yield world
    await world.scheduler.close()


async def test_each_place_is_one_workload_and_saying_it_again_writes_nothing(world):
    a = a_lease("a", request=a_request(count=2, priority=7))
    b = a_lease("b", asked_at=NOW + 1)
    answer = await world.sync(a, b)
    assert [(x.claim.id, len(x.slots)) for x in answer.grants()] == [("a", 2)]
    spec = world.of(a)["spec"]
    assert (spec["queueName"], spec["priority"], spec["active"]) == ("lq", 7, True)
    assert "maximumExecutionTimeSeconds" not in spec
    assert world.of(a)["metadata"]["labels"] == {"gpuspawner.io/hub": HUB, "gpuspawner.io/lease": "a"}
    place = answer.places()["b"]
    assert place.number == 1
    assert place.says.startswith(
        "Kueue says: position 1 in the cluster's queue cq. It waits for quota in use by others."
    )
    written = list(world.kueue.writes)
    assert len(written) == 2
    await world.sync(a, b)
    assert world.kueue.writes == written


async def test_a_workload_taken_back_by_kueue_is_warned_first_and_its_quota_freed_once_nothing_runs(world):
    (up,) = await world.running(a_lease("a", request=a_request(count=2)))
    assert is_true(world.of(up), "PodsReady")
    world.kueue.evict(name_of(up))
    (told,) = (await world.sync(up)).preempted
    assert (told.lease_id, told.at) == ("a", NOW + 300)
    assert told.why == "Kueue: its GPUs were borrowed, and their owners need them back."
    noticed = replace(up, notice=leases.EndNotice(SCHEDULER, told.at, told.why, "Kueue"))
    assert (await world.sync(noticed, now=NOW + 100)).preempted[0].at == told.at, "the notice is no longer for asking"
    assert is_true(world.of(up), "QuotaReserved"), "while it runs, its quota is its own"
    world.kueue.stop = "Hold"
    ended = replace(up, phase=Phase.ENDED, reason=ExitReason.MADE_ROOM, ended_by="Kueue")
    back = successor(ended, "a2", NOW + 300)
    await world.sync(back, now=NOW + 300)
    one = world.of(back)
    assert (name_of(back), is_true(one, "QuotaReserved"), is_true(one, "Requeued")) == (name_of(up), False, True)
    assert one["status"].get("admission") is None
    assert [verb for verb, _ in world.kueue.writes].count("create") == 1, "one Workload for one place"


async def test_a_flavor_in_which_a_pod_found_no_place_twice_is_left_out(world):
    lease = a_lease("a", request=a_request(substitutes=("t4",)))
    for attempt in (1, 2):
        (grant,) = (await world.sync(lease)).grants()
        assert (grant.kind, {slot.group.node for slot in grant.slots}) == ("", {"node-a"})
        starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
        await world.sync(starting)
        lease = transitions.requeue(starting, "No room.", 60, NOW, "node-a")
        answer = await world.sync(lease)
        assert not answer.grants(), "it backs off"
        assert not is_true(world.of(lease), "QuotaReserved"), "and holds no quota meanwhile"
        assert world.of(lease)["spec"]["active"] is False
        lease = replace(lease, not_before=NOW)
        assert lease.attempt == attempt + 1
    (grant,) = (await world.sync(lease)).grants()
    assert (grant.kind, {slot.group.node for slot in grant.slots}) == ("t4", {"node-t"})
    assert [verb for verb, _ in world.kueue.writes].count("create") == 1


async def test_a_kind_that_its_user_did_not_consent_to_is_never_given(world):
    line = [a_lease(name, asked_at=NOW + n, request=a_request(count=2)) for n, name in enumerate("ab")]
    answer = await world.sync(*line)
    assert [x.claim.id for x in answer.grants()] == ["a"]
    assert "b" in answer.places()


async def test_while_its_hub_is_away_who_is_parked_is_not_offered_and_keeps_the_place(world):
    lease = a_lease("a", Phase.PARKED)
    assert (await world.sync(lease)).grants()
    assert not (await world.sync(lease, hub_answers=False)).grants()
    assert not is_true(world.of(lease), "QuotaReserved")
    assert (await world.sync(lease)).grants()
    assert [verb for verb, _ in world.kueue.writes].count("create") == 1


async def test_a_manually_deleted_workload_is_made_again_and_its_workspace_continues(world):
    (up,) = await world.running(a_lease("a", request=a_request(count=2)))
    world.kueue.forget()
    world.cluster._watch.objects = {}
    answer = await world.sync(up)
    assert (answer.grants(), answer.preempted) == ([], ())
    assert is_true(world.of(up), "PodsReady"), "it has its quota again"


async def test_an_ended_workload_is_finished_and_deleted_and_the_next_gets_its_quota(world):
    (up,) = await world.running(a_lease("a", request=a_request(count=2)))
    waits = a_lease("b", asked_at=NOW + 1)
    assert not (await world.sync(up, waits)).grants()
    answer = await world.sync(waits)
    assert [x.claim.id for x in answer.grants()] == ["b"]
    assert name_of(up) not in world.kueue.workloads
    assert [verb for verb, name in world.kueue.writes if name == name_of(up)][-2:] == ["status", "delete"]


async def test_a_workload_evicted_during_its_start_continues_and_is_warned_once_it_runs(world):
    lease = a_lease("a", request=a_request(count=2))
    (grant,) = (await world.sync(lease)).grants()
    starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
    await world.sync(starting)
    world.kueue.evict(name_of(lease), reason="PodsReadyTimeout")
    answer = await world.sync(starting)
    assert (answer.grants(), answer.preempted) == ([], ())
    assert is_true(world.of(lease), "QuotaReserved"), "its pod may exist, so its GPUs stay reserved"
    (told,) = (await world.sync(replace(starting, phase=Phase.RUNNING, running_at=NOW))).preempted
    assert (told.at, told.why) == (NOW + 300, "Kueue: It was not ready within Kueue's time limit.")


async def test_a_workload_evicted_during_a_failing_start_waits_at_its_place(world):
    lease = a_lease("a", request=a_request(count=2))
    (grant,) = (await world.sync(lease)).grants()
    starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
    await world.sync(starting)
    world.kueue.evict(name_of(lease))
    later = a_lease("b", asked_at=NOW + 1)
    failed = transitions.requeue(starting, "No room.", 60, NOW, "node-a")
    answer = await world.sync(failed, later)
    assert [x.claim.id for x in answer.grants()] == ["b"], "its quota is free once nothing of it runs"
    assert not is_true(world.of(failed), "QuotaReserved")
    assert [verb for verb, name in world.kueue.writes if name == name_of(lease)].count("create") == 1


@pytest.mark.parametrize("odd", ["9" * 5000, "²", '{"big": 1e999}', '{"big": "x"}', "null", "[" * 9000, "-1", ""])
async def test_changed_annotations_stop_no_workspace(world, odd):
    lease = a_lease("a", request=a_request(count=2))
    (grant,) = (await world.sync(lease)).grants()
    starting = replace(lease, phase=Phase.STARTING, slots=grant.slots)
    await world.sync(starting)
    failed = transitions.requeue(starting, "No room.", 60, NOW, "node-a")
    world.of(lease)["metadata"]["annotations"] |= {HELD: odd, FAILURES: odd}
    answer = await world.sync(failed, a_lease("b", asked_at=NOW + 1))
    assert [x.claim.id for x in answer.grants()] == ["b"]


async def test_a_workload_without_its_labels_is_found_again_and_finished_at_the_end(world):
    (up,) = await world.running(a_lease("a", request=a_request(count=2)))
    uid, waits = world.of(up)["metadata"]["uid"], a_lease("b", asked_at=NOW + 1)
    world.of(up)["metadata"]["labels"] = {"own": "1"}
    world.cluster._watch.objects = {}
    assert not (await world.sync(up, waits)).grants()
    assert world.of(up)["metadata"]["labels"] == {"own": "1", "gpuspawner.io/hub": HUB, "gpuspawner.io/lease": "a"}
    assert world.of(up)["metadata"]["uid"] == uid
    assert [x.claim.id for x in (await world.sync(waits)).grants()] == ["b"]


async def test_nothing_is_granted_of_one_that_is_being_deleted(world):
    lease = a_lease("a")
    await world.sync(lease)
    world.of(lease)["metadata"]["deletionTimestamp"] = "2026-11-25T12:00:00Z"
    assert not (await world.sync(lease)).grants()


async def test_after_ten_minutes_without_the_service_nothing_is_doubled_or_lost(world):
    up, taken = await world.running(a_lease("a"), a_lease("b", asked_at=NOW + 1))
    waits = a_lease("c", asked_at=NOW + 2, request=a_request(count=2))
    assert not (await world.sync(up, taken, waits)).grants()
    world.kueue.evict(name_of(taken))
    await again_with(world)
    before = {x["metadata"]["uid"] for x in world.kueue.workloads.values()}
    answer = await world.sync(up, taken, waits, now=NOW + 600)
    assert (answer.grants(), [(x.lease_id, x.at) for x in answer.preempted]) == ([], [("b", NOW + 900)])
    assert answer.places()["c"].number == 1
    assert {x["metadata"]["uid"] for x in world.kueue.workloads.values()} == before


async def test_a_queue_that_sends_its_work_elsewhere_is_refused_with_the_reason(world):
    world.kueue.checks = {"far": "kueue.x-k8s.io/multikueue"}
    (refused,) = (await world.sync(a_lease("a"))).refused
    assert "MultiKueue" in refused.why
    assert not world.kueue.workloads


async def test_a_queue_without_a_spec_blocks_no_other_queue():
    world = World(users={"bob": "bare"})
    await world.scheduler.observe(NOW)
    answer = await world.sync(a_lease("a"), a_lease("b", asked_at=NOW + 1, request=a_request(user="bob", count=2)))
    await world.scheduler.close()
    assert [x.claim.id for x in answer.grants()] == ["a"]
    assert "b" in answer.places()


async def test_a_queue_on_hold_says_so_and_nothing_is_granted(world):
    world.kueue.stop = "Hold"
    answer = await world.sync(a_lease("a"))
    assert not answer.grants()
    assert "The queue is on hold" in answer.places()["a"].says
    assert answer.wait_reasons()["a"].rule == "queue lq"


async def test_without_the_api_of_places_the_reason_is_told_and_the_place_is_not_known(world):
    world.kueue.places_away = True
    place = (await world.sync(a_lease("a", request=a_request(count=2)), a_lease("b", asked_at=NOW + 1))).places()["b"]
    assert place.number is None
    assert place.says.endswith("Kueue does not report positions now.")
    assert world.scheduler.unseen == ("Kueue does not report positions now.",)


async def test_while_the_api_server_is_away_what_stood_stands(world):
    lease = a_lease("a")
    await world.sync(lease)
    world.kueue.away = True
    world.cluster._cache.clear()
    with pytest.raises(Unavailable):
        await world.sync(lease, turns=1)


async def test_the_pod_gets_what_its_flavor_its_checks_and_its_place_in_the_topology_say(world):
    lease = a_lease("a")
    await world.sync(lease)
    one = world.of(lease)
    one["status"]["admissionChecks"] = [
        {"name": "ready", "state": "Ready", "podSetUpdates": [{"name": "main", "nodeSelector": {"pool": "p"},
         "tolerations": [{"key": "k", "operator": "Exists"}], "annotations": {"request": "r"}}]}
    ]  # fmt: skip
    value = {"individual": {"prefix": "node-", "roots": ["a", "b"]}}
    one["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {
        "levels": ["kubernetes.io/hostname"], "slices": [{"domainCount": 2, "valuesPerLevel": [value]}],
    }  # fmt: skip
    (grant,) = (await world.sync(lease)).grants()
    beside = world.scheduler.patch(replace(lease, phase=Phase.RESERVED, slots=grant.slots))["pod"]["beside"]
    assert beside["nodeSelector"] == {"product": "A100", "pool": "p", "kubernetes.io/hostname": "node-a"}
    assert beside["tolerations"] == [{"key": "k", "operator": "Exists"}]
    counted = {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    assert beside["annotations"] == {"request": "r", **counted}, "Kueue does not count it twice on its node"
    reserved = replace(lease, phase=Phase.RESERVED, slots=grant.slots)
    await again_with(world)
    with pytest.raises(Unavailable):
        world.scheduler.patch(reserved)
    await world.sync(reserved, turns=1)
    assert world.scheduler.patch(reserved)["pod"]["beside"] == beside


async def test_teams_and_users_have_queues_of_their_own(world):
    world.scheduler._queues = KueueQueues("lq", {"ml": "of-ml"}, {"bob": "of-bob"})
    requests = (a_request(team="ml", user="bob"), a_request(user="bob"), a_request())
    line = [a_lease(f"l{n}", asked_at=NOW + n, request=request) for n, request in enumerate(requests)]
    await world.sync(*line)
    assert [world.of(x)["spec"]["queueName"] for x in line] == ["of-ml", "of-bob", "lq"]


async def test_a_changed_request_gives_back_what_was_admitted_and_keeps_the_workload(world):
    lease = a_lease("a", request=a_request(count=2))
    assert len((await world.sync(lease)).grants()[0].slots) == 2
    fewer = transitions.join(lease, a_request(count=1), {}, start_id="start-2", boot_id="b", now=NOW)
    (grant,) = (await world.sync(fewer, turns=8)).grants()
    assert (len(grant.slots), grant.claim) == (1, claim_of(fewer))
    assert [verb for verb, _ in world.kueue.writes].count("create") == 1
    assert requeued(world.of(fewer)) is None


def test_a_request_that_waits_for_an_admission_check_reads_which():
    status = {
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "admissionChecks": [{"name": "nodes", "state": "Pending"}],
    }
    assert not Workload({"metadata": {"name": "w"}, "spec": {}, "status": status}).admitted


async def test_a_refusal_by_kueue_is_shown_to_its_users_only_while_it_lasts(world):
    a, b = a_lease("a", request=a_request(count=2)), a_lease("b", asked_at=NOW + 1)
    world.kueue.refuses, world.kueue.places_away = name_of(a), True
    world.kueue.stop = "Hold"
    places = (await world.sync(a, b)).places()
    assert "is invalid" in places["a"].says
    assert "is invalid" not in places["b"].says
    assert any("is invalid" in words for words in world.scheduler.unseen)
    await world.sync(b)
    assert not any("is invalid" in words for words in world.scheduler.unseen)
