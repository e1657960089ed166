"""Which node a request gets: the rules of ``place``, one by one and over many fleets."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import A100, GIB, HALF, KINDS, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Fleet, HostResources, NodeName
from gpuspawner.core.gpus.fragmentation import Demand, NodeState, ResourceRequest
from gpuspawner.core.gpus.placement import UNKNOWN_DEMAND, host_resources_left, place, sample_demand
from gpuspawner.core.leases.lease import Phase

A = frozenset({"a100"})
NODE_1, NODE_2 = NodeName("", "node-1"), NodeName("", "node-2")
ONE_EACH = (gpu(0), gpu(1, node="node-2"))
WHOLES = Demand({ResourceRequest(A, 1.0, 1, 8000, 32 * GIB): 1.0}, {"a100": 8})

gpus_of_nodes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: tuple(
        gpu(10 * node + index, node=f"node-{node}", cluster=f"c{node % 2}")
        for node, size in enumerate(sizes)
        for index in range(size)
    )
)
shares_used = st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1, 3), Fraction(1)])


@st.composite
def cases(draw):
    gpus = draw(gpus_of_nodes)
    used = {one.id: share for one in gpus if (share := draw(shares_used))}
    names = sorted({one.on for one in gpus})
    left = {name: HostResources(draw(st.integers(0, 32)) * 1000, 64 * GIB) for name in names if draw(st.booleans())}
    tried = tuple(draw(st.permutations([name.node for name in names]))[: draw(st.integers(0, len(names)))])
    kind, count = draw(st.sampled_from([A100, HALF])), draw(st.integers(1, 4))
    return kind, count, fleet(*gpus), used, tried, left, draw(st.sampled_from([UNKNOWN_DEMAND, WHOLES]))


@settings(max_examples=400)
@given(cases())
def test_a_placement_fits_and_breaks_no_rule(case):
    kind, count, seen, used, tried, left, demand = case
    needs = HostResources(8000, 32 * GIB)

    def has_room(one):
        return used.get(one.id, 0) + kind.share <= 1

    fitting = {one.on for one in seen.gpus if sum(has_room(x) for x in seen.gpus if x.on == one.on) >= count}
    placed = place(kind, count, seen, used, tried, needs=needs, left=left, demand=demand)
    if placed is None:
        assert not fitting
        return
    given_gpus = [seen.by_id[slot.gpu] for slot in placed]
    assert len({one.id for one in given_gpus}) == count, "distinct devices"
    assert all(has_room(one) and slot.share == kind.share for one, slot in zip(given_gpus, placed, strict=True))
    (node,) = {one.on for one in given_gpus}
    assert node.node not in tried or all(name.node in tried for name in fitting), "never tried before untried"
    if node.node not in tried and node in left and left[node].cpu < needs.cpu:
        lacking = {name for name in fitting if name in left and left[name].cpu < needs.cpu}
        assert lacking >= {name for name in fitting if name.node not in tried}, "never where CPU is known to lack first"
    assert placed == place(kind, count, seen, used, tried, needs=needs, left=left, demand=demand), "the same again"
    mixed = Fleet(tuple(reversed(seen.gpus)), complete=True)
    assert placed == place(kind, count, mixed, used, tried, needs=needs, left=left, demand=demand), "in any order"


@settings(max_examples=200)
@given(gpus_of_nodes, st.lists(st.booleans(), min_size=16, max_size=16), st.sampled_from([UNKNOWN_DEMAND, WHOLES]))
def test_shares_stay_together(gpus, halves, demand):
    used = {one.id: Fraction(1, 2) for one, half in zip(gpus, halves, strict=False) if half}
    (slot,) = place(HALF, 1, fleet(*gpus), used, demand=demand) or (None,)
    assert slot is not None
    assert slot.gpu in used or not used, "no whole GPU is broken while half a one is free"


@pytest.mark.parametrize(
    ("left", "given_gpu"),
    [
        ({}, "a100-0"),
        ({NODE_1: HostResources(2000, 64 * GIB)}, "a100-1"),
        ({NODE_1: HostResources(64000, GIB)}, "a100-1"),
        ({NODE_1: HostResources(2000, 64 * GIB), NODE_2: HostResources(3999, 64 * GIB)}, "a100-0"),
        ({NODE_1: HostResources(4000, 8 * GIB)}, "a100-0"),
        ({NodeName("east", "node-1"): HostResources(0, 0)}, "a100-0"),
    ],
    ids=["unknown", "CPU lacks", "memory lacks", "both lack: better there than nowhere", "just enough", "another's"],
)
def test_a_node_that_is_known_to_lack_cpu_or_memory_comes_after_those_that_are_not(left, given_gpu):
    assert place(A100, 1, fleet(*ONE_EACH), {}, needs=HostResources(4000, 8 * GIB), left=left) == slots(given_gpu)


def test_nodes_of_one_name_in_two_clusters_are_two():
    gpus = (gpu(0, cluster="east"), gpu(1, cluster="west"))
    assert place(A100, 2, fleet(*gpus), {}) is None
    assert place(A100, 1, fleet(*gpus), {"a100-0": Fraction(1)}) == slots("a100-1")


def test_small_cpu_requests_go_to_nodes_with_little_left():
    left = {NODE_1: HostResources(64000, 512 * GIB), NODE_2: HostResources(4000, 512 * GIB)}
    small, large = HostResources(2000, GIB), HostResources(16000, GIB)
    assert place(A100, 1, fleet(*ONE_EACH), {}, needs=small, left=left, demand=WHOLES) == slots("a100-1")
    assert place(A100, 1, fleet(*ONE_EACH), {}, needs=large, left=left, demand=WHOLES) == slots("a100-0")


def test_leases_take_what_they_are_guaranteed_of_the_node_that_they_hold_gpus_of():
    seen = Fleet((gpu(0), gpu(1, node="node-2")), complete=True, host_resources={NODE_1: HostResources(8000, 8 * GIB)})
    request = a_request(cpu_cores=4.0, memory_bytes=4 * GIB, cpu_guarantee_percent=25.0)
    held = a_lease("one", Phase.RUNNING, held=slots("a100-0"), request=request)
    elsewhere = a_lease("two", Phase.RUNNING, held=slots("a100-1"), request=request)
    over = a_lease("three", Phase.ENDED, held=slots("a100-0"), request=request)
    gone = a_lease("four", Phase.RUNNING, held=slots("a100-9"), request=request)
    assert host_resources_left(seen, [held, elsewhere, over, gone]) == {NODE_1: HostResources(7000, 4 * GIB)}
    assert seen.host_resources == {NODE_1: HostResources(8000, 8 * GIB)}


def test_the_demand_is_what_requests_are_a_sample_of():
    requests = [a_request(gpu="half"), a_request(gpu="a100", substitutes=("t4", "gone")), a_request(gpu=None)]
    demand = sample_demand([*requests, a_request(gpu="gone")], KINDS, fleet(gpu(0), gpu(0, pool="t4")))
    half, whole = ResourceRequest(A, 0.5, 1, 2000, GIB), ResourceRequest(A | {"t4"}, 1.0, 1, 2000, GIB)
    same = Demand({half: 1.0, whole: 1.0}, {"a100": 1, "t4": 1})
    for look in (NodeState("a100", (0.5,), 3000, GIB), NodeState("t4", (1.0,), 1000, GIB), NodeState("t4", (1.0,))):
        assert demand.waste(look) == same.waste(look)
    assert demand.growth(NodeState("t4", (1.0,)), whole) == same.growth(NodeState("t4", (1.0,)), whole)
