"""Quotas and limits as an API server gives them."""

import math
from decimal import localcontext

import pytest
from harness.waiting import until
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from gpuspawner.backends.kubernetes.nodes import amount_of, to_limits, to_quota
from gpuspawner.core.quotas.namespaces import NamespaceLimit, NamespaceQuota


@pytest.mark.parametrize(
    ("resource", "quantity", "amount"),
    [
        ("memory", "8Gi", 8 * 2**30),
        ("memory", "1.5Gi", 3 * 2**29),
        ("memory", "512Mi", 2**29),
        ("memory", "1G", 10**9),
        ("memory", "128974848", 128974848),
        ("memory", "129e6", 129_000_000),
        ("memory", "1500m", 2),
        ("cpu", "2", 2000),
        ("cpu", "500m", 500),
        ("cpu", ".5", 500),
        ("cpu", "0.0001", 1),
        ("cpu", 4, 4000),
        ("limits.cpu", "500m", 500),
        ("pods", "10", 10),
        ("nvidia.com/gpu", "1k", 1000),
        ("memory", "8 Gi", None),
        ("memory", "-1", None),
        ("memory", "many", None),
        ("memory", None, None),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(resource, quantity, amount):
    assert amount_of(resource, quantity) == amount


@given(
    st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["", "m", *"kMGTPE", *(f"{letter}i" for letter in "KMGTPE"), "e3", "E6"]),
)
def test_quantities_are_what_kubernetes_own_parser_makes_of_them(number, unit):
    """That parser is of the package `kubernetes`, 30 MB that the hub does not need otherwise."""
    with localcontext(prec=60):
        assert amount_of("memory", number + unit) == math.ceil(parse_quantity(number + unit))


def a_quota(hard, used=None, **spec):
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def test_a_quota_bounds_what_workspaces_take_and_nothing_else():
    hard = {
        "requests.cpu": "8", "limits.memory": "64Gi", "count/pods": "5", "requests.nvidia.com/gpu": "4",
        "requests.example.org/board": "2", "persistentvolumeclaims": "9", "requests.storage": "1Ti", "secrets": "x",
    }  # fmt: skip
    found = to_quota(a_quota(hard, {"requests.cpu": "1500m", "count/pods": "2"}), frozenset({"example.org/board"}))
    assert set(found) == {
        NamespaceQuota("team", "cpu", 8000, 1500),
        NamespaceQuota("team", "limits.memory", 64 * 2**30),
        NamespaceQuota("team", "pods", 5, 2),
        NamespaceQuota("team", "persistentvolumeclaims", 9),
        NamespaceQuota("team", "nvidia.com/gpu", 4),
        NamespaceQuota("team", "example.org/board", 2),
    }


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        pytest.param({"scopes": ["NotTerminating", "NotBestEffort"]}, True, id="every workspace"),
        pytest.param({"scopes": ["Terminating"]}, False, id="pods that end by themselves"),
        pytest.param({"scopeSelector": {"matchExpressions": []}}, False, id="by priority"),
    ],
)
def test_a_quota_of_other_pods_limits_no_workspace(spec, counts):
    assert (to_quota(a_quota({"pods": "1"}, **spec)) is not None) is counts


def test_a_limit_bounds_one_workspace():
    container = {"type": "Container", "max": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}, "min": {"cpu": "1"}}
    pod = {"type": "Pod", "max": {"memory": "16Gi"}, "min": {"memory": "2Gi"}}
    claim = {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}
    found = to_limits({"metadata": {"name": "each"}, "spec": {"limits": [container, pod, claim]}})
    assert found == (
        NamespaceLimit("each", "cpu", 1000),
        NamespaceLimit("each", "limits.cpu", 0, 4000),
        NamespaceLimit("each", "limits.memory", 0, 8 * 2**30),
        NamespaceLimit("each", "nvidia.com/gpu", 0, 2),
        NamespaceLimit("each", "limits.memory", 0, 16 * 2**30),
    ), "what a pod must have at least, containers beside the workspace's may fill"
    assert to_limits({"metadata": {"name": "each"}, "spec": {"limits": [claim]}}) is None


async def test_a_limit_that_adds_gpus_adds_none_to_a_workspace(api, a_backend):
    """With ``max`` alone the API server stores this ``default``: see SetDefaults_LimitRangeItem of Kubernetes."""
    gpus = {"nvidia.com/gpu": "2"}
    container = {"type": "Container", "max": gpus, "default": {**gpus, "cpu": "1"}, "defaultRequest": gpus}
    found = to_limits({"metadata": {"name": "each"}, "spec": {"limits": [container]}})
    assert found == (NamespaceLimit("each", "nvidia.com/gpu", 0, 2), NamespaceLimit("each", "nvidia.com/gpu", added=2))
    assert "not_added" not in (await a_backend()).patch(())
    meta = {"name": "each", "namespace": "jhub", "uid": "l1"}
    api.put({"metadata": meta, "spec": {"limits": [container]}})
    backend = await a_backend()
    await until(lambda: backend.room().limits)
    assert backend.patch(())["not_added"] == ["nvidia.com/gpu"]
