"""Lease and pod are of one mind: kind and count of whole GPUs, of time-sliced ones and of slices."""

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
EXTRA = 'c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]'
KINDS = """
gpus:
  a100: {title: A100, match: NVIDIA-A100-SXM4-40GB, memory: 40GiB}
  third: {title: Third of an A100, of: a100, shares: 3}
  slice: {title: Slice, match: "*A100*-MIG-1g.10gb", memory: 10GiB}
templates:
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with one_machine.namespace() as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        text = (
            hub.catalog.read_text()
            .partition("templates:\n")[2]
            .replace("{a100: 1-8}", "{a100: 1-8, third: 1, slice: 1-2}")
        )
        hub.catalog.write_text(f"version: 1{KINDS}{text}")
        with hub:
            yield hub


def offered(hub, kind):
    offers = hub.gpu("/offers")["offers"]
    return next((offer["free"] for offer in offers if offer["kind"] == kind), 0)


@pytest.mark.parametrize(
    ("kind", "count", "resource", "options"),
    [
        pytest.param("a100", 2, "nvidia.com/gpu", {"count": 2}, id="whole"),
        pytest.param("third", 1, "nvidia.com/gpu", {"count": 1, "replicas": 3}, id="time-sliced"),
        pytest.param("slice", 2, "nvidia.com/mig-1g.10gb", {"count": 1, "mig": "1g.10gb", "mig_devices": 2}, id="MIG"),
    ],
)
def test_lease_and_pod_have_the_same_gpus(hub, kind, count, resource, options):
    hub.add_user(kind)
    with simulated(hub.cluster, **options):
        eventually(lambda: offered(hub, kind), WAIT_SECONDS, f"{kind} is offered")
        hub.begin(kind, template="lab", gpu=kind, count=count)
        lease = hub.until(kind, "running", WAIT_SECONDS)
        pod = hub.pod(kind)
        assert (lease["request"]["gpu"], lease["request"]["count"], len(lease["gpus"])) == (kind, count, count)
        limits = pod.spec.containers[0].resources.limits
        assert {name: n for name, n in limits.items() if name.startswith("nvidia.com/")} == {resource: str(count)}
        code, seen, _ = hub.cluster.run_in(hub.namespace, pod.metadata.name, "nvidia-smi", "-L")
        assert code == 0
        assert seen.count("MIG 1g.10gb" if kind == "slice" else "GPU 0:" if kind == "third" else "UUID") == count
        hub.stop(kind)
        hub.until_ended(kind, "stopped", WAIT_SECONDS)
        eventually(lambda: hub.pod(kind) is None, WAIT_SECONDS, "its pod is gone")
