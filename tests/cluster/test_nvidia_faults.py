"""Faults while workspaces run, with NVIDIA's own programs: nothing idle is concluded and no GPU is granted twice."""

import time

import pytest
from ends import SERVER
from gpus import uuids_in
from kube_hub import KubeHub, eventually
from nvidia_node import control, nvidia_gpus

pytestmark = pytest.mark.slow

WAIT_SECONDS = 180
GPUS = 3
IDLE_AND_GRACE_SECONDS = 16 + 10
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 40GiB}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4}
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {gpu: a100, count: 1, cpu: 0.1, memory: 128MiB, lifetime: 8h}
policies:
  default: {mode: enforce, lifetime: 1s-24h, idle: {below: 5%, for: 16s, sample: 4s, grace: 10s, start_up: 6s}}
"""
EXTRA = """
c.KubeSpawner.cmd = ["python3", "-c", {server!r}]
"""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with nvidia_gpus(one_machine, GPUS) as found:
        yield found


@pytest.fixture(scope="module")
def hub(one_machine, gpus, tmp_path_factory):
    with one_machine.namespace() as namespace:
        extra = EXTRA.format(server=SERVER)
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra, wait=600)
        hub.catalog.write_text(CATALOG)
        try:
            hub.start()
            eventually(lambda: free(hub) == GPUS, WAIT_SECONDS, "all GPUs are offered")
            yield hub
        finally:
            hub.close()


@pytest.fixture
def working(hub, gpus):
    """The lease of ada's workspace, whose GPU works; it ends with the test, and every fault with it."""
    control(gpus, "util", "--gpu", "all", "64")
    lease = up(hub, "ada")
    yield lease
    control(gpus, "reset", "--gpu", "all")
    gpus.start_plugin()
    gpus.label()
    for one in hub.workspaces():
        hub.end(one["id"])
    pods = hub.cluster.core.list_namespaced_pod
    eventually(lambda: not hub.workspaces() and not pods(hub.namespace).items, WAIT_SECONDS, "all have ended")


def free(hub):
    return next((offer["free"] for offer in hub.gpu("/offers")["offers"] if offer["kind"] == "a100"), 0)


def up(hub, user):
    begin(hub, user)
    return hub.until(user, "running", WAIT_SECONDS)


def begin(hub, user):
    hub.add_user(user)
    # The hub may still be busy with the end of the one before, when its pod is gone already.
    answers = {201, 202}
    eventually(lambda: hub.begin(user, template="lab").status_code in answers, WAIT_SECONDS, "the hub takes the start")


def devices(hub, user):
    return uuids_in(hub.cluster, hub.namespace, hub.pod(user).metadata.name)


def gpu_of(hub, user):
    (gpu,) = hub.lease(user)["gpus"]
    return gpu


def runs_on(hub, lease):
    """Whether ada's workspace is the one that she had, without a warning of idleness and never stopped."""
    now = hub.lease("ada")
    assert not hub.audit(lease["id"], "stop")
    return (now["id"], now["phase"]) == (lease["id"], "running") and (now["warning"] or {}).get("kind") != "idle"


def unknown_for_longer_than_idle(hub, lease):
    """Wait until readings were unknown for longer than an idle workspace lives."""

    def seconds():
        readings = hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"]
        times = [one["at"] for one in readings if one["kind"] == "unknown"]
        return times[-1] - times[0] if times else 0

    eventually(lambda: seconds() > IDLE_AND_GRACE_SECONDS, WAIT_SECONDS, "idle, it would be gone")


def test_a_lost_gpu_is_unknown_and_told_and_no_gpu_is_given_until_it_is_back(hub, gpus, working):
    (own,) = devices(hub, "ada")
    control(gpus, "fail", "--gpu", str(gpus.uuids.index(own)), "--mode", "lost", "--xid", "79")
    problem = eventually(lambda: gpu_of(hub, "ada")["problem"], WAIT_SECONDS, "its user reads why it is unknown")
    assert "GPU is lost" in problem
    warning = eventually(lambda: hub.lease("ada")["warning"], WAIT_SECONDS, "its user is told")
    assert warning["kind"] == "unhealthy"
    begin(hub, "bob")  # the device plugin calls every GPU of the node unhealthy
    hub.until("bob", "queued", WAIT_SECONDS)
    unknown_for_longer_than_idle(hub, working)
    assert runs_on(hub, working)
    assert gpu_of(hub, "ada")["state"] == "unknown"
    assert hub.lease("bob")["queue"]["sentence"].startswith(f"All {GPUS} A100 are out of service.")
    control(gpus, "reset", "--gpu", "all")
    control(gpus, "util", "--gpu", "all", "64")
    gpus.start_plugin()
    hub.until("bob", "running", WAIT_SECONDS)
    assert devices(hub, "bob") != devices(hub, "ada") == [own]
    eventually(lambda: gpu_of(hub, "ada")["state"] == "busy", WAIT_SECONDS, "it is measured again")


def test_a_driver_that_is_gone_is_unknown_and_told(hub, gpus, working):
    library = gpus.driver.libraries / "libnvidia-ml.so.1"
    whole = library.read_bytes()
    library.write_bytes(b"")  # in place: it is mounted into the pod
    try:
        words = "nvidia-smi failed with exit code"
        problem = eventually(lambda: gpu_of(hub, "ada")["problem"], WAIT_SECONDS, "its user reads why it is unknown")
        assert words in problem
        unknown_for_longer_than_idle(hub, working)
        assert runs_on(hub, working)
    finally:
        library.write_bytes(whole)
    eventually(lambda: gpu_of(hub, "ada")["state"] == "busy", WAIT_SECONDS, "it is measured again")


def test_a_device_plugin_that_ends_gives_nothing_and_takes_nothing(hub, gpus, working):
    gpus.end_plugin()
    eventually(lambda: free(hub) == 0, WAIT_SECONDS, "no GPU is offered")
    begin(hub, "bob")
    hub.until("bob", "queued", WAIT_SECONDS)
    assert runs_on(hub, working)
    eventually(lambda: gpu_of(hub, "ada")["state"] == "busy", WAIT_SECONDS, "it is measured all the same")
    gpus.start_plugin()
    hub.until("bob", "running", WAIT_SECONDS)
    assert not {*devices(hub, "bob")} & {*devices(hub, "ada")}
    assert runs_on(hub, working)


def test_without_labels_no_gpu_is_of_the_kind_and_what_runs_goes_on(hub, gpus, working):
    gpus.remove_labels()
    eventually(lambda: free(hub) == 0, WAIT_SECONDS, "no GPU is of the kind")
    begin(hub, "bob")
    hub.until("bob", "queued", WAIT_SECONDS)
    eventually(lambda: gpu_of(hub, "ada")["state"] == "busy", WAIT_SECONDS, "ada's is measured all the same")
    assert runs_on(hub, working)
    gpus.label()
    hub.until("bob", "running", WAIT_SECONDS)
    assert not {*devices(hub, "bob")} & {*devices(hub, "ada")}


def test_a_kubelet_that_is_restarted_is_no_idleness_and_gives_no_gpu_twice(hub, gpus, working):
    own = hub.cluster.own
    own.stop_process("kubelet")
    try:
        eventually(lambda: gpu_of(hub, "ada")["problem"], WAIT_SECONDS, "nothing is measured without the kubelet")
        unknown_for_longer_than_idle(hub, working)
        assert runs_on(hub, working)
    finally:
        own.start_process("kubelet")
        own.wait_until_ready()
    gpus.wait_for_number(GPUS)
    eventually(lambda: gpu_of(hub, "ada")["state"] == "busy", WAIT_SECONDS, "it is measured again")
    for user in ("bob", "cleo"):
        up(hub, user)
    given = [uuid for user in ("ada", "bob", "cleo") for uuid in devices(hub, user)]
    assert sorted(given) == sorted(gpus.uuids)
    assert runs_on(hub, working)


def test_at_rest_the_workspace_is_warned_and_stopped_and_its_gpu_is_given_again(hub, gpus, working):
    began = time.monotonic()
    control(gpus, "util", "--gpu", "all", "0")
    warning = eventually(lambda: hub.lease("ada")["warning"], WAIT_SECONDS, "its user is warned")
    assert warning["kind"] == "idle"
    assert hub.until_ended("ada", "idle", WAIT_SECONDS)["id"] == working["id"]
    assert time.monotonic() - began > IDLE_AND_GRACE_SECONDS - 4
    eventually(lambda: free(hub) == GPUS, WAIT_SECONDS, "its GPU is free")
