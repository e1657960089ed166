"""A lease's GPUs in a real pod, given by a device plugin; and what a hub's restart and the cluster do to a start."""

import pytest
from gpus import simulated
from kube_hub import KubeHub, eventually, python_of

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
SOON = {"no_room_seconds": 5.0, "no_room_wait_seconds": 2.0}
TINY = """
import asyncio


trained = []


async def faster(spawner, pod):
    if spawner.user.name == "late" and not trained:  # once: a start that is parked meanwhile is made by another spawner
        trained.append(pod)
        limits = {"limits": {"nvidia.com/gpu": "2"}}
        container = {"name": "train", "image": spawner.image, "command": ["sleep", "600"], "resources": limits}
        container["imagePullPolicy"] = spawner.image_pull_policy
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
        await spawner.api.create_namespaced_pod(spawner.namespace, {"metadata": {"name": "training"}, "spec": spec})
        while (await spawner.api.read_namespaced_pod("training", spawner.namespace)).status.phase != "Running":
            await asyncio.sleep(0.2)
    return pod


c.KubeSpawner.modify_pod_hook = faster
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
slow = {"name": "slow", "image": c.KubeSpawner.image, "command": ["sleep", "15"]}
slow["imagePullPolicy"] = c.KubeSpawner.image_pull_policy
c.KubeSpawner.profile_list = [
    {"display_name": "quick", "default": True},
    {"display_name": "slow", "kubespawner_override": {"init_containers": [slow]}},
]
"""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, 2) as gpus:
        yield gpus


@pytest.fixture(scope="module", params=["newest", "5.5"])
def hub(one_machine, gpus, tmp_path_factory, request):
    with one_machine.namespace() as namespace:
        hub = KubeHub(
            tmp_path_factory.mktemp("hub"),
            cluster=one_machine,
            namespace=namespace,
            extra=TINY,
            python=python_of(request.param),
            settings=SOON,
        )
        slow = "  slow: {extends: lab, profile: slow}\n"
        hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{slow}policies:\n"))
        with hub:
            yield hub


def test_a_workspace_gets_the_gpus_of_its_lease_and_no_other(hub):
    hub.add_user("alice")
    hub.begin("alice", template="lab", gpu="a100", count=1)
    lease = hub.until("alice", "running", WAIT_SECONDS)
    pod = hub.pod("alice")
    assert pod.metadata.labels["gpuspawner.io/lease"] == lease["id"]
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"
    code, printed, _ = hub.cluster.run_in(hub.namespace, pod.metadata.name, "nvidia-smi", "-L")
    assert (code, len(printed.splitlines())) == (0, 1)
    hub.stop("alice")
    eventually(lambda: hub.pod("alice") is None, WAIT_SECONDS, "alice's pod is gone")
    hub.until_ended("alice", "stopped", WAIT_SECONDS)


def test_promise_6_a_start_whose_room_another_pod_took_goes_back_to_its_place_and_starts_when_it_is_free(hub, request):
    def train_ends():
        pods = hub.cluster.core
        pods.delete_collection_namespaced_pod(
            hub.namespace, field_selector="metadata.name=training", grace_period_seconds=0
        )

    hub.add_user("late")
    hub.begin("late", template="lab", gpu="a100", count=1)
    request.addfinalizer(lambda: hub.stop("late"))
    request.addfinalizer(train_ends)
    eventually(lambda: (pod := hub.pod("late")) and pod.status.conditions, WAIT_SECONDS, "late's pod finds no room")
    lease = hub.lease("late")
    eventually(lambda: hub.lease("late")["phase"] in {"queued", "parked"}, WAIT_SECONDS, "late waits again")
    assert hub.lease("late")["id"] == lease["id"]
    assert hub.pod("late") is None
    train_ends()
    assert hub.until("late", "running", WAIT_SECONDS)["id"] == lease["id"]


def test_promise_2_a_hub_that_dies_during_a_start_finds_its_pod_again(hub):
    hub.add_user("slow")
    hub.begin("slow", template="slow", gpu="a100", count=1)
    pod = eventually(lambda: hub.pod("slow"), WAIT_SECONDS, "slow's pod is there")
    lease = hub.lease("slow")
    hub.kill_hub()
    hub.start_hub()
    assert hub.pod("slow").metadata.uid == pod.metadata.uid
    eventually(lambda: (server := hub.server("slow")) and server["ready"], WAIT_SECONDS, "slow's server is ready")
    assert hub.until("slow", "running", WAIT_SECONDS)["id"] == lease["id"]
    assert hub.pod("slow").metadata.uid == pod.metadata.uid
    hub.stop("slow")
    hub.until_ended("slow", "stopped", WAIT_SECONDS)


EAT = "eaten = [b'x' * 2**24 for _ in range(999)]"


def test_a_program_that_is_killed_for_memory_while_its_server_lives_is_told_to_its_user(hub):
    hub.add_user("eats")
    hub.begin("eats", template="lab", gpu="a100", count=1, memory="256MiB")
    lease = hub.until("eats", "running", WAIT_SECONDS)
    pod = hub.pod("eats").metadata.name
    code, _, _ = hub.cluster.run_in(hub.namespace, pod, "python3", "-c", EAT)
    assert code == 137, "Linux killed it"
    if hub.pod("eats").status.container_statuses[0].state.terminated:
        pytest.skip("this kubelet lets Linux kill all of a container (memory.oom.group)")
    warning = eventually(
        lambda: (found := hub.lease("eats")["warning"]) and "Linux killed a program in it" in found["text"] and found,
        WAIT_SECONDS,
        "its page says so",
    )
    assert "used all of its 256 MiB of memory" in warning["text"]
    assert [line["why"] for line in hub.audit(lease["id"], "killed for memory")] == [
        "1 program killed: the workspace had used all of its 256 MiB"
    ]
    assert hub.lease("eats")["phase"] in {"running", "reclaiming"}
    hub.stop("eats")


def test_a_pod_of_its_name_that_was_left_ends_before_a_new_one_starts(hub):
    hub.add_user("left")
    hub.cluster.start_pod(hub.namespace, "jupyter-left", ["sleep", "600"])
    hub.begin("left", template="cpu")
    hub.until("left", "running", WAIT_SECONDS)
    hub.stop("left")
