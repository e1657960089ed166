"""``bench/placement`` places by each policy on a small trace, and counts what stays unallocated."""

import pytest
import topology
from filling import Cluster, unallocated
from openb import Task, folder, how_often, read, with_consent
from rivals import BEST_FIT, PACKING, RANDOM, fgd, learning, ours

from gpuspawner.core.gpus.fragmentation import NodeState, ResourceRequest

ANY, GIB = frozenset({"T4", "G2"}), 1024
NODES = "sn,cpu_milli,memory_mib,gpu,model\na,32000,65536,2,T4\nb,32000,65536,4,G2\nc,32000,65536,0,\n"
TASKS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
one,4000,8192,1,1000,,LS,Running,0,90,0
two,4000,8192,1,500,T4,LS,Running,10,70,10
three,8000,8192,2,1000,,LS,Running,20,,20
four,8000,8192,0,0,,LS,Running,20,30,20
"""


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "openb_node_list_all_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(TASKS)
    return read(tmp_path, "default")


def test_a_trace_is_read_and_found_where_it_is_said_to_be(trace, tmp_path, monkeypatch):
    assert trace.nodes[0] == NodeState("T4", (1.0, 1.0), 32000, 65536)
    assert (trace.gpus, trace.capacity) == ({"T4": 2, "G2": 4}, 6)
    assert [task.ask for task in trace.tasks] == [
        ResourceRequest(ANY, 1.0, 1, 4000, 8192),
        ResourceRequest(frozenset({"T4"}), 0.5, 1, 4000, 8192),
        ResourceRequest(ANY, 1.0, 2, 8000, 8192),
        ResourceRequest(ANY, 0.0, 0, 8000, 8192),
    ]
    assert [(task.created, task.seconds) for task in trace.tasks[:2]] == [(0.0, 90.0), (10.0, 60.0)]
    monkeypatch.setenv("OPENB", str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.setenv("OPENB", str(tmp_path / "none"))
    assert folder() is None


def test_a_list_without_kinds_and_times_is_read(trace, tmp_path):
    rows = [line.split(",") for line in TASKS.splitlines() if not line.startswith("two")]
    (tmp_path / "openb_pod_list_multigpu20.csv").write_text("".join(f"{','.join(row[:5])}\n" for row in rows))
    found = read(tmp_path, "multigpu20").tasks
    assert [task.ask for task in found] == [task.ask for task in trace.tasks if task.ask.pools == ANY]
    assert {(task.created, task.seconds) for task in found} == {(0.0, 0.0)}


def test_consent_allows_kinds_with_at_least_the_memory(trace):
    assert [task.instead for task in with_consent(trace, 1.0).tasks] == [
        frozenset(), frozenset({"P100", "V100M16", "V100M32", "A10"}), frozenset(), frozenset()
    ]  # fmt: skip
    assert with_consent(trace, 0.0) == trace


def test_arrivals_are_the_list_and_some_of_it_again_in_an_order_of_the_seed(trace):
    found = list(trace.arrivals(1, 1.3))
    assert sum(task.gpus for task in found) >= 1.3 * 6
    assert set(found) == set(trace.tasks)
    assert found == list(trace.arrivals(1, 1.3)) != list(trace.arrivals(2, 1.3))


@pytest.mark.parametrize("name", ["random", "bestfit", "packing", "fgd", "ours", "learning"])
def test_each_policy_fills_what_it_can_and_never_more(trace, name):
    asks = how_often(trace.tasks)
    policy = {
        "random": RANDOM, "bestfit": BEST_FIT, "packing": PACKING, "learning": learning(trace.gpus),
        "fgd": fgd(asks, trace.gpus), "ours": ours(asks, trace.gpus),
    }[name]  # fmt: skip
    at_half, at_all, at_130 = unallocated(trace, policy, 3, (0.5, 1.0, 1.3))
    assert 100 > at_half >= at_all >= at_130 >= 0
    assert unallocated(trace, policy, 3, (0.5, 1.0, 1.3)) == [at_half, at_all, at_130]


def test_nothing_is_placed_where_cpu_or_gpu_lacks_and_consent_comes_last():
    cluster = Cluster([NodeState("T4", (1.0,), 8000, 64 * GIB), NodeState("A10", (1.0,), 4000, 64 * GIB)])
    cluster.follow(BEST_FIT)
    t4 = Task(ResourceRequest(frozenset({"T4"}), 1.0, 1, 4000, GIB), instead=frozenset({"A10"}))
    assert cluster.place(t4).node == 0
    assert cluster.place(t4).node == 1
    assert cluster.place(t4) is None
    assert (cluster.look(0), cluster.look(1)) == (
        NodeState("T4", (0.0,), 4000, 63 * GIB),
        NodeState("A10", (0.0,), 0, 63 * GIB),
    )
    hungry = Task(ResourceRequest(frozenset(), 0.0, 0, 4001, GIB))
    assert cluster.place(hungry) is None


def test_the_product_keeps_cpu_where_gpus_are_free():
    asks = {
        ResourceRequest(frozenset({"T4"}), 1.0, 1, 8000, GIB): 9,
        ResourceRequest(frozenset({"T4"}), 0.0, 0, 4000, GIB): 1,
    }
    cluster = Cluster([NodeState("T4", (1.0,), 8000, 64 * GIB), NodeState("", (), 4000, 64 * GIB)])
    cluster.follow(ours(asks, {"T4": 1}))
    assert cluster.place(Task(ResourceRequest(frozenset({"T4"}), 0.0, 0, 4000, GIB))).node == 1


def test_a_topology_costs_waits_and_brings_gpus_together():
    any_gpus, preferred, required = (topology.play(how, 0.9, 0, 400) for how in ("", "prefer", "require"))
    assert any_gpus.together < preferred.together <= required.together == 100
    assert preferred.refused < required.refused
