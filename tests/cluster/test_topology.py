"""Several GPUs of one workspace in one NVLink or NUMA domain, by a real hub, scheduler and kubelet.

The devices of NVIDIA's simulated driver name no domain. So our stand-in serves four claimed GPUs on two NUMA nodes. A
label of the node links the GPUs of the device plugin.
"""

import contextlib
import json

import pytest
import requests
from gpus import simulated, uuids_in
from kube_hub import KubeHub, eventually
from test_dra import ATTRIBUTES, claims_in, kind
from test_dra import start as claim_with_pod
from workspaces import NODE

from gpuspawner.core.gpus.fleet import DeviceClaim
from tools.cluster.standin_gpus import Board, StandinClaims
from tools.cluster.workspace import ensure_small_image

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
PRODUCT = "NVIDIA A100-SXM4-80GB"
NUMA = "resource.kubernetes.io/numaNode"
DOMAIN = {"gpuspawner.io/gpu-domain": "all"}
CATALOG = f"""
version: 1
gpus:
  a100:
    title: A100
    memory: 80GiB
    claim:
      device_class: gpu.nvidia.com
      selectors: ["{ATTRIBUTES}.productName == '{PRODUCT}'"]
  plugged: {{title: A100 of the plugin, match: NVIDIA-A100*, memory: 40GiB}}
templates:
  cpu:
    title: No GPU
    bounds: {{cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}}
    default: {{cpu: 0.1, memory: 128MiB, lifetime: 8h}}
  near: {{extends: cpu, title: Near, gpus: {{a100: 1-4}}, topology: prefer}}
  linked: {{extends: cpu, title: Linked, gpus: {{a100: 1-4, plugged: 1-4}}, topology: require}}
policies:
  default: {{mode: observe, lifetime: 1s-24h}}
"""
EXTRA = """
c.KubeSpawner.image = {small!r}
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
"""


@pytest.fixture(scope="module")
def boards(one_machine):
    """Four claimed GPUs on two NUMA nodes."""
    found = StandinClaims(one_machine.own, [Board(PRODUCT, numa=number // 2) for number in range(4)])
    try:
        found.start()
        yield [board.gpu.uuid for board in found.boards]
    finally:
        found.stop()


@pytest.fixture(scope="module")
def hub(one_machine, boards, tmp_path_factory):
    small = one_machine.own.give_image(ensure_small_image(one_machine.own.folder))
    with simulated(one_machine, 2), one_machine.namespace() as namespace:
        folder, extra = tmp_path_factory.mktemp("hub"), EXTRA.format(small=small)
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, extra=extra, wait=300)
        hub.catalog.write_text(CATALOG)
        with hub:
            eventually(lambda: free(hub) == {"a100": 4, "plugged": 2}, WAIT_SECONDS, "all GPUs are offered")
            yield hub


@pytest.fixture(autouse=True)
def nothing_is_left(hub):
    yield
    for lease in hub.workspaces():
        with contextlib.suppress(requests.HTTPError):  # it may end just now, and then it can't be stopped
            hub.end(lease["id"])
    hub.cluster.core.delete_collection_namespaced_pod(hub.namespace, grace_period_seconds=0)
    pods = hub.cluster.core.list_namespaced_pod
    eventually(lambda: not hub.workspaces() and not pods(hub.namespace).items, WAIT_SECONDS, "all have ended")
    eventually(lambda: free(hub)["a100"] == 4, WAIT_SECONDS, "all GPUs are free again")


def free(hub):
    return {offer["kind"]: offer["free"] for offer in hub.gpu("/offers")["offers"]}


def check(hub, user, template, count, gpu="a100"):
    """Return the answer that a user gets before Start: its status, and its sentence or refusal."""
    hub.add_user(user)
    token = hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]
    answer = requests.post(
        f"{hub.url}/services/gpu/api/v1/check",
        json={"template": template, "gpu": gpu, "count": count},
        headers={"Authorization": f"token {token}"},
        timeout=30,
    )
    return answer.status_code, answer.json().get("sentence") or answer.text


def begin(hub, user, template, count=2, gpu="a100"):
    hub.add_user(user)
    answer = hub.begin(user, template=template, gpu=gpu, count=count)
    assert answer.status_code in {201, 202}, answer.text


def take(hub, name, uuid):
    """Let a job of others have this GPU."""
    selector = f"{ATTRIBUTES}.uuid == '{uuid}'"
    claim_with_pod(hub.cluster, hub.namespace, name, [kind("job", DeviceClaim("gpu.nvidia.com", (selector,)))])
    eventually(lambda: uuid in given_to(hub, name), WAIT_SECONDS, f"{name} has its GPU")


def given_to(hub, pod):
    """Return the UUIDs that the cluster allocated to a pod."""
    uuid_of = uuid_by_device(hub)
    return {
        uuid_of[result["device"]]
        for claim in claims_in(hub.cluster, hub.namespace)
        if any(one["name"] == pod for one in claim.get("status", {}).get("reservedFor", ()))
        for result in claim["status"]["allocation"]["devices"]["results"]
    }


def uuid_by_device(hub):
    """Return the UUID of each device that the cluster's ResourceSlices name."""
    slices = hub.cluster.own.kubectl("get", "resourceslices", "--output=json")
    found = (device for one in json.loads(slices)["items"] for device in one["spec"].get("devices", ()))
    return {device["name"]: device["attributes"]["uuid"]["string"] for device in found}


def constraints(hub, user):
    (claim,) = (
        one
        for one in claims_in(hub.cluster, hub.namespace)
        if one["metadata"]["ownerReferences"][0]["name"] == hub.pod(user).metadata.name
    )
    return claim["spec"]["devices"].get("constraints")


def numa_nodes(boards, uuids):
    return sorted(boards.index(uuid) // 2 for uuid in uuids)


def test_two_gpus_of_one_domain_are_claimed_and_allocated_by_the_attribute(hub, boards):
    assert "Its GPUs share NUMA 0." in check(hub, "alice", "linked", 2)[1]
    take(hub, "job", boards[1])
    shared = lambda: "Its GPUs share NUMA 1." in check(hub, "alice", "linked", 2)[1]  # noqa: E731
    eventually(shared, WAIT_SECONDS, "GPU 0 is alone")
    begin(hub, "alice", "linked")
    hub.until("alice", "running", WAIT_SECONDS)
    assert constraints(hub, "alice") == [{"matchAttribute": NUMA}]
    pod = hub.pod("alice").metadata.name
    assert given_to(hub, pod) == set(boards[2:]) == set(uuids_in(hub.cluster, hub.namespace, pod))
    begin(hub, "bob", "near", 1)
    hub.until("bob", "running", WAIT_SECONDS)
    assert given_to(hub, hub.pod("bob").metadata.name) == {boards[0]}
    assert constraints(hub, "bob") is None, "one GPU needs no domain"


def test_where_each_domain_has_one_gpu_required_ones_wait_and_preferred_ones_start(hub, boards):
    take(hub, "first", boards[0])
    take(hub, "second", boards[2])
    apart = "Its GPUs share no NVLink or NUMA domain that is known."
    eventually(lambda: apart in check(hub, "carol", "near", 2)[1], WAIT_SECONDS, "it is said before the start")
    begin(hub, "carol", "near")
    hub.until("carol", "running", WAIT_SECONDS)
    assert numa_nodes(boards, given_to(hub, hub.pod("carol").metadata.name)) == [0, 1]
    assert constraints(hub, "carol") is None
    hub.stop("carol")
    hub.until_ended("carol", "stopped", WAIT_SECONDS)
    eventually(lambda: free(hub)["a100"] == 2, WAIT_SECONDS, "two are free again")

    begin(hub, "dave", "linked")
    sentence = eventually(lambda: (hub.lease("dave")["queue"] or {}).get("sentence"), 60, "dave waits")
    assert sentence.startswith("2 of 4 A100 are free")
    assert ", and it needs 2 in one NVLink or NUMA domain. It is 1st in line." in sentence
    assert hub.pod("dave") is None, "no pod is made before a domain is free"
    hub.cluster.core.delete_namespaced_pod("second", hub.namespace, grace_period_seconds=0)
    hub.until("dave", "running", WAIT_SECONDS)
    assert given_to(hub, hub.pod("dave").metadata.name) == set(boards[2:])


def test_more_gpus_than_a_domain_has_are_refused_before_the_start(hub):
    status, words = check(hub, "erin", "linked", 3)
    assert (status, "at most 2 A100 in one NVLink or NUMA domain" in words) == (403, True), words


def test_a_label_of_the_node_links_the_gpus_of_a_device_plugin(hub):
    core = hub.cluster.core
    status, words = check(hub, "frank", "linked", 2, "plugged")
    assert (status, "no NVLink or NUMA domain of A100 of the plugin is known" in words) == (403, True), words
    core.patch_node(NODE, {"metadata": {"labels": DOMAIN}})
    try:
        shared = lambda: "Its GPUs share NVLink." in check(hub, "frank", "linked", 2, "plugged")[1]  # noqa: E731
        eventually(shared, WAIT_SECONDS, "the label is seen")
        begin(hub, "frank", "linked", 2, "plugged")
        hub.until("frank", "running", WAIT_SECONDS)
        pod = hub.pod("frank")
        required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        (term,) = required.node_selector_terms
        assert [(one.key, one.values) for one in term.match_expressions] == [("kubernetes.io/hostname", [NODE])]
        assert len(uuids_in(hub.cluster, hub.namespace, pod.metadata.name)) == 2
    finally:
        core.patch_node(NODE, {"metadata": {"labels": dict.fromkeys(DOMAIN)}})
