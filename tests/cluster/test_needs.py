"""`needs:` of a template end to end: NVIDIA's labels, a real hub, and the pod on the node with the right driver."""

import pytest
import requests
from kube_hub import KubeHub, eventually
from nvidia_node import asked, nvidia_gpus
from workspaces import NODE

from tools.cluster.workspace import ensure_small_image

pytestmark = pytest.mark.slow

WAIT_SECONDS = 120
DRIVER_LABEL, CUDA_LABEL = (f"nvidia.com/cuda.{one}-version.full" for one in ("driver", "runtime"))
CATALOG = """
version: 1
gpus:
  a100: {{title: A100, match: "*A100*", memory: 40GiB, driver: {driver}, cuda: {cuda}}}
  old: {{title: Old A100, match: "*A100*", memory: 40GiB}}
templates:
  cpu:
    title: No GPU
    bounds: {{cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}}
    default: {{cpu: 0.1, memory: 128MiB, lifetime: 8h}}
  new: {{extends: cpu, title: New, gpus: {{a100: 1-2}}, needs: {{driver: {driver}, cuda: {cuda}}}}}
  any: {{extends: cpu, title: Any, gpus: {{a100: 1-2, old: 1-2}}, substitutes: {{a100: [old]}}}}
policies:
  default: {{mode: observe, lifetime: 1s-24h}}
"""
EXTRA = """
c.KubeSpawner.image = {small!r}
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
"""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with nvidia_gpus(one_machine, 2) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def hub(one_machine, gpus, tmp_path_factory):
    small = one_machine.own.give_image(ensure_small_image(one_machine.own.folder))
    with one_machine.namespace() as namespace:
        folder, extra = tmp_path_factory.mktemp("hub"), EXTRA.format(small=small)
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, extra=extra, wait=300)
        hub.catalog.write_text(CATALOG.format(driver=gpus.labels[DRIVER_LABEL], cuda=gpus.labels[CUDA_LABEL]))
        with hub:
            eventually(lambda: free(hub)["a100"] == 2, WAIT_SECONDS, "the GPUs are offered")
            yield hub


def free(hub):
    return {offer["kind"]: offer["free"] for offer in hub.gpu("/offers")["offers"]}


def check(hub, user, **options):
    """Return the answer that a user gets before Start."""
    hub.add_user(user)
    token = hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]
    where, headers = f"{hub.url}/services/gpu/api/v1/check", {"Authorization": f"token {token}"}
    return requests.post(where, json=options, headers=headers, timeout=30)


def test_a_template_that_needs_a_driver_runs_only_where_the_node_has_it(hub, gpus):
    hub.add_user("alice")
    hub.begin("alice", template="new", gpu="a100", count=1)
    hub.until("alice", "running", WAIT_SECONDS)
    pod = hub.pod("alice")
    required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    (term,) = required.node_selector_terms
    asked_for = {one.key: one.values for one in term.match_expressions}
    assert {key: asked_for[key] for key in (DRIVER_LABEL, CUDA_LABEL)} == {
        key: [gpus.labels[key]] for key in (DRIVER_LABEL, CUDA_LABEL)
    }
    assert asked(hub.cluster, hub.namespace, pod.metadata.name, "driver_version") == [[gpus.labels[DRIVER_LABEL]]]
    hub.stop("alice")
    hub.until_ended("alice", "stopped", WAIT_SECONDS)


def test_a_node_with_an_older_driver_has_no_gpu_for_it_and_the_reason_is_told(hub, gpus):
    patch = hub.cluster.core.patch_node
    patch(NODE, {"metadata": {"labels": {DRIVER_LABEL: "535.104.5", CUDA_LABEL: "12.2"}}})
    try:
        eventually(lambda: free(hub) == {"a100": 0, "old": 2}, WAIT_SECONDS, "the GPUs are of the other kind")
        assert "No A100 is there now" in check(hub, "bob", template="new", gpu="a100", count=1).json()["sentence"]
        assert (
            "Old A100" in check(hub, "bob", template="any", gpu="a100", count=1, substitutes=["old"]).json()["sentence"]
        )
        refused = check(hub, "bob", template="new", gpu="old", count=1)
        assert refused.status_code == 400
        assert "You asked for 'old'. Allowed: a100, none." in refused.text
        hub.add_user("bob")
        hub.begin("bob", template="new", gpu="a100", count=1)
        why = "No A100 is there now. It is 1st in line."
        eventually(lambda: why in hub.lease("bob")["queue"]["sentence"], WAIT_SECONDS, "the reason is shown")
        assert hub.pod("bob") is None
    finally:
        patch(NODE, {"metadata": {"labels": {key: gpus.labels[key] for key in (DRIVER_LABEL, CUDA_LABEL)}}})
    hub.until("bob", "running", WAIT_SECONDS)
