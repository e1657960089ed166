"""The cluster as it is now, through whatever the API server does."""

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from cluster_objects import a_node, a_pod, a_workspace, unschedulable
from kube_views import HUB, NODES, PODS, QUOTAS, eventually, free, listed, lists, running

from gpuspawner.backends.kubernetes import view as views
from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.pods import PRE_STOP
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.outages import API_SERVER, ETCD
from gpuspawner.core.quotas.namespaces import NamespaceBounds


async def test_changes_are_seen_as_they_come(api, a_view):
    backend = a_view()
    assert await free(backend)() == 4
    pod = api.put(a_pod(gpus={"nvidia.com/gpu": 3}))
    await eventually(free(backend), 1)
    api.put(a_node("gpu-2", gpus={"nvidia.com/gpu": 2}))
    await eventually(free(backend), 3)
    api.remove(pod)
    await eventually(free(backend), 6)
    api.put(a_node("gpu-2", gpus={"nvidia.com/gpu": 2}, cordoned=True))
    await eventually(free(backend), 4)
    api.remove(a_node("gpu-1"))
    await eventually(free(backend), 0)
    assert (lists(api), lists(api, PODS)) == (1, 1), "what was listed once is followed, not listed again"


async def test_gpus_are_matched_to_the_kinds_of_now(api, a_view):
    backend = a_view()
    assert {gpu.pool for gpu in (await backend.fleet()).gpus} == {"a100"}
    backend.use_kinds([GpuKind("new", "New", 1, match="*A100*")])
    assert {gpu.pool for gpu in (await backend.fleet()).gpus} == {"new"}
    assert lists(api) == 1, "by what is known of the nodes"


async def test_a_fleet_of_many_pages_is_complete_before_it_is_one(api, a_view):
    for number in range(25):
        api.put(a_node(f"node-{number:02}", gpus={"nvidia.com/gpu": 1}))
    backend = a_view(page=10)
    assert await free(backend)() == 4 + 25
    assert lists(api) == 3


async def test_only_nodes_that_workspaces_may_use_are_looked_at(api, a_view):
    api.put(
        a_node("other", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "pool": "users"}, {"nvidia.com/gpu": 1})
    )
    assert await free(a_view(node_selector=(("pool", "users"),)))() == 1
    assert await free(a_view(node_labels="pool=users"))() == 1
    assert await free(a_view(node_selector=(("pool", "users"),), node_labels="zone=a"))() == 0


async def test_after_a_break_the_watch_continues_from_its_version(api, a_view):
    backend = a_view()
    await free(backend)()
    await api.followed()
    api.break_watches()
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)
    assert lists(api) == 1


async def test_a_repeatedly_cut_watch_is_opened_again_just_as_quickly(api, a_view, monkeypatch):
    monkeypatch.setattr(watches, "BACK_OFF_SECONDS", (0.05, 3600.0))
    backend = a_view(stale_seconds=600.0)
    await free(backend)()
    for used in (1, 2, 3):  # by a load balancer before the API server
        await api.followed()
        api.break_watches()
        api.put(a_pod(f"pod-{used}", gpus={"nvidia.com/gpu": 1}))
        await eventually(free(backend), 4 - used)


async def test_changes_during_a_forgotten_history_are_listed_again(api, a_view, monkeypatch):
    monkeypatch.setattr(watches, "TRIES_BEFORE_LIST", 10**6)
    backend = a_view()
    gone = api.put(a_pod(gpus={"nvidia.com/gpu": 3}))
    await eventually(free(backend), 1)
    await api.stop()
    api.remove(gone)
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    api.compact()
    await api.start()
    await eventually(free(backend), 3)
    assert lists(api, PODS) > 1


async def test_a_version_that_never_works_is_given_up(api, a_view, monkeypatch):
    backend = a_view()
    await free(backend)()
    await api.followed()
    api.refused.add(("watch", NODES))  # as a watch that fails each time, whatever the reason
    api.break_watches()
    await listed(api, NODES, 2)
    api.refused.clear()
    await eventually(free(backend), 4)


async def test_the_watch_continues_from_a_bookmark(api, a_view):
    backend = a_view()
    await free(backend)()
    await api.followed()
    for number in range(3):  # foreign pods: their events never reach the watch of nodes
        api.put(a_pod(f"other-{number}", gpus={"nvidia.com/gpu": 1}, node="elsewhere"))
    api.bookmark()
    await asyncio.sleep(0.1)
    api.compact()
    api.break_watches()
    api.put(a_node("gpu-2", gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 5)
    assert lists(api) == 1


async def test_an_outage_of_the_api_server_makes_the_view_unavailable_until_it_answers(api, a_view):
    backend = a_view(stale_seconds=1.0)
    await free(backend)()
    await api.stop()
    with pytest.raises(Unavailable, match="The Kubernetes API server does not answer") as away:
        await until_it_raises(backend.fleet)
    assert away.value.part == API_SERVER
    with pytest.raises(Unavailable):
        await backend.workspaces()
    api.put(a_pod(gpus={"nvidia.com/gpu": 2}))
    await api.start()
    await eventually(free(backend), 2)


async def test_an_outage_of_etcd_makes_the_view_unavailable_although_watches_stay_open(api, a_view):
    backend = a_view(stale_seconds=1.0)
    await free(backend)()
    await api.followed()
    assert (await backend.fleet()).age_seconds < 1.0
    api.failing = 10**6
    with pytest.raises(Unavailable, match="etcdserver: request timed out") as away:
        await until_it_raises(backend.fleet)
    assert away.value.part == ETCD
    with pytest.raises(Unavailable):
        await backend.workspaces()
    assert len(api.watchers) >= 4, "no watch broke"
    api.failing = 0
    await eventually(free(backend), 4)


@pytest.mark.parametrize(("frozen", "part"), [("frozen", API_SERVER), ("database_frozen", ETCD)])
async def test_a_frozen_api_server_is_distinguished_from_a_frozen_database(api, a_view, frozen, part):
    backend = a_view(stale_seconds=1.0)
    await free(backend)()
    await api.followed()
    setattr(api, frozen, True)
    with pytest.raises(Unavailable, match="does not answer: ") as away:
        await until_it_raises(backend.fleet)
    assert (away.value.part, len(api.watchers) >= 4) == (part, True), "no watch broke"
    setattr(api, frozen, False)
    await eventually(free(backend), 4)


async def until_it_raises(ask, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await ask()
        await asyncio.sleep(0.02)


async def test_errors_and_rubbish_are_tried_again(api, a_view):
    api.failing = 5
    backend = a_view()
    assert await free(backend)() == 4
    await api.followed()
    api.garble()
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)


async def test_an_unexpected_object_hides_no_other_object(api, a_view, monkeypatch, caplog):
    trim = views.to_pod

    def fails_at_one(data, named):
        if data["metadata"]["name"] == "odd":
            raise KeyError("what a later Kubernetes leaves out")
        return trim(data, named)

    monkeypatch.setattr(views, "to_pod", fails_at_one)
    api.put(a_pod("odd"))
    backend = a_view()
    assert await free(backend)() == 4
    await api.followed()
    api.put(a_pod("odd"))
    api.put(a_pod("even", gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)
    assert "has an unreadable object, which is left out" in caplog.text


async def test_the_last_valid_version_of_an_object_is_used_if_it_becomes_invalid(api, a_view, monkeypatch, caplog):
    own = a_workspace("own", "a" * 32, gpus={"nvidia.com/gpu": 1})
    api.put(own)
    backend = a_view()

    async def seen():
        return [one.lease_id for one in await backend.workspaces()]

    assert await seen() == ["a" * 32]
    await api.followed()
    monkeypatch.setattr(views, "to_pod", lambda data, _named: data["nothing"])
    api.put(own)

    async def told():
        return "has an unreadable object" in caplog.text

    await eventually(told, wanted=True)
    assert await seen() == ["a" * 32], "it is not taken for gone"
    assert "which is kept as it was" in caplog.text
    api.remove(own)
    await eventually(seen, [])


async def test_a_silent_watch_is_opened_again(api, a_view):
    backend = a_view(silent_seconds=0.2)
    await free(backend)()
    await api.followed()
    api.watchers.clear()  # what happens from here on is never told
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)


async def test_promise_2_a_restored_older_store_is_listed_again(api, a_view):
    backend = a_view(silent_seconds=0.3)
    await free(backend)()
    await api.followed()
    api.version, api.events = 50, []
    api.watchers.clear()
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)


async def test_nothing_is_known_before_the_first_whole_list(api, a_view, monkeypatch):
    monkeypatch.setattr(views, "FIRST_LIST_SECONDS", 0.2)
    api.failing = 10**6
    backend = a_view()
    with pytest.raises(Unavailable, match="not been observed yet"):
        await backend.fleet()
    api.failing = 0
    await eventually(free(backend), 4)


async def test_with_a_namespace_for_each_user_the_quotas_of_this_one_limit_no_user(api, a_view):
    backend = a_view(all_namespaces=True)
    assert await free(backend)() == 4
    assert not lists(api, QUOTAS)
    assert replace(backend.room(), nodes=frozenset()) == NamespaceBounds()


async def test_pods_of_another_hub_are_reported_and_hold_foreign_gpus(api, a_view):
    backend = a_view()
    pod = api.put(a_workspace("one", "a" * 32, hub="another hub"))
    await eventually(running(backend), [("a", 1, ())])
    (seen,) = await backend.workspaces()
    assert seen.environment["GPUSPAWNER_HUB_ID"] == "another hub"
    assert await free(backend)() == 3
    api.remove(pod)
    await eventually(running(backend), [])


async def test_pod_metadata_is_hidden_from_users_except_in_their_own_namespaces(api, a_view):
    api.put(a_workspace("one", "a" * 32))
    (one,) = await a_view().workspaces()
    assert one.kept_since is not None
    assert one.kept_since > 0
    (elsewhere,) = await a_view(all_namespaces=True).workspaces()
    assert elsewhere.kept_since is None


async def test_workspaces_are_this_hubs_pods_until_they_are_gone(api, a_view):
    backend = a_view()
    api.put(a_workspace("one", "a" * 32, 1, gpus={"nvidia.com/gpu": 2}, deleting=True))
    api.put(a_workspace("two", "a" * 32, 2, gpus={}, node=""))
    api.put(a_workspace("three", "b" * 32, phase="Failed"))
    api.put(a_pod())
    seen = await backend.workspaces()
    assert [(r.lease_id[0], r.attempt, r.given, r.ending) for r in seen] == [
        ("a", 1, ((("gpu-1", "nvidia.com/gpu", ""), 2),), True),
        ("a", 2, None, False),
    ]
    assert seen[0].environment["GPUSPAWNER_HUB_ID"] == HUB
    assert seen[0].age_seconds > 0


async def test_a_pod_in_another_namespace_with_our_label_is_foreign(api, a_view):
    forged = a_workspace("forged", "a" * 32, gpus={"nvidia.com/gpu": 1})
    forged["metadata"]["namespace"] = "mallory"
    empty = a_workspace("empty", "b" * 32, gpus={})
    empty["metadata"]["namespace"] = "mallory"
    for pod in (forged, empty):
        api.put(pod)
    backend = a_view()
    assert await backend.workspaces() == ()
    assert await free(backend)() == 3
    everywhere = a_view(all_namespaces=True)
    assert [one.lease_id[0] for one in await everywhere.workspaces()] == ["a", "b"]
    assert await free(everywhere)() == 4


async def test_in_users_namespaces_only_signed_leases_count(api, a_view):
    own, forged = (a_workspace(name, "a" * 32, gpus={"nvidia.com/gpu": 1}) for name in ("own", "forged"))
    forged["metadata"] |= {"namespace": "mallory", "creationTimestamp": "2020-01-01T00:00:00Z"}
    forged["metadata"]["annotations"]["gpuspawner.io/lease-signature"] = "forged"
    for pod in (forged, own):
        api.put(pod)
    backend = a_view(all_namespaces=True, believes=lambda _, told: told["GPUSPAWNER_LEASE_SIGNATURE"] == "0f")
    (seen,) = await backend.workspaces()
    assert seen.given == ((("gpu-1", "nvidia.com/gpu", ""), 1),)
    assert [pod.name for pod in backend.pods_of("a" * 32)] == ["own"]
    assert await free(backend)() == 3
    assert await backend.end("a" * 32), "what is forged keeps no lease from its end"
    assert [pod["metadata"]["name"] for pod in api.objects["/api/v1/pods"].values()] == ["forged"]


async def test_a_pod_without_a_node_has_the_reason_and_the_time(api, a_view):
    backend = a_view()
    pod = a_workspace(node="", phase="Pending", conditions=[unschedulable()])
    api.put(pod)
    (seen,) = await backend.workspaces()
    assert (seen.given, seen.waiting) == (None, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    await asyncio.sleep(0.1)
    (seen,) = await backend.workspaces()
    assert 0.1 <= seen.waiting_seconds < 5, "counted here: the cluster's clock may be another"
    api.put({**pod, "spec": {**pod["spec"], "nodeName": "gpu-1"}, "status": {"phase": "Running"}})
    await eventually(running(backend), [("a", 1, ((("gpu-1", "nvidia.com/gpu", ""), 1),))])
    (seen,) = await backend.workspaces()
    assert (seen.waiting_seconds, seen.waiting) == (0.0, "")


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        '0/3 nodes are available: persistentvolumeclaim "claim-alice" not found. not found',
    ],
)
async def test_a_pod_that_waits_for_its_volume_does_not_wait_for_room(api, a_view, message):
    api.put(a_workspace(node="", phase="Pending", conditions=[unschedulable(message)]))
    (seen,) = await a_view().workspaces()
    assert (seen.waiting_seconds, seen.waiting) == (0.0, "")


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        pytest.param(
            "PreemptionByScheduler",
            "a/b",
            "The cluster needed its GPU for work with a higher priority.",
            id="preempted",
        ),
        pytest.param(
            "TerminationByKubelet",
            "Pod was terminated in response to imminent node shutdown.",
            "Its node is being shut down.",
            id="node shut down",
        ),
        pytest.param("TerminationByKubelet", "The node was low on resource: memory.", "", id="evicted for its excess"),
    ],
)
async def test_a_pod_that_the_cluster_is_about_to_end_has_the_reason(api, a_view, reason, message, told):
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    pod = a_workspace(conditions=[disrupted])
    pod["spec"]["terminationGracePeriodSeconds"] = 30
    api.put(pod)
    (seen,) = await a_view().workspaces()
    assert (seen.disruption, seen.ends_in_seconds, seen.ending) == (told, None, False), "it may end at any moment"


@pytest.mark.parametrize(
    ("hook", "grace", "left_seconds"),
    [(PRE_STOP, 60, 55), (PRE_STOP, 3, 57), ("drain", 60, None), (None, 60, None)],
)
async def test_our_hook_makes_the_end_of_a_server_known(api, a_view, hook, grace, left_seconds):
    pod, ends_at = a_workspace(), datetime.now(timezone.utc) + timedelta(seconds=60)
    pod["metadata"] |= {"deletionTimestamp": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": grace}
    command = {"exec": {"command": ["sh", "-c", "...", hook, "55", "5"]}}
    pod["spec"]["containers"][0] |= {"lifecycle": {"preStop": command}} if hook else {}
    api.put(pod)
    (seen,) = await a_view().workspaces()
    assert seen.ending
    assert seen.ends_in_seconds == (left_seconds and pytest.approx(left_seconds, abs=3))


async def test_an_unhealthy_device_is_reported_by_its_id(api, a_view):
    pod = a_workspace()
    devices = [{"resourceID": "GPU-1", "health": "Healthy"}, {"resourceID": "GPU-2", "health": "Unhealthy"}]
    other = {"name": "example.org/nic", "resources": [{"resourceID": "nic", "health": "Unhealthy"}]}
    statuses = [{"name": "nvidia.com/gpu", "resources": devices}, other]
    pod["status"]["containerStatuses"] = [{"name": "notebook", "allocatedResourcesStatus": statuses}]
    api.put(pod)
    (seen,) = await a_view().workspaces()
    assert seen.unhealthy == ("GPU-2",)


async def test_only_pods_that_count_are_kept(api, a_view):
    backend = a_view()
    await free(backend)()
    for number in range(300):
        api.put(a_pod(f"web-{number}", gpus={}))
    api.put(a_workspace())
    await eventually(running(backend), [("a", 1, ((("gpu-1", "nvidia.com/gpu", ""), 1),))])
    assert len(backend._view._pods.objects) == 1
