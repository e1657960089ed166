"""Which GPUs a request gets, what is free, and what counts as used."""

from fractions import Fraction

import pytest
from lease_builders import A100, HALF, T4, a_lease, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.gpus.placement import count_all, count_free, is_grantable, largest_fit, place, used_shares
from gpuspawner.core.leases.lease import HOLDING, Phase

HALF_USED = {"a100-1": Fraction(1, 2)}
ALL_OF_0 = {"a100-0": Fraction(1)}
TWO_NODES = (gpu(0), gpu(1), gpu(2, node="node-2"), gpu(3, node="node-2"), gpu(4, node="node-2"))


@pytest.mark.parametrize(
    ("kind", "count", "gpus", "used", "given"),
    [
        pytest.param(A100, 1, (gpu(1), gpu(0)), {}, ["a100-0"], id="the first by index"),
        pytest.param(A100, 2, (gpu(0), gpu(1), gpu(2)), ALL_OF_0, ["a100-1", "a100-2"], id="only free ones"),
        pytest.param(A100, 1, (gpu(0), gpu(1)), HALF_USED, ["a100-0"], id="a whole GPU is no half"),
        pytest.param(A100, 2, (gpu(0), gpu(1)), HALF_USED, None, id="too few"),
        pytest.param(HALF, 1, (gpu(0), gpu(1)), HALF_USED, ["a100-1"], id="shares stay together"),
        pytest.param(HALF, 2, (gpu(0), gpu(1)), HALF_USED, ["a100-1", "a100-0"], id="shares of one lease do not"),
        pytest.param(HALF, 1, (gpu(0),), ALL_OF_0, None, id="no share of a used GPU"),
        pytest.param(A100, 1, TWO_NODES, {}, ["a100-0"], id="the node with the fewest free"),
        pytest.param(A100, 3, TWO_NODES, {}, ["a100-2", "a100-3", "a100-4"], id="GPUs of a lease share a node"),
        pytest.param(A100, 4, TWO_NODES, {}, None, id="never two nodes"),
        pytest.param(A100, 1, (gpu(0, pool="t4"),), {}, None, id="another pool"),
        pytest.param(A100, 1, (gpu(0, healthy=False), gpu(1, foreign=True)), {}, None, id="suspect and foreign"),
        pytest.param(A100, 1, (gpu(0),), {"a100-0": Fraction(3, 2)}, None, id="used twice over"),
        pytest.param(T4, 1, (), {}, None, id="an empty fleet"),
    ],
)
def test_the_tightest_fit_is_given(kind, count, gpus, used, given):
    placed = place(kind, count, fleet(*gpus), used)
    assert placed == (None if given is None else slots(*given, share=kind.share))


def test_a_tie_of_nodes_goes_by_their_name():
    assert place(A100, 1, fleet(gpu(0, node="node-b"), gpu(1, node="node-a")), {}) == slots("a100-1")


@pytest.mark.parametrize(
    ("tried", "given"),
    [
        ((), "a100-0"),
        (("node-1",), "a100-2"),
        (("node-2",), "a100-0"),
        (("node-1", "node-2"), "a100-0"),
        (("node-2", "node-1"), "a100-2"),
        (("node-9",), "a100-0"),
    ],
)
def test_where_there_was_no_room_is_tried_last_and_what_was_tried_longest_ago_first(tried, given):
    assert place(A100, 1, fleet(*TWO_NODES), {}, tried) == slots(given)
    assert place(A100, 3, fleet(*TWO_NODES), {}, ("node-2",)) is not None, "better tried again than never"


def test_nothing_is_given_of_a_fleet_that_was_not_seen_whole():
    assert place(A100, 1, fleet(gpu(0), complete=False), {}) is None
    assert place(A100, 1, Fleet(), {}) is None


@pytest.mark.parametrize("phase", Phase)
def test_a_gpu_is_used_from_its_grant_to_the_end(phase):
    assert used_shares([a_lease(phase=phase, held=slots("a100-0"))]) == (ALL_OF_0 if phase in HOLDING else {})


def test_an_unleased_process_uses_its_gpus_all_the_same():
    lease = a_lease(phase=Phase.RUNNING, held=slots("a100-0", share="1/2"))
    assert used_shares([lease], slots("a100-0", share="1/2")) == ALL_OF_0


def test_free_and_total_amounts_in_units_of_a_kind():
    seen = fleet(gpu(0), gpu(1), gpu(2, healthy=False), gpu(3, foreign=True), gpu(0, pool="t4"))
    assert (count_free(A100, seen, HALF_USED), count_all(A100, seen)) == (1, 4)
    assert (count_free(HALF, seen, HALF_USED), count_all(HALF, seen)) == (3, 8)
    assert count_free(HALF, seen, {"a100-0": Fraction(2), "a100-1": Fraction(1, 3)}) == 1


def test_the_most_that_one_lease_could_get_is_what_one_node_has():
    assert largest_fit(A100, fleet(*TWO_NODES, gpu(5, healthy=False))) == 3
    assert largest_fit(HALF, fleet(*TWO_NODES)) == 3
    stranger = fleet(gpu(0, foreign=True), gpu(1), gpu(2, healthy=False))
    assert largest_fit(A100, stranger) == 2, "what strangers use comes back"
    assert largest_fit(T4, fleet(*TWO_NODES)) == 0


def test_only_a_healthy_gpu_without_foreign_use_is_granted():
    assert [is_grantable(gpu(0)), is_grantable(gpu(0, healthy=False)), is_grantable(gpu(0, foreign=True))] == [1, 0, 0]
