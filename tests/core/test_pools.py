"""The index of a pass chooses as ``place`` does over the whole fleet, whatever was taken before."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import A100, GIB, HALF, T4, fleet, gpu

from gpuspawner.core.gpus.fleet import HostResources
from gpuspawner.core.gpus.fragmentation import Demand, ResourceRequest
from gpuspawner.core.gpus.placement import UNKNOWN_DEMAND, free_share, place
from gpuspawner.core.gpus.pools import Pools

A, NEEDS = frozenset({"a100"}), st.builds(HostResources, st.integers(0, 12000), st.integers(0, 48 * GIB))
KNOWN = Demand(
    {
        ResourceRequest(A, 1.0, 1, 8000, 32 * GIB): 3.0,
        ResourceRequest(A, 0.5, 1, 2000, GIB): 1.0,
        ResourceRequest(A, 1.0, 2): 1.0,
    },
    {"a100": 9},
)


DOMAINS = st.sampled_from([(), ("NUMA 0",), ("NUMA 1",), ("NVLink 0", "NUMA 0")])


@st.composite
def fleets(draw):
    """A few nodes, of one pool or of two, some alike."""
    gpus = [
        gpu(10 * node + index, pool, node=f"node-{node // 2}", cluster=f"c{node % 2}", domains=draw(DOMAINS))
        for node, (pools, size) in enumerate(
            draw(st.lists(st.tuples(st.sampled_from([["a100"], ["a100", "t4"]]), st.integers(1, 3)), max_size=5))
        )
        for pool in pools
        for index in range(size)
    ]
    used = {
        one.id: draw(st.sampled_from([Fraction(1, 2), Fraction(1, 3), Fraction(1)]))
        for one in gpus
        if draw(st.booleans())
    }
    left = {
        one.on: HostResources(draw(st.sampled_from([4000, 16000])), 64 * GIB) for one in gpus if draw(st.booleans())
    }
    return fleet(*gpus), used, left


steps = st.lists(
    st.tuples(
        st.sampled_from([A100, HALF, T4]),
        st.integers(1, 3),
        NEEDS,
        st.lists(st.sampled_from(["node-0", "node-1", "node-2"]), unique=True, max_size=3),
        st.lists(st.integers(0, 42), max_size=2),
        st.sampled_from(["", "prefer", "require"]),
    ),
    max_size=6,
)


@settings(max_examples=300)
@given(fleets(), steps, st.sampled_from([UNKNOWN_DEMAND, KNOWN]))
def test_the_found_gpus_are_those_of_place(case, steps, demand):
    seen, used, left = case
    used, left, pools = dict(used), dict(left), Pools(seen, used, left, demand)
    for kind, count, needs, tried, kept_gpus, topology in steps:
        kept = {f"a100-{number}": Fraction(1) for number in kept_gpus}
        with_kept = {**used, **{name: used.get(name, Fraction(0)) + share for name, share in kept.items()}}
        found = pools.find(kind, count, tried, kept, needs, topology)
        assert found == place(
            kind, count, seen, with_kept, tried, needs=needs, left=left, demand=demand, topology=topology
        )
        if found is None:
            continue
        pools.take(found, needs)
        for slot in found:
            used[slot.gpu] = used.get(slot.gpu, Fraction(0)) + slot.share
        node = seen.by_id[found[0].gpu].on
        if node in left:
            left[node] = HostResources(left[node].cpu - needs.cpu, left[node].memory - needs.memory)
        assert pools.used == used


def test_a_partially_seen_fleet_gives_no_result():
    assert Pools(fleet(gpu(0), complete=False), {}).find(A100, 1) is None
    assert Pools(fleet(gpu(0)), {}).find(T4, 1) is None


def test_a_device_with_more_reserved_than_is_free_counts_as_full():
    assert free_share(gpu(0), {"a100-0": Fraction(3, 2)}) == 0
