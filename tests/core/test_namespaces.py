"""Quotas and limits of a namespace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import GIB, a_request

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.quotas.namespaces import (
    NamespaceBounds,
    NamespaceLimit,
    NamespaceQuota,
    NodeSize,
    QuotaRemainder,
    check_namespace,
    check_nodes,
    find_lacking_quota,
    full_quota_text,
    lacking_quota_sentence,
    pod_amounts,
    quotas_after_grant,
    remaining_quotas,
)

MEMORY = NamespaceQuota("team", "memory", 64 * GIB, 40 * GIB)


def test_resources_of_a_request():
    asked = pod_amounts(a_request(cpu_cores=0.1, memory_bytes=GIB), {"nvidia.com/gpu": 1})
    whole = {"cpu": 100, "memory": GIB, "limits.cpu": 100, "limits.memory": GIB}
    assert asked == {**whole, "pods": 1, "nvidia.com/gpu": 1}


SHARED = a_request(cpu_cores=20, memory_bytes=8 * GIB, cpu_guarantee_percent=25, memory_guarantee_percent=50)


def test_nodes_and_quotas_of_requests_count_what_is_guaranteed_and_those_of_limits_the_most():
    asked = pod_amounts(SHARED, {})
    assert asked == {"cpu": 5000, "memory": 4 * GIB, "limits.cpu": 20_000, "limits.memory": 8 * GIB, "pods": 1}
    check_nodes(asked, "a100", {NodeSize(frozenset({"a100"}), 5000, 4 * GIB)})
    check_namespace(
        asked,
        NamespaceBounds(quotas=(NamespaceQuota("team", "cpu", 5000), NamespaceQuota("team", "limits.memory", 8 * GIB))),
    )
    left = (
        QuotaRemainder(NamespaceQuota("team", "limits.cpu", 30_000), 19_000),
        QuotaRemainder(NamespaceQuota("team", "cpu", 30_000), 5000),
    )
    short = find_lacking_quota(asked, left)
    assert (
        lacking_quota_sentence(short, asked)
        == "The cluster's quota team leaves 19 CPU of 30 CPU, and this needs 20 CPU."
    )


@pytest.mark.parametrize(
    ("quota", "label", "asked", "allowed", "possible"),
    [
        (NamespaceQuota("team", "cpu", 4000), "CPU cores", "20 CPU", "4 CPU guaranteed", "16 CPU"),
        (NamespaceQuota("team", "limits.memory", 6 * GIB), "Memory", "8 GiB memory", "6 GiB memory", "6 GiB memory"),
    ],
)
def test_promise_8_what_is_guaranteed_in_part_is_refused_by_what_its_user_asked(quota, label, asked, allowed, possible):
    with pytest.raises(RequestRefused) as refused:
        check_namespace(pod_amounts(SHARED, {}), NamespaceBounds(quotas=(quota,)))
    assert str(refused.value) == (
        f"{label}: You asked for {asked}. Allowed: {allowed} for all workspaces together, "
        f"by the cluster's quota team. Ask for {possible}, or ask an administrator to change it."
    )


@pytest.mark.parametrize(
    ("room", "words"),
    [
        pytest.param(
            NamespaceBounds(limits=(NamespaceLimit("each", "limits.memory", 0, 8 * GIB),)),
            "Memory: You asked for 16 GiB memory. Allowed: at most 8 GiB memory in one workspace, "
            "by the cluster's limit each. Ask for 8 GiB memory, or ask an administrator to change it.",
            id="more than one workspace may have",
        ),
        pytest.param(
            NamespaceBounds(limits=(NamespaceLimit("each", "cpu", 4000),)),
            "CPU cores: You asked for 2 CPU. Allowed: at least 4 CPU in one workspace, by the cluster's limit each. "
            "Ask for 4 CPU, or ask an administrator to change it.",
            id="less than one must have",
        ),
        pytest.param(
            NamespaceBounds(quotas=(NamespaceQuota("none", "nvidia.com/gpu", 0),)),
            "GPUs: You asked for 1 nvidia.com/gpu. Allowed: 0 nvidia.com/gpu for all workspaces together, "
            "by the cluster's quota none. Ask an administrator to raise it.",
            id="more than all may have",
        ),
    ],
)
def test_promise_8_what_can_never_fit_is_refused_with_both_quantities_and_the_next_step(room, words):
    asked = pod_amounts(a_request(memory_bytes=16 * GIB), {"nvidia.com/gpu": 1})
    with pytest.raises(RequestRefused) as refused:
        check_namespace(asked, room)
    assert str(refused.value) == words


def test_a_least_number_of_gpus_refuses_a_workspace_without_one():
    asked = pod_amounts(a_request(memory_bytes=16 * GIB), {"nvidia.com/gpu": 0})
    with pytest.raises(RequestRefused) as refused:
        check_namespace(asked, NamespaceBounds(limits=(NamespaceLimit("each", "nvidia.com/gpu", 1),)))
    assert str(refused.value) == (
        "GPUs: You asked for 0 nvidia.com/gpu. Allowed: at least 1 nvidia.com/gpu in one workspace, "
        "by the cluster's limit each. Ask for 1 nvidia.com/gpu, or ask an administrator to change it."
    )


NODES = {
    NodeSize(frozenset({"a100"}), 16_000, 64 * GIB),
    NodeSize(frozenset({"a100", "t4"}), 8_000, 256 * GIB),
    NodeSize(frozenset({"h100"}), 96_000, 1024 * GIB),
}
TOO_LARGE = {
    (32, 1): "CPU cores: You asked for 32 CPU. Allowed: at most 16 CPU on any node with such GPUs. "
    "Ask for less than 16 CPU, because the node needs some itself.",
    (2, 512): "Memory: You asked for 512 GiB memory. Allowed: at most 256 GiB memory on any node with such GPUs. "
    "Ask for less than 256 GiB memory, because the node needs some itself.",
    (12, 128): "Memory: You asked for 128 GiB memory. Allowed: at most 64 GiB memory with 12 CPU "
    "on any node with such GPUs. Ask for less than 64 GiB memory, because the node needs some itself.",
}


@pytest.mark.parametrize(("size", "words"), TOO_LARGE.items())
def test_promise_8_what_no_node_can_hold_is_refused_with_both_quantities(size, words):
    cores, memory_gib = size
    with pytest.raises(RequestRefused) as refused:
        check_nodes({"cpu": 1000 * cores, "memory": memory_gib * GIB}, "a100", NODES)
    assert str(refused.value) == words
    check_nodes({"cpu": 1000 * cores, "memory": memory_gib * GIB}, "h100", NODES)


def test_requests_that_a_node_can_hold_and_unseen_pools_are_not_refused():
    check_nodes({"cpu": 16_000, "memory": 64 * GIB}, "a100", NODES)
    check_nodes({"cpu": 8_000, "memory": 256 * GIB}, "a100", NODES)
    check_nodes({"cpu": 10**9, "memory": 1}, "l4", NODES)


def test_a_quota_used_by_others_is_not_refused():
    check_namespace({"memory": 30 * GIB}, NamespaceBounds(quotas=(MEMORY,)))
    check_namespace({"cpu": 1}, NamespaceBounds((NamespaceLimit("each", "memory", 1, 1),), (MEMORY,)))


def test_a_lease_whose_pod_a_quota_counts_is_not_counted_twice():
    held = {"there": {"memory": 16 * GIB}, "coming": {"memory": 8 * GIB}}
    (left,) = remaining_quotas(NamespaceBounds((), (MEMORY,), frozenset({"there"})), held)
    assert left.left == 16 * GIB


def test_a_quota_that_is_seen_late_does_not_leave_what_leases_hold():
    held = {"there": {"memory": 60 * GIB}}
    (left,) = remaining_quotas(NamespaceBounds((), (MEMORY,), frozenset({"there"})), held)
    assert left.left == 4 * GIB


def test_an_exhausted_quota_is_named_with_both_quantities():
    left = (QuotaRemainder(MEMORY, GIB), QuotaRemainder(NamespaceQuota("few", "pods", 1, 1), 0))
    asked = {"memory": 2 * GIB, "pods": 1}
    short = find_lacking_quota(asked, left)
    assert lacking_quota_sentence(short, asked) == (
        "The cluster's quota team leaves 1 GiB memory of 64 GiB memory, and this needs 2 GiB memory."
    )
    assert full_quota_text(left) == "the cluster's quota few is full: 1 workspace"
    assert full_quota_text(left[:1]) == ""
    assert find_lacking_quota({"memory": GIB}, left) is None


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_grants_within_what_is_left_never_exceed_a_quota(asked, hard, used):
    quota = NamespaceQuota("team", "memory", hard, used)
    left, given_out = remaining_quotas(NamespaceBounds(quotas=(quota,)), {}), 0
    for amount in asked:
        if find_lacking_quota({"memory": amount}, left) is None:
            left, given_out = quotas_after_grant(left, {"memory": amount}), given_out + amount
    assert given_out == 0 or used + given_out <= hard
