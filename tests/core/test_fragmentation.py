"""The GPUs that a placement makes useless to others: fragments, stranded GPUs, and GPUs wanted by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.gpus import fragmentation
from gpuspawner.core.gpus.fragmentation import Demand, NodeState, ResourceRequest

A, B = frozenset({"a"}), frozenset({"b"})
GPUS = {"a": 8, "b": 8}
GIB = 2**30

pools = st.sampled_from([A, B, A | B])
asks = st.one_of(
    st.builds(
        ResourceRequest,
        pools,
        st.sampled_from([1.0, 0.5, 0.25, 0.8]),
        st.just(1),
        st.integers(0, 32000),
        st.integers(0, 64 * GIB),
    ),
    st.builds(
        ResourceRequest, pools, st.just(1.0), st.integers(2, 4), st.integers(0, 64000), st.integers(0, 128 * GIB)
    ),
    st.builds(ResourceRequest, pools, st.just(0.0), st.just(0), st.integers(0, 32000), st.integers(0, 64 * GIB)),
)
looks = st.builds(
    NodeState,
    st.sampled_from(["a", "b"]),
    st.lists(st.sampled_from([0.0, 0.2, 0.25, 0.5, 0.75, 1.0]), max_size=8).map(lambda free: tuple(sorted(free))),
    st.none() | st.integers(0, 128000),
    st.none() | st.integers(0, 512 * GIB),
)
demands = st.dictionaries(asks, st.integers(1, 9).map(float), max_size=6)


def plainly(look, asks, stranded):
    """The waste of a node, ask by ask, as the module's docstring says it."""
    of_gpus = {ask: often for ask, often in asks.items() if ask.gpus}
    free, all_asks = sum(look.free), sum(of_gpus.values())
    fragments = sum(
        often * (sum(one for one in look.free if one < ask.share) if look.fits(ask) else free)
        for ask, often in of_gpus.items()
    )
    own = [(ask, often * ask.share * ask.gpus) for ask, often in of_gpus.items() if look.pool in ask.pools]
    left = 0.0
    for ask, weight in own:
        times = [
            float("inf") if has is None or not takes else has / takes
            for has, takes in ((look.cpu, ask.cpu), (look.memory, ask.memory))
        ]
        left += weight * max(0.0, free - min(times) * ask.share * ask.gpus)
    return fragments / all_asks + stranded * (left / sum(weight for _, weight in own) if own else 0.0)


@given(looks, demands.filter(lambda asks: any(ask.gpus for ask in asks)))
def test_the_tables_say_what_the_asks_say_one_by_one(look, asks):
    assert Demand(asks, GPUS, stranded=0.5).waste(look) == pytest.approx(plainly(look, asks, 0.5), abs=1e-6)


@given(looks, asks, demands)
def test_taken_gpus_fit_and_the_rest_stays(look, ask, asks):
    if not look.fits(ask):
        return
    taken = Demand(asks, GPUS).growth(look, ask).taken
    assert len(taken) == ask.gpus
    assert all(one >= ask.share for one in taken)
    after = look.without(ask, taken)
    assert sum(look.free) - sum(after.free) == pytest.approx(ask.share * ask.gpus)
    assert (after.pool, len(after.free)) == (look.pool, len(look.free))
    assert (after.cpu is None, after.memory is None) == (look.cpu is None, look.memory is None)
    assert min(after.free, default=0.0) >= 0
    assert after.free == tuple(sorted(after.free))


@given(looks, asks, demands)
def test_no_choice_of_one_gpu_costs_less_and_the_same_is_answered_again(look, ask, asks):
    if ask.gpus != 1 or not look.fits(ask):
        return
    demand = Demand(asks, GPUS, wanted=0)
    found = demand.growth(look, ask)
    growths = {
        one: round(demand.waste(look.without(ask, (one,))) - demand.waste(look), 9)
        for one in look.free
        if one >= ask.share
    }
    assert found.cost == min(growths.values())
    assert found.taken == (min(one for one, cost in growths.items() if cost == found.cost),)
    assert Demand(asks, GPUS, wanted=0).growth(look, ask) == found


def test_a_wanted_remainder_of_a_node_is_preferred_to_an_unwanted_one():
    half, fifth = ResourceRequest(A, 0.5, 1), ResourceRequest(A, 0.2, 1)
    look = NodeState("a", (0.7, 1.0))
    assert Demand({half: 9.0, fifth: 1.0}, GPUS).growth(look, fifth).taken == (0.7,), "leaves a half"
    assert Demand({ResourceRequest(A, 0.8, 1): 9.0, half: 1.0}, GPUS).growth(look, half).taken == (0.7,), (
        "keeps the whole"
    )


def test_cpu_is_kept_where_gpus_are_free():
    typical = ResourceRequest(A, 1.0, 1, cpu=8000)
    demand, small = Demand({typical: 1.0}, GPUS), ResourceRequest(A, 0.0, 0, cpu=4000)
    free, full = NodeState("a", (1.0, 1.0), 18000, 64 * GIB), NodeState("a", (0.0, 0.0), 18000, 64 * GIB)
    assert demand.growth(full, small).cost == 0 < demand.growth(free, small).cost
    hungry = ResourceRequest(A, 1.0, 1, cpu=16000)
    rich = NodeState("a", (1.0, 1.0), 40000, 64 * GIB)
    assert demand.growth(rich, hungry).cost < demand.growth(free, hungry).cost


def test_memory_counts_as_cpu_does():
    demand, small = Demand({ResourceRequest(A, 1.0, 1, 0, 8 * GIB): 1.0}, GPUS), ResourceRequest(A, 0.0, 0, 0, 4 * GIB)
    assert demand.growth(NodeState("a", (1.0,), None, 10 * GIB), small).cost > 0
    assert demand.growth(NodeState("a", (1.0,), None, 12 * GIB), small).cost == 0
    assert demand.growth(NodeState("a", (1.0,), None, None), small).cost == 0, "not known"


def test_a_flexible_request_leaves_the_kinds_that_others_name():
    anyone = ResourceRequest(A | B, 1.0, 1)
    demand = Demand({anyone: 5.0, ResourceRequest(B, 1.0, 1): 5.0}, GPUS)
    assert demand.growth(NodeState("a", (1.0,)), anyone).cost < demand.growth(NodeState("b", (1.0,)), anyone).cost


def test_without_demand_nothing_costs_anything_and_the_tightest_gpus_are_taken():
    unknown = Demand({}, {})
    assert unknown.growth(NodeState("a", (0.5, 0.6, 1.0)), ResourceRequest(A, 0.5, 2)) == (0.0, (0.5, 0.6))
    assert unknown.waste(NodeState("a", (0.5,))) == 0.0


def test_the_memory_of_requests_is_bounded(monkeypatch):
    monkeypatch.setattr(fragmentation, "REMEMBERED", 3)
    demand, ask = Demand({ResourceRequest(A, 1.0, 1, 1000): 1.0}, GPUS), ResourceRequest(A, 1.0, 1, 1000)
    for cpu in range(1000, 20000, 1000):
        demand.growth(NodeState("a", (1.0,), cpu), ask)
        assert max(len(demand._waste), len(demand._growth)) <= 3
