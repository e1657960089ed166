"""Fake nodes exist next to the real one: pods are bound to them and run."""

import pytest
from fake_nodes import TOLERATION, fake_nodes

from tools.cluster.settings import NODE, PAUSE_IMAGE

pytestmark = pytest.mark.slow


def test_pods_run_on_fake_nodes_and_the_real_one_is_left_alone(one_machine, namespace):
    core = one_machine.core
    with fake_nodes(one_machine, count=20) as names:
        container = {"name": "notebook", "image": PAUSE_IMAGE, "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        for number in range(20):
            spec = {"containers": [container], "tolerations": [TOLERATION]}
            core.create_namespaced_pod(namespace, {"metadata": {"name": f"pod-{number}"}, "spec": spec})
        for number in range(20):
            one_machine.wait_for_phase(namespace, f"pod-{number}", "Running")
        assert {pod.spec.node_name for pod in core.list_namespaced_pod(namespace).items} == set(names)
        assert core.read_node(NODE).status.node_info.kubelet_version.startswith("v1.")
    assert {node.metadata.name for node in core.list_node().items} == {NODE}
