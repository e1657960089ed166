"""The promises of the design on a real cluster, by one hub: GPUs, queue, idleness, preemption, ends and restarts.

Each server is a small program that ends as it is told. The node has five A100 of a device plugin and one H100 that pods
claim (DRA).
"""

import contextlib
import re

import pytest
import requests
from ends import SERVER, tell, told
from gpus import simulated, uuids_in
from kube_hub import KubeHub, eventually
from kubernetes import client
from test_dra import H100, claims_in

from tools.cluster.gpus import node_claims

WAIT_SECONDS = 300
GPUS = 5
GRACE_SECONDS = 15
IDLE_AND_GRACE_SECONDS = 16 + 10
SOON = {"no_room_seconds": 5.0, "no_room_wait_seconds": 2.0}
CATALOG = f"""
version: 1
gpus:
  a100: {{title: A100, match: NVIDIA-A100*, memory: 80GiB}}
  h100:
    title: H100
    memory: 80GiB
    claim:
      device_class: gpu.nvidia.com
      selectors: ["device.attributes['gpu.nvidia.com'].productName == '{H100}'"]
templates:
  cpu:
    title: No GPU
    bounds: {{cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}}
    default: {{cpu: 0.1, memory: 128MiB, lifetime: 8h}}
  lab: {{extends: cpu, title: Lab, gpus: {{a100: 1-8, h100: 1}}, substitutes: {{h100: [a100]}}}}
  idles: {{extends: lab, title: Idles, policy: idles}}
  brief: {{extends: cpu, title: Brief, policy: brief, default: {{lifetime: 10s}}}}
  missing: {{extends: cpu, title: No image, image: "localhost/there-is-none:1"}}
policies:
  default: {{mode: observe, lifetime: 1s-24h}}
  idles: {{mode: enforce, lifetime: 1s-24h, idle: {{below: 5%, for: 16s, sample: 4s, grace: 10s, start_up: 6s}}}}
  brief: {{mode: observe, lifetime: 1s-24h, extend: {{each: 1h, total: 1h, warn: [5s]}}}}
quotas:
  each-user: {{each: user, gpus: {{soft: 2, hard: {GPUS}}}}}
"""
EXTRA = """
SERVER = {server!r}
TOOL = "mkdir /tmp/bin; printf '#!/bin/sh\\necho no driver >&2; exit 9\\n' >/tmp/bin/nvidia-smi; "
TOOL += "chmod +x /tmp/bin/nvidia-smi; exec python3 -m http.server 8888"
CLAIM = {{"name": "data", "persistentVolumeClaim": {{"claimName": "there-is-none"}}}}


def prepare(spawner):
    user = spawner.user.name
    if user == "broken":
        spawner.cmd = ["sh", "-c", TOOL]
        spawner.environment = {{"PATH": "/tmp/bin:/opt/workspace/bin:/usr/local/bin:/usr/bin:/bin"}}
    elif user == "program":
        spawner.cmd = ["there-is-none"]
    elif user == "claim":
        spawner.volumes = [CLAIM]
        spawner.volume_mounts = [{{"name": "data", "mountPath": "/data"}}]
    elif user == "stays":
        spawner.cmd = ["python3", "-c", SERVER, "stays"]


c.KubeSpawner.cmd = ["python3", "-c", SERVER]
c.KubeSpawner.pre_spawn_hook = prepare
c.GPUSpawner.gpu_grace_seconds = {grace}
c.KubeSpawner.volumes = {{"kept": {{"name": "kept", "hostPath": {{"path": {kept!r}, "type": "Directory"}}}}}}
c.KubeSpawner.volume_mounts = {{"kept": {{"name": "kept", "mountPath": "/home/jovyan/kept"}}}}
"""
TRAINS = """
cd ~ && cat >train.py <<'END'
import os, pathlib, signal, sys, time

home, step, noticed_at = pathlib.Path.home(), 0, 0


def save(*_):
    time.sleep(1)  # a checkpoint takes its time
    (home / "kept" / "saved").write_text(f"step {step}, noticed at step {noticed_at}")
    sys.exit()


signal.signal(signal.SIGTERM, save)
while True:
    step += 1
    noticed_at = noticed_at or ((home / os.environ["GPUSPAWNER_NOTICE"]).exists() and step)
    time.sleep(0.1)
END
nohup python3 train.py >/dev/null 2>&1 &
mkdir -p ~/.gpuspawner
echo 'echo "$GPUSPAWNER_END_REASON in $(hostname):"; cat ~/"$GPUSPAWNER_NOTICE"' >~/.gpuspawner/on-stop
"""
"""A program that catches SIGTERM, in a session of its own as in a terminal, and what its user has run at the end."""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, GPUS) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def claimed(one_machine):
    found = node_claims(one_machine.own, 1, "h100", H100, 81_920)
    try:
        found.start()
        yield found.uuids[0]
    finally:
        found.stop()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    folder.chmod(0o777)  # the image's own user writes there
    for above in folder.parents[:2]:
        above.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def hub(one_machine, gpus, claimed, kept, tmp_path_factory):
    with one_machine.namespace() as namespace:
        extra = EXTRA.format(server=SERVER, grace=GRACE_SECONDS, kept=str(kept))
        folder = tmp_path_factory.mktemp("hub")
        hub = KubeHub(folder, cluster=one_machine, namespace=namespace, extra=extra, wait=600, settings=SOON)
        hub.catalog.write_text(CATALOG)
        try:
            hub.start()
            eventually(lambda: free(hub) == GPUS, WAIT_SECONDS, "all GPUs are offered")
            yield hub
        finally:
            hub.close()


@pytest.fixture(autouse=True)
def nothing_is_left(hub, gpus):
    yield
    for uuid in gpus.uuids:
        gpus.set_utilization(uuid, 0)
    for lease in hub.workspaces():
        with contextlib.suppress(requests.HTTPError):  # it may end just now, and then it can't be stopped
            hub.end(lease["id"])
    pods = hub.cluster.core.list_namespaced_pod
    eventually(lambda: not hub.workspaces() and not pods(hub.namespace).items, WAIT_SECONDS, "all have ended")


def free(hub, kind="a100"):
    return next(offer["free"] for offer in hub.gpu("/offers")["offers"] if offer["kind"] == kind)


def begin(hub, user, template="lab", **options):
    hub.add_user(user)
    asked = {"template": template, **({"gpu": "a100", "count": 1} if template in {"lab", "idles"} else {}), **options}
    answer = hub.begin(user, **asked)
    assert answer.status_code in {201, 202}, answer.text


def up(hub, user, template="lab", **options):
    begin(hub, user, template, **options)
    return hub.until(user, "running", WAIT_SECONDS)


def token_of(hub, user):
    return hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]


def in_pod(hub, user, script):
    code, printed, said = hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "sh", "-c", script)
    assert code == 0, said
    return printed


def devices(hub, user):
    return uuids_in(hub.cluster, hub.namespace, hub.pod(user).metadata.name)


def test_promises_1_3_and_4_only_what_is_known_to_be_idle_is_stopped_and_no_gpu_is_given_twice(hub, kept, gpus):
    leases, given = {}, []
    for user in ("busy", "half", "idle", "broken"):
        begin(hub, user, "idles", count=2 if user == "half" else 1)
    for user in ("busy", "half", "idle", "broken"):
        leases[user] = hub.until(user, "running", WAIT_SECONDS)
        given += devices(hub, user)
        if user in {"busy", "half"}:
            gpus.set_utilization(given[-1], 10)
    in_pod(hub, "idle", TRAINS)
    assert len(set(given)) == len(given) == GPUS
    assert eventually(lambda: hub.lease("idle")["warning"], WAIT_SECONDS, "it is warned")["kind"] == "idle"
    pod = hub.pod("idle").metadata.name
    assert hub.until_ended("idle", "idle", WAIT_SECONDS)["id"] == leases["idle"]["id"]
    eventually(lambda: hub.pod("idle") is None, WAIT_SECONDS, "its pod is gone")
    (stop,) = hub.audit(leases["idle"]["id"], "stop")
    assert stop["fields"]["reason"] == "idle"
    assert hub.gpu(f"/workspaces/{leases['idle']['id']}/readings")["readings"], "the readings behind the stop are kept"
    page = hub.login("idle").get(f"{hub.url}/services/gpu/workspaces/{leases['idle']['id']}", timeout=60).text
    assert f"idle in {pod}:" in page, "what its user wrote ran in its pod before the end"
    assert "{&#34;ends_at&#34;: " in page, "with the notice that it could read"
    saved = re.fullmatch(r"step (\d+), noticed at step (\d+)", (kept / "saved").read_text())
    assert 0 < int(saved[2]) < int(saved[1]), "it knew before, and saved when it was asked to end"

    assert "nvidia-smi failed with exit code 9: 'no driver'" in hub.lease("broken")["gpus"][0]["problem"]
    eventually(
        lambda: unread_seconds(hub, leases["broken"]) > IDLE_AND_GRACE_SECONDS, WAIT_SECONDS, "idle, it would be gone"
    )
    for user, percents in (("busy", [10]), ("half", [0, 10]), ("broken", [None])):
        lease = hub.lease(user)
        assert (lease["id"], lease["phase"]) == (leases[user]["id"], "running")
        assert sorted(gpu["utilization_percent"] for gpu in lease["gpus"]) == percents


def unread_seconds(hub, lease):
    """For how long all readings of a workspace failed."""
    readings = hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"]
    times = [one["at"] for one in readings if one["kind"] == "unknown"]
    return times[-1] - times[0]


def test_promise_8_a_soft_quota_warns_and_grants_and_a_hard_one_refuses_with_both_quantities(hub):
    hub.add_user("cleo")
    token = token_of(hub, "cleo")
    asked = {"template": "lab", "gpu": "a100", "count": 3}
    told = hub.gpu("/check", "POST", asked, token=token)["sentence"]
    assert "With this you would have 3 GPUs. Your share is 2. You get it while GPUs are free." in told
    refused = hub.begin("cleo", template="lab", gpu="a100", count=6)
    assert refused.status_code == 403
    assert refused.json()["message"].startswith(
        "GPUs: You asked for 6. Allowed: 5 per user. You use or wait for 0. Ask"
    )
    up(hub, "cleo", count=3)


def test_promise_9_a_workspace_has_no_credential_of_the_cluster_and_others_cannot_stop_it(hub):
    lease = up(hub, "alice", "cpu", memory="512MiB")
    spec = hub.pod("alice").spec
    assert spec.automount_service_account_token is False
    assert spec.containers[0].resources.limits == {"cpu": "100m", "memory": "512Mi"}
    printed = in_pod(hub, "alice", "df -k /dev/shm | tail -1; env; ls -d /var/run/secrets/* || true")
    assert printed.split()[1] == str(256 * 1024)
    assert "NVIDIA_VISIBLE_DEVICES=void" in printed.splitlines()
    assert "/var/run/secrets" not in printed
    hub.add_user("bob")
    path = f"/workspaces/{lease['id']}/stop"
    for method, user, status in (("POST", "bob", 404), ("GET", "alice", 405)):
        with pytest.raises(requests.HTTPError, match=str(status)):
            hub.gpu(path, method, token=token_of(hub, user))
    assert hub.lease("alice")["phase"] == "running"
    assert hub.stop("alice").status_code in {202, 204}
    eventually(lambda: hub.pod("alice") is None, WAIT_SECONDS, "its pod is gone")


def test_promises_6_and_7_a_claimed_gpu_is_waited_for_and_a_substitute_is_given_on_consent(hub, claimed):
    lease = up(hub, "ada", gpu="h100")
    assert [gpu["id"].rpartition("/")[0] for gpu in lease["gpus"]] == ["gpu-node/gpu.nvidia.com/h100"]
    assert devices(hub, "ada") == [claimed]
    (claim,) = claims_in(hub.cluster, hub.namespace)
    assert claim["metadata"]["ownerReferences"][0]["name"] == hub.pod("ada").metadata.name
    assert claim["metadata"]["labels"]["gpuspawner.io/lease"] == lease["id"]
    begin(hub, "grace", gpu="h100")
    waiting = hub.until("grace", "queued", WAIT_SECONDS)
    assert (waiting["queue"]["place"], waiting["queue"]["of"]) == (1, 1)
    assert free(hub) == GPUS, "others are free, to which its user did not consent"
    instead = up(hub, "heidi", gpu="h100", substitutes=["a100"])
    assert (instead["request"]["gpu"], instead["given"]) == ("h100", "a100")
    assert instead["words"].startswith("Running on 1 A100 instead of H100, as you allowed")
    assert hub.lease("grace")["phase"] in {"queued", "parked"}, (
        "it waits, also after the time in which its hub waits with it"
    )
    hub.stop("ada")
    assert hub.until("grace", "running", WAIT_SECONDS)["id"] == waiting["id"]
    assert devices(hub, "grace") == [claimed]


def test_promise_6_a_start_that_its_node_threw_out_goes_back_to_its_place_and_comes_by_itself(hub, gpus):
    gpus.hang_plugin()
    begin(hub, "rosa")
    lease = eventually(lambda: hub.lease("rosa"), WAIT_SECONDS, "rosa has a lease")
    eventually(lambda: (pod := hub.pod("rosa")) and pod.spec.node_name, WAIT_SECONDS, "its pod has a node")
    gpus.start_plugin()  # it ends before it gave the pod its GPU
    (line,) = eventually(lambda: hub.audit(lease["id"], "requeued"), WAIT_SECONDS, "rosa is sent back")[:1]
    assert "Its node had no room after all: " in line["why"]
    assert hub.until("rosa", "running", WAIT_SECONDS)["id"] == lease["id"]


def test_a_workspace_on_a_gpu_that_fails_is_moved_by_its_user_to_one_that_works(hub, gpus):
    lease = up(hub, "mara")
    (failing,) = devices(hub, "mara")
    gpus.set_health(failing, healthy=False)
    try:
        warning = eventually(lambda: hub.lease("mara")["warning"], WAIT_SECONDS, "mara is told")
        assert (warning["kind"], warning["actions"]) == ("unhealthy", ["move"])
        hub.gpu(f"/workspaces/{lease['id']}/move", "POST", token=token_of(hub, "mara"))
        assert hub.until_ended("mara", "moved", WAIT_SECONDS)["id"] == lease["id"]
        again = hub.until("mara", "running", WAIT_SECONDS)
        assert (again["id"] != lease["id"], again["asked_at"]) == (True, lease["asked_at"])
        assert devices(hub, "mara") != [failing]
    finally:
        gpus.set_health(failing, healthy=True)


@pytest.fixture
def train(hub):
    """Start a pod of higher priority that needs every GPU; returns what starts it, which returns what ends it."""
    scheduling, core = client.SchedulingV1Api(hub.cluster.api), hub.cluster.core
    scheduling.create_priority_class({"metadata": {"name": hub.namespace}, "value": 1000})

    def end():
        core.delete_collection_namespaced_pod(
            hub.namespace, field_selector="metadata.name=train", grace_period_seconds=0
        )

    def start():
        needs = {"nvidia.com/gpu": str(GPUS)}
        how = {"wait": False, "priorityClassName": hub.namespace}
        hub.cluster.start_pod(hub.namespace, "train", ["sleep", "3600"], needs, **how)
        return end

    yield start
    end()
    scheduling.delete_priority_class(hub.namespace)


def test_promise_5_a_user_whose_gpu_training_takes_is_told_first_and_returns_to_the_place(hub, train):
    lease = up(hub, "stays")
    end = train()
    # The condition of the pod is seen a moment before the time of its end.
    warning = eventually(
        lambda: (told := hub.lease("stays")["warning"]) and told["ends_at"] and told, WAIT_SECONDS, "its user is told"
    )
    assert hub.lease("stays")["phase"] == "running"
    assert warning["text"].startswith(
        "The cluster needed its GPU for work with a higher priority. This workspace ends at "
    )
    assert (
        "It returns to the queue before later requests of its priority, and starts again by itself." in warning["text"]
    )
    (line,) = hub.audit(lease["id"], "disrupted")
    assert 0 < warning["ends_at"] - line["at"] <= GRACE_SECONDS
    ended = hub.until_ended("stays", "preempted", WAIT_SECONDS)
    assert (ended["id"], ended["end"]["by"]) == (lease["id"], "cluster")
    assert "work with a higher priority" in ended["end"]["message"]
    back = eventually(lambda: hub.lease("stays"), WAIT_SECONDS, "it is back in the queue")
    assert back["asked_at"] == lease["asked_at"]
    hub.cluster.wait_for_phase(hub.namespace, "train", "Running")
    # It may be granted the GPU for a moment: it was free before the training's pod was placed.
    eventually(lambda: hub.lease("stays")["phase"] in {"parked", "queued"}, WAIT_SECONDS, "it waits")
    end()
    assert hub.until("stays", "running", WAIT_SECONDS)["id"] == back["id"]
    tell(hub, "stays", "quit")


def test_how_a_workspace_ended_is_told(hub):
    ends = {
        "eat": ("failed", "It used more memory than 128Mi and was ended. Start it with more"),
        "quit": ("stopped", "It was shut down from inside"),
        "crash": ("failed", "Its server ended by itself with exit code 3."),
        "brief": ("expired", "Its lifetime was 10 s."),
    }
    for user in ends:
        begin(hub, user, "brief" if user == "brief" else "cpu")
    for user in ends.keys() - {"brief"}:
        hub.until(user, "running", WAIT_SECONDS)
        tell(hub, user, user)
    for user, (reason, words) in ends.items():
        assert words in hub.until_ended(user, reason, WAIT_SECONDS)["end"]["message"]
        eventually(lambda user=user: hub.server(user) is None, WAIT_SECONDS, "the hub has no server of it")
        assert words in told(hub, user)


def test_promise_10_what_can_never_start_is_told_at_once(hub):
    failures = {
        "missing": "The node does not have the image localhost/there-is-none:1, and the settings forbid to pull it.",
        "program": "Its server cannot be run: a command was not found.",
        "claim": "Its volume there-is-none is missing.",
    }
    for user in failures:
        begin(hub, user, "missing" if user == "missing" else "cpu")
    for user, words in failures.items():
        assert words in hub.failure(user)
        assert hub.until_ended(user, "failed", WAIT_SECONDS)


def test_promise_2_nothing_is_lost_when_hub_service_and_api_server_end_at_once(hub, one_machine):
    begin(hub, "erin", count=GPUS)
    pod = eventually(lambda: hub.lease("erin")["phase"] == "running" and hub.pod("erin"), WAIT_SECONDS, "erin has all")
    begin(hub, "frank")
    hub.until("frank", "queued", WAIT_SECONDS)

    def known():
        return {user: kept_of(hub.lease(user)) for user in ("erin", "frank")}

    before, own, told_before = known(), one_machine.own, len(hub.log.read_text())
    hub.kill_service()
    hub.kill_hub()
    own.stop_process("kube-apiserver")
    try:
        hub.start_hub()
        words = "pods cannot be listed"
        eventually(lambda: words in hub.log.read_text()[told_before:], WAIT_SECONDS, "the hub looks for its pods")
        eventually(lambda: known() == before, WAIT_SECONDS, f"the service knows all again: {before}")
        assert hub.server("erin")["pending"] == "check"
    finally:
        own.start_process("kube-apiserver")
        own.wait_until_ready()
    eventually(lambda: hub.server("erin")["ready"], WAIT_SECONDS, "erin's server is known again")
    assert known() == before
    assert hub.pod("erin").metadata.uid == pod.metadata.uid
    assert hub.audit(before["erin"]["id"], "stop") == []
    hub.stop("erin")
    assert hub.until("frank", "running", WAIT_SECONDS)["id"] == before["frank"]["id"]


def kept_of(lease):
    """Return the values of a running or waiting workspace that a restart must keep."""
    place = (lease["queue"] or {}).get("place")
    return {**{name: lease[name] for name in ("id", "asked_at", "ends_at")}, "gpus": len(lease["gpus"]), "place": place}
