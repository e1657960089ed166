"""Objects that the service may not observe are reported, limit nothing else, and are used once it may."""

import asyncio

import pytest
from cluster_objects import a_node, a_pod, a_workspace
from harness.waiting import until
from kube_views import LIMITS, NODES, PODS, QUOTAS, eventually, free, limits, listed, lists, running

from gpuspawner.backends.kubernetes import watches
from gpuspawner.core.errors import Unavailable


async def test_unreadable_nodes_are_no_empty_fleet(api, a_view):
    api.refused.add(("get", NODES))
    backend = a_view()
    with pytest.raises(Unavailable, match='"hub" cannot get'):
        await backend.fleet()
    assert await backend.workspaces() == (), "workspaces are seen all the same"
    api.refused.clear()
    await eventually(free(backend), 4)


async def test_unreadable_pods_of_others_are_reported_as_a_limit(api, a_view):
    api.refused.add(("get", PODS))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    api.put(a_workspace())
    backend = a_view()
    assert await free(backend)() == 4
    assert await running(backend)() == [("a", 1, ((("gpu-1", "nvidia.com/gpu", ""), 1),))]
    (limit,) = backend.limits
    assert "outside namespace jhub" in limit
    assert "is tried again. To change this, give the service a ClusterRole" in limit


async def test_a_new_right_to_read_pods_of_others_is_used(api, a_view):
    api.refused.add(("get", PODS))
    training = api.put(a_pod(gpus={"nvidia.com/gpu": 2}, namespace="train"))
    first = api.put(a_workspace())
    backend = a_view()
    assert await free(backend)() == 4
    assert len(backend.limits) == 1
    await listed(api, PODS, lists(api, PODS) + 3)  # meanwhile what may be seen is followed
    api.remove(first)
    await eventually(running(backend), [])
    second = api.put(a_workspace("two", "b" * 32))
    await eventually(running(backend), [("b", 1, ((("gpu-1", "nvidia.com/gpu", ""), 1),))])
    assert lists(api, "/api/v1/namespaces/jhub/pods") == 1, "the watch continues without another list"
    api.refused.clear()
    await eventually(free(backend), 2)
    assert backend.limits == ()
    assert await running(backend)() == [("b", 1, ((("gpu-1", "nvidia.com/gpu", ""), 1),))]
    api.remove(training)
    api.remove(second)
    await eventually(free(backend), 4)
    await eventually(running(backend), [])


async def test_one_refusal_does_not_end_the_use_of_a_right(api, a_view):
    api.refused.add(("get", PODS))
    backend = a_view()
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


async def test_without_the_right_to_read_all_namespaces_nothing_is_granted(api, a_view):
    api.refused.add(("get", PODS))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_view(all_namespaces=True)
    with pytest.raises(Unavailable, match='"hub" cannot get'):
        await backend.fleet()
    (limit,) = backend.limits
    assert limit.startswith("Pods cannot be observed in all namespaces")
    api.refused.clear()
    await eventually(free(backend), 1)
    assert backend.limits == ()


async def test_a_short_refusal_of_the_api_server_hides_nothing_for_long(api, a_view, monkeypatch):
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 60.0)
    for path in (PODS, QUOTAS):
        api.refused.add(("get", path))
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_view()
    look = asyncio.create_task(backend.fleet())
    await until(lambda: lists(api, PODS) and lists(api, QUOTAS))
    api.refused.clear()
    await look
    await eventually(free(backend), 1)
    await api.followed()
    assert backend.limits == ()


async def test_an_api_server_that_refuses_every_user_for_long_loses_no_collection(api, a_view):
    """A token that ended, or what it is checked by is away: that says nothing of what the service may see."""
    api.known = False
    api.put(a_pod(gpus={"nvidia.com/gpu": 3}, namespace="train"))
    backend = a_view()
    with pytest.raises(Unavailable, match="401: Unauthorized"):
        await backend.fleet()
    await until(lambda: lists(api) >= 20)  # by then each collection was asked for longer than a refusal must last
    api.known = True
    await eventually(free(backend), 1)
    await api.followed()
    assert backend.limits == ()


@pytest.mark.parametrize(("path", "what"), [(QUOTAS, "Quotas"), (LIMITS, "Limits")])
async def test_an_unreadable_quota_or_limit_stops_nothing(api, a_view, path, what):
    api.refused.add(("get", path))
    backend = a_view()
    assert await free(backend)() == 4
    await until(lambda: backend.limits)
    (limit,) = backend.limits
    assert limit.startswith(f"{what} of namespace jhub cannot be observed")
    api.refused.clear()
    await eventually(limits(backend), ())
    await api.followed()


async def test_a_refused_collection_is_asked_for_again_at_intervals_only(api, a_view, monkeypatch):
    api.refused.add(("get", QUOTAS))
    backend = a_view()
    await backend.fleet()
    await until(lambda: backend.limits)
    asked = lists(api, QUOTAS)
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 60.0)
    await listed(api, QUOTAS, asked + 1)  # what waited for its time by then
    await asyncio.sleep(0.2)
    assert lists(api, QUOTAS) == asked + 1
    assert len(backend.limits) == 1
