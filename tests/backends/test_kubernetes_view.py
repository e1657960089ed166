"""The cluster as it is now, through whatever the API server does."""

import asyncio
import time
from dataclasses import replace

import pytest
from cluster_objects import a_node, a_pod, a_workspace, unschedulable

from gpuspawner.backends.kubernetes import view as views
from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus import GpuKind
from gpuspawner.core.room import Room

HUB = "h" * 32
KINDS = [GpuKind("a100", "A100", 80 * 2**30, match="*A100*80GB")]
NODES, PODS, QUOTAS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/jhub/resourcequotas"
LIMITS = "/api/v1/namespaces/jhub/limitranges"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watches, "BACK_OFF_SECONDS", (0.05,))
    monkeypatch.setattr(watches, "SHORTEST_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 0.2)


@pytest.fixture
async def a_backend(api, tmp_path):
    made = []

    def make(**settings):
        kubeconfig = api.kubeconfig(tmp_path)
        backend = KubernetesBackend(
            KINDS, HUB, ClusterSettings("jhub", kubeconfig, **{"stale_seconds": 2.0, **settings})
        )
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.close()


async def eventually(look, wanted, seconds=60.0):
    """Look until it is so; a view is never asked to be newer than what it heard."""
    until = time.monotonic() + seconds
    while True:
        try:
            seen = await look()
        except Unavailable as error:
            seen = error
        if seen == wanted:
            return
        assert time.monotonic() < until, f"{seen!r} is not {wanted!r}"
        await asyncio.sleep(0.02)


def free(backend):
    async def look():
        return sum(gpu.healthy and not gpu.foreign for gpu in (await backend.fleet()).gpus)

    return look


def running(backend):
    async def look():
        return [(r.lease_id[:1], r.attempt, r.given) for r in await backend.workspaces()]

    return look


def limits(backend):
    async def look():
        return backend.limits

    return look


def lists(api, path=NODES):
    return sum((verb, asked) == ("get", path) for verb, asked, _ in api.asked)


async def listed(api, path, times):
    async def short():
        return max(0, times - lists(api, path))

    await eventually(short, 0)


async def test_changes_are_seen_as_they_come(api, a_backend):
    backend = a_backend()
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


async def test_a_fleet_of_many_pages_is_complete_before_it_is_one(api, a_backend):
    for number in range(25):
        api.put(a_node(f"node-{number:02}", gpus={"nvidia.com/gpu": 1}))
    backend = a_backend(page=10)
    assert await free(backend)() == 4 + 25
    assert lists(api) == 3


async def test_only_nodes_that_workspaces_may_use_are_looked_at(api, a_backend):
    api.put(
        a_node("other", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "pool": "users"}, {"nvidia.com/gpu": 1})
    )
    assert await free(a_backend(node_selector=(("pool", "users"),)))() == 1
    assert await free(a_backend(node_labels="pool=users"))() == 1
    assert await free(a_backend(node_selector=(("pool", "users"),), node_labels="zone=a"))() == 0


async def test_after_a_break_it_goes_on_where_it_was(api, a_backend):
    backend = a_backend()
    await free(backend)()
    await api.followed()
    api.break_watches()
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)
    assert lists(api) == 1


async def test_a_watch_that_is_cut_again_and_again_is_asked_anew_as_soon_each_time(api, a_backend, monkeypatch):
    monkeypatch.setattr(watches, "BACK_OFF_SECONDS", (0.05, 3600.0))
    backend = a_backend(stale_seconds=600.0)
    await free(backend)()
    for used in (1, 2, 3):  # by a load balancer before the API server
        await api.followed()
        api.break_watches()
        api.put(a_pod(f"pod-{used}", gpus={"nvidia.com/gpu": 1}))
        await eventually(free(backend), 4 - used)


async def test_what_happened_while_the_past_was_forgotten_is_listed_anew(api, a_backend, monkeypatch):
    monkeypatch.setattr(watches, "TRIES_BEFORE_LISTING", 10**6)
    backend = a_backend()
    gone = api.put(a_pod(gpus={"nvidia.com/gpu": 3}))
    await eventually(free(backend), 1)
    await api.stop()
    api.remove(gone)
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    api.compact()
    await api.start()
    await eventually(free(backend), 3)
    assert lists(api, PODS) > 1


async def test_a_version_that_never_works_is_given_up(api, a_backend, monkeypatch):
    backend = a_backend()
    await free(backend)()
    await api.followed()
    api.refused.add(("watch", NODES))  # as a watch that fails each time, whatever the reason
    api.break_watches()
    await asyncio.sleep(0.5)
    api.refused.clear()
    await eventually(free(backend), 4)
    assert lists(api) > 1


async def test_a_bookmark_is_where_to_go_on_from(api, a_backend):
    backend = a_backend()
    await free(backend)()
    await api.followed()
    for number in range(3):  # pods that are none of ours: their events never reach the watch of nodes
        api.put(a_pod(f"other-{number}", gpus={"nvidia.com/gpu": 1}, node="elsewhere"))
    api.bookmark()
    await asyncio.sleep(0.1)
    api.compact()
    api.break_watches()
    api.put(a_node("gpu-2", gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 5)
    assert lists(api) == 1


async def test_without_the_api_server_nothing_is_seen_and_with_it_again_all(api, a_backend):
    backend = a_backend(stale_seconds=0.3)
    await free(backend)()
    await api.stop()
    await asyncio.sleep(0.5)
    with pytest.raises(Unavailable, match="has not answered for"):
        await backend.fleet()
    with pytest.raises(Unavailable):
        await backend.workspaces()
    api.put(a_pod(gpus={"nvidia.com/gpu": 2}))
    await api.start()
    await eventually(free(backend), 2)


async def test_errors_and_rubbish_are_tried_again(api, a_backend):
    api.failing = 5
    backend = a_backend()
    assert await free(backend)() == 4
    await api.followed()
    api.garble()
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)


async def test_a_watch_that_falls_silent_is_asked_anew(api, a_backend):
    backend = a_backend(silent_seconds=0.2)
    await free(backend)()
    await api.followed()
    api.watchers.clear()  # what happens from here on is never told
    api.put(a_pod(gpus={"nvidia.com/gpu": 1}))
    await eventually(free(backend), 3)


async def test_nothing_is_known_before_the_first_whole_list(api, a_backend, monkeypatch):
    monkeypatch.setattr(views, "FIRST_LOOK_SECONDS", 0.2)
    api.failing = 10**6
    backend = a_backend()
    with pytest.raises(Unavailable, match="not been seen yet"):
        await backend.fleet()
    api.failing = 0
    await eventually(free(backend), 4)


async def test_nodes_that_may_not_be_seen_are_no_empty_fleet(api, a_backend):
    api.refused.add(("get", NODES))
    backend = a_backend()
    with pytest.raises(Unavailable, match='"hub" cannot get'):
        await backend.fleet()
    assert await backend.workspaces() == (), "workspaces are seen all the same"
    api.refused.clear()
    await eventually(free(backend), 4)


async def test_pods_of_others_that_may_not_be_seen_are_told_as_a_limit(api, a_backend):
    api.refused.add(("get", PODS))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    api.put(a_workspace())
    backend = a_backend()
    assert await free(backend)() == 4
    assert await running(backend)() == [("a", 1, (("gpu-1/nvidia.com/gpu", 1),))]
    (limit,) = backend.limits
    assert "outside namespace jhub" in limit
    assert "ClusterRole" in limit


async def test_the_right_to_see_pods_of_others_is_used_once_it_is_given(api, a_backend):
    api.refused.add(("get", PODS))
    training = api.put(a_pod(gpus={"nvidia.com/gpu": 2}, namespace="train"))
    first = api.put(a_workspace())
    backend = a_backend()
    assert await free(backend)() == 4
    assert len(backend.limits) == 1
    await listed(api, PODS, lists(api, PODS) + 3)  # meanwhile what may be seen is followed
    api.remove(first)
    await eventually(running(backend), [])
    second = api.put(a_workspace("two", "b" * 32))
    await eventually(running(backend), [("b", 1, (("gpu-1/nvidia.com/gpu", 1),))])
    assert lists(api, "/api/v1/namespaces/jhub/pods") == 1, "it is followed on, not listed anew"
    api.refused.clear()
    await eventually(free(backend), 2)
    assert backend.limits == ()
    assert await running(backend)() == [("b", 1, (("gpu-1/nvidia.com/gpu", 1),))]
    api.remove(training)
    api.remove(second)
    await eventually(free(backend), 4)
    await eventually(running(backend), [])


async def test_a_right_that_was_given_is_not_given_up_for_a_refusal(api, a_backend):
    api.refused.add(("get", PODS))
    backend = a_backend()
    await backend.fleet()
    assert len(backend.limits) == 1
    api.refused.clear()
    await eventually(limits(backend), ())
    await api.followed()
    api.refused.add(("get", PODS))
    asked = lists(api, PODS)
    api.put(a_node("gpu-2", gpus={}))
    api.compact()  # what the watch of pods would go on from is gone
    api.break_watches()
    await listed(api, PODS, asked + 10)  # for longer than a refusal must last
    with pytest.raises(Unavailable, match='"hub" cannot get'):
        await backend.fleet()
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    api.refused.clear()
    await eventually(free(backend), 1)
    assert backend.limits == ()


async def test_pods_of_all_namespaces_that_may_not_be_seen_are_nothing_to_go_on_by_until_they_may(api, a_backend):
    api.refused.add(("get", PODS))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_backend(all_namespaces=True)
    with pytest.raises(Unavailable, match='"hub" cannot get'):
        await backend.fleet()
    (limit,) = backend.limits
    assert limit.startswith("Pods are not seen in all namespaces")
    api.refused.clear()
    await eventually(free(backend), 1)
    assert backend.limits == ()


async def test_an_api_server_that_refuses_for_a_moment_hides_nothing_for_long(api, a_backend, monkeypatch):
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 60.0)
    for path in (PODS, QUOTAS):
        api.refused.add(("get", path))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_backend()
    look = asyncio.create_task(backend.fleet())
    while not lists(api, PODS) or not lists(api, QUOTAS):
        await asyncio.sleep(0.01)
    api.refused.clear()
    await look
    await eventually(free(backend), 1)
    await api.followed()
    assert backend.limits == ()


async def test_an_api_server_that_knows_nobody_for_long_refuses_no_collection(api, a_backend):
    """A token that ended, or what it is checked by is away: that says nothing of what the service may see."""
    api.known = False
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_backend()
    with pytest.raises(Unavailable, match="401: Unauthorized"):
        await backend.fleet()
    while lists(api) < 20:  # by then each collection was asked for longer than a refusal must last
        await asyncio.sleep(0.01)
    api.known = True
    await eventually(free(backend), 1)
    await api.followed()
    assert backend.limits == ()


@pytest.mark.parametrize(("path", "what"), [(QUOTAS, "Quotas"), (LIMITS, "Limits")])
async def test_a_quota_or_a_limit_that_may_not_be_seen_stops_nothing(api, a_backend, path, what):
    api.refused.add(("get", path))
    backend = a_backend()
    assert await free(backend)() == 4
    while not backend.limits:
        await asyncio.sleep(0.01)
    (limit,) = backend.limits
    assert limit.startswith(f"{what} of namespace jhub are not seen")
    api.refused.clear()
    await eventually(limits(backend), ())
    await api.followed()


async def test_what_is_refused_is_asked_for_again_every_so_often_and_no_more(api, a_backend, monkeypatch):
    api.refused.add(("get", QUOTAS))
    backend = a_backend()
    await backend.fleet()
    while not backend.limits:
        await asyncio.sleep(0.01)
    asked = lists(api, QUOTAS)
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 60.0)
    await listed(api, QUOTAS, asked + 1)  # what waited for its time by then
    await asyncio.sleep(0.2)
    assert lists(api, QUOTAS) == asked + 1
    assert len(backend.limits) == 1


async def test_where_each_user_has_a_namespace_the_quotas_of_this_one_bound_nobody(api, a_backend):
    backend = a_backend(all_namespaces=True)
    assert await free(backend)() == 4
    assert not lists(api, QUOTAS)
    assert replace(backend.room(), nodes=frozenset()) == Room()


async def test_workspaces_are_this_hubs_pods_until_they_are_gone(api, a_backend):
    backend = a_backend()
    api.put(a_workspace("one", "a" * 32, 1, gpus={"nvidia.com/gpu": 2}, deleting=True))
    api.put(a_workspace("two", "a" * 32, 2, gpus={}, node=""))
    api.put(a_workspace("three", "b" * 32, phase="Failed"))
    api.put(a_workspace("four", "c" * 32, hub="another hub"))
    api.put(a_pod())
    seen = await backend.workspaces()
    assert [(r.lease_id[0], r.attempt, r.given, r.ending) for r in seen] == [
        ("a", 1, (("gpu-1/nvidia.com/gpu", 2),), True),
        ("a", 2, None, False),
    ]
    assert seen[0].environment["GPUSPAWNER_HUB_ID"] == HUB
    assert seen[0].age_seconds > 0


async def test_a_pod_elsewhere_that_says_it_is_ours_is_a_stranger(api, a_backend):
    forged = a_workspace("forged", "a" * 32, gpus={"nvidia.com/gpu": 1})
    forged["metadata"]["namespace"] = "mallory"
    empty = a_workspace("empty", "b" * 32, gpus={})
    empty["metadata"]["namespace"] = "mallory"
    for pod in (forged, empty):
        api.put(pod)
    backend = a_backend()
    assert await backend.workspaces() == ()
    assert await free(backend)() == 3
    everywhere = a_backend(all_namespaces=True)
    assert [one.lease_id[0] for one in await everywhere.workspaces()] == ["a", "b"]
    assert await free(everywhere)() == 4


async def test_a_pod_that_finds_no_place_says_why_and_for_how_long(api, a_backend):
    backend = a_backend()
    pod = a_workspace(node="", phase="Pending", conditions=[unschedulable()])
    api.put(pod)
    (seen,) = await backend.workspaces()
    assert (seen.given, seen.waiting) == (None, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    await asyncio.sleep(0.1)
    (seen,) = await backend.workspaces()
    assert 0.1 <= seen.waiting_seconds < 5, "counted here: the cluster's clock may be another"
    api.put({**pod, "spec": {**pod["spec"], "nodeName": "gpu-1"}, "status": {"phase": "Running"}})
    await eventually(running(backend), [("a", 1, (("gpu-1/nvidia.com/gpu", 1),))])
    (seen,) = await backend.workspaces()
    assert (seen.waiting_seconds, seen.waiting) == (0.0, "")


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        '0/3 nodes are available: persistentvolumeclaim "claim-alice" not found. not found',
    ],
)
async def test_a_pod_that_waits_for_its_volume_does_not_wait_for_room(api, a_backend, message):
    api.put(a_workspace(node="", phase="Pending", conditions=[unschedulable(message)]))
    (seen,) = await a_backend().workspaces()
    assert (seen.waiting_seconds, seen.waiting) == (0.0, "")


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        pytest.param(
            "PreemptionByScheduler", "a/b", "The cluster needs its GPU for more important work.", id="preempted"
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
async def test_a_pod_that_the_cluster_is_about_to_end_for_something_else_says_why(
    api, a_backend, reason, message, told
):
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    pod = a_workspace(conditions=[disrupted])
    pod["spec"]["terminationGracePeriodSeconds"] = 30
    api.put(pod)
    (seen,) = await a_backend().workspaces()
    assert (seen.disruption, seen.ends_in_seconds, seen.ending) == (told, 30 if told else None, False)


async def test_a_device_that_the_kubelet_calls_unhealthy_is_told_by_its_own_name(api, a_backend):
    pod = a_workspace()
    devices = [{"resourceID": "GPU-1", "health": "Healthy"}, {"resourceID": "GPU-2", "health": "Unhealthy"}]
    other = {"name": "example.org/nic", "resources": [{"resourceID": "nic", "health": "Unhealthy"}]}
    statuses = [{"name": "nvidia.com/gpu", "resources": devices}, other]
    pod["status"]["containerStatuses"] = [{"name": "notebook", "allocatedResourcesStatus": statuses}]
    api.put(pod)
    (seen,) = await a_backend().workspaces()
    assert seen.unhealthy == ("GPU-2",)


async def test_of_many_pods_only_those_that_count_are_kept(api, a_backend):
    backend = a_backend()
    await free(backend)()
    for number in range(300):
        api.put(a_pod(f"web-{number}", gpus={}))
    api.put(a_workspace())
    await eventually(running(backend), [("a", 1, (("gpu-1/nvidia.com/gpu", 1),))])
    assert len(backend._view._pods.objects) == 1
