"""Nodes that are coming: which there may be, and that what is there goes first."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from lease_builders import A100, T4, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Autoscale
from gpuspawner.core.gpus.placement import count_all, count_free, largest_fit, place
from gpuspawner.core.gpus.pools import coming_gpus, node_wait_seconds
from gpuspawner.core.leases.lease import Phase

POOL = replace(T4, autoscale=Autoscale(most=8, each=2, start_seconds=240.0))
THERE = (gpu(0, "t4"), gpu(1, "t4"), gpu(2, "t4", node="node-2"))


def holds(*gpus, kind="t4"):
    return a_lease(phase=Phase.STARTING, held=slots(*gpus), request=a_request(gpu=kind))


def nodes(gpus):
    return sorted({one.node for one in gpus})


def test_as_many_nodes_may_come_as_are_left_of_the_most():
    assert nodes(coming_gpus([A100, POOL], (), ())) == ["~t4-0", "~t4-1", "~t4-2", "~t4-3"]
    coming = coming_gpus([A100, POOL], THERE, ())
    assert nodes(coming) == ["~t4-0", "~t4-1"], "half a node does not count"
    assert [one.id for one in coming][:2] == ["~t4-0/nvidia.com/gpu/0", "~t4-0/nvidia.com/gpu/1"]
    assert {(one.pool, one.is_coming, one.group.coming_kind) for one in coming} == {("t4", True, "t4")}


def test_a_node_that_a_lease_waits_for_is_among_them_whatever_its_number():
    assert nodes(coming_gpus([POOL], THERE, [holds("~t4-3/nvidia.com/gpu/0", "t4-0")])) == ["~t4-0", "~t4-3"]
    assert nodes(coming_gpus([POOL], THERE, [holds("~t4-3/nvidia.com/gpu/0", kind="a100")])) == ["~t4-0", "~t4-1"]


def test_a_node_that_a_pod_runs_on_is_there_though_it_is_not_seen_yet():
    assert nodes(coming_gpus([POOL], THERE, [holds("node-9/nvidia.com/gpu/0", "t4-0")])) == ["~t4-0", "~t4-1"]
    unseen = holds("node-9/nvidia.com/gpu/0", "node-9/nvidia.com/gpu/1")
    assert nodes(coming_gpus([POOL], THERE, [unseen])) == ["~t4-0"]


def test_existing_gpus_are_used_first():
    all_of_it = fleet(*THERE, *coming_gpus([POOL], THERE, ()))
    first = place(POOL, 1, all_of_it, {})
    assert [slot.gpu for slot in first] == ["t4-2"]
    used = {"t4-0": 1, "t4-2": 1}
    assert nodes_of(place(POOL, 2, all_of_it, used)) == {"~t4-0"}


def nodes_of(slots):
    return {slot.gpu.partition("/")[0] for slot in slots}


def test_future_gpus_are_neither_free_nor_present_and_can_be_requested():
    only_coming = fleet(*coming_gpus([POOL], (), ()))
    assert (count_free(POOL, only_coming, {}), count_all(POOL, only_coming), largest_fit(POOL, only_coming)) == (
        0,
        0,
        2,
    )


def test_a_node_is_waited_for_longer_than_it_usually_takes():
    assert node_wait_seconds(POOL) > 240.0
    assert node_wait_seconds(T4) == node_wait_seconds(None) == 0.0


@given(st.integers(0, 8), st.lists(st.integers(1, 2), max_size=8))
def test_promise_1_no_more_is_promised_than_the_pool_may_have(there, asked):
    """Grants on nodes that are coming, one after the other, as the scheduler makes them."""
    real = tuple(gpu(number, "t4", node=f"node-{number}") for number in range(there))
    used = {one.id: 1 for one in real}
    for count in asked:
        found = place(POOL, count, fleet(*real, *coming_gpus([POOL], real, [holds(*used)])), used)
        used |= {slot.gpu: 1 for slot in found or ()}
    assert len(used) <= 8
