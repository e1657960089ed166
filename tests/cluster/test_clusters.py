"""Two real clusters under one hub: each has nodes, kubelets, watches, homes and an API server of its own.

The proxy reaches workspaces of the other cluster by a NodePort. `node_ports` replaces kube-proxy for that.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from a_wheel import make_wheel
from ends import SERVER
from fake_kueue import is_true
from gpus import simulated
from kube_hub import KubeHub, eventually
from node_ports import served, ways
from nodes import ROOT, TestCluster
from other_cluster import KUEUE, apply, prepare

from gpuspawner.catalog import Route
from gpuspawner.spawner.kubernetes.clusters import http_route_of, ingress_of
from tools.cluster.build import ensure_component
from tools.cluster.cluster import Cluster
from tools.cluster.kueue import Kueue
from tools.cluster.recipes import GATEWAY
from tools.cluster.workspace import ensure_small_image

WAIT_SECONDS = 400
HERE, THERE = "a100", "a100@us-east"
EXTRA = """
c.KubeSpawner.image = {small!r}
c.KubeSpawner.cmd = ["python3", "-c", {server!r}]
c.KubeSpawner.http_timeout = c.KubeSpawner.start_timeout = 300


def at_home(spawner):
    if spawner.user.name == "frank":  # JupyterLab, in a home that both clusters have; root may install into the image
        spawner.cmd, spawner.uid, spawner.image = ["jupyterhub-singleuser", "--allow-root"], 0, {image!r}
        spawner.environment = {{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/home/jovyan"}}
        spawner.volumes = {{"home": {{"name": "home", "persistentVolumeClaim": {{"claimName": "home-frank"}}}}}}
        spawner.volume_mounts = {{"home": {{"name": "home", "mountPath": "/home/jovyan"}}}}


c.KubeSpawner.pre_spawn_hook = at_home
"""


@pytest.fixture(scope="module")
def east(one_machine):
    """The other cluster, with GPUs: its node has the same name as the first cluster's."""
    folder = one_machine.own.folder.with_name(f"{one_machine.own.folder.name}-east")
    make = [sys.executable, "-m", "tools.cluster", "--folder", folder]
    subprocess.run([*make, "stop"], cwd=ROOT, check=True)  # what a run that was killed left
    subprocess.run([*make, "start"], cwd=ROOT, check=True)
    other = TestCluster(Cluster.load(folder).kubeconfig, Cluster.load(folder))
    try:
        with simulated(other, 2):
            yield other
    finally:
        other.api.close()
        subprocess.run([*make, "stop"], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def namespace(one_machine):
    """With GPUs of the hub's own cluster."""
    with simulated(one_machine, 2), one_machine.namespace() as name:
        yield name


@pytest.fixture(scope="module")
def reached(east, namespace, tmp_path_factory):
    """How hub and service reach the other cluster: by the account and the rights that the documents give."""
    return prepare(east, namespace, tmp_path_factory.mktemp("east"))


@pytest.fixture(scope="module")
def asking(east, namespace, reached):
    """The other cluster's NodePorts lead to their pods; held, its API server is not asked for them."""
    with served(east, namespace) as asking:
        yield asking


@pytest.fixture(scope="module")
def hub(one_machine, east, namespace, reached, asking, tmp_path_factory):
    small = {cluster.own.give_image(ensure_small_image(cluster.own.folder)) for cluster in (one_machine, east)}
    hub = KubeHub(
        tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace,
        extra=EXTRA.format(server=SERVER, small=small.pop(), image=one_machine.image),
        settings={"no_room_seconds": 5.0, "no_room_wait_seconds": 2.0},
    )  # fmt: skip
    address = f"http://{one_machine.own.host_address}:{hub.hub_port}"
    there = f"{{kubeconfig: {reached}, hub: '{address}', nodes: {east.own.address}}}"
    clusters = f"clusters:\n  eu-west: {{}}\n  us-east: {there}\n"
    catalog = hub.catalog.read_text().replace("policies:\n", f"{clusters}policies:\n")
    hub.catalog.write_text(catalog.replace("mode: observe", "mode: observe, idle: {sample: 8s}"))
    with hub:
        yield hub


def pods(cluster, hub, user):
    """The user's pods that a cluster has."""
    found = cluster.core.list_namespaced_pod(hub.namespace).items
    return [pod for pod in found if (pod.metadata.annotations or {}).get("hub.jupyter.org/username") == user]


def start(hub, user, gpu, **options):
    hub.add_user(user)
    hub.begin(user, template="lab", gpu=gpu, count=1, **options)


def target(hub, user):
    """Where the hub's proxy leads who opens a user's workspace."""
    headers = {"Authorization": "token proxy-token"}
    routes = requests.get(f"http://127.0.0.1:{hub.proxy_port}/api/routes", headers=headers, timeout=10).json()
    return routes[f"/user/{user}"]["target"]


def state(hub, user):
    return hub.lease(user)["gpus"][0]["state"]


def free(hub, kind):
    return next(offer["free"] for offer in hub.gpu("/offers")["offers"] if offer["kind"] == kind)


def measured(hub, user):
    return eventually(lambda: state(hub, user) in {"idle", "busy"}, WAIT_SECONDS, f"{user} is measured")


def give_home(cluster, namespace, folder):
    """Frank's claim there, and its volume, whose name is returned: one folder for both clusters, as a file share is."""
    core, modes, size, name = cluster.core, ["ReadWriteMany"], {"storage": "1Gi"}, f"{namespace}-home"
    where, ref = {"path": str(folder), "type": "Directory"}, {"namespace": namespace, "name": "home-frank"}
    spec = {"capacity": size, "accessModes": modes, "hostPath": where, "claimRef": ref}
    core.create_persistent_volume({"metadata": {"name": name}, "spec": spec})
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
    core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": "home-frank"}, "spec": claim})
    return name


@pytest.fixture
def home(hub, one_machine, east, tmp_path_factory):
    assert east.image == one_machine.image  # both nodes have it by now
    folder = tmp_path_factory.mktemp("home")
    folder.chmod(0o777)  # the image's own user writes there
    for above in folder.parents[:2]:
        above.chmod(0o755)
    give_home(east, hub.namespace, folder)
    volume = give_home(one_machine, hub.namespace, folder)
    yield folder
    one_machine.core.delete_persistent_volume(volume)


def ask(hub, path, body=None):
    """Return the answer of frank's server."""
    token = hub.api("POST", "/users/frank/tokens", {"scopes": ["access:servers!user=frank"]}).json()["token"]
    method, headers = "GET" if body is None else "POST", {"Authorization": f"token {token}"}
    told = requests.request(method, f"{hub.url}/user/frank/{path}", headers=headers, json=body, timeout=60)
    told.raise_for_status()
    return told.json()


def run_in(cluster, hub, *command):
    (pod,) = pods(cluster, hub, "frank")
    code, printed, said = cluster.run_in(hub.namespace, pod.metadata.name, *command)
    assert code == 0, printed + said
    return printed.strip()


@pytest.mark.slow
def test_open_documents_and_installed_packages_return_in_the_other_cluster(hub, east, one_machine, home):
    start(hub, "frank", HERE)
    hub.until("frank", "running", WAIT_SECONDS)
    for name in ("work.ipynb", "gone.ipynb"):
        (home / name).write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        ask(hub, "api/sessions", {"path": name, "name": "", "type": "notebook", "kernel": {"name": "python3"}})
    for name in ("data", "scratch"):
        (home / name).mkdir()
        ask(hub, "api/terminals", {"name": f"my {name}", "cwd": f"/home/jovyan/{name}"})
    make_wheel(home, "mine", "1.0", "VALUE = 42")
    run_in(one_machine, hub, "python3", "-m", "pip", "install", "--quiet", "mine")
    kept = home / ".gpuspawner" / "session.json"
    all_of_it = ("work.ipynb", "gone.ipynb", "my data", "my scratch", '"mine"')
    is_kept = lambda: kept.exists() and all(one in kept.read_text() for one in all_of_it)  # noqa: E731
    eventually(is_kept, WAIT_SECONDS, "what is open is kept")
    hub.stop("frank")
    hub.until_ended("frank", "stopped", WAIT_SECONDS)
    (home / "gone.ipynb").unlink()
    (home / "scratch").rmdir()
    start(hub, "frank", THERE)
    hub.until("frank", "running", WAIT_SECONDS)
    assert [len(pods(one_machine, hub, "frank")), len(pods(east, hub, "frank"))] == [0, 1]
    notes = eventually(
        lambda: (told := ask(hub, "gpuspawner/home")["notes"])[3:] and told, WAIT_SECONDS, "what came back is told"
    )
    assert notes == [
        "Open in your last session: work.ipynb. Their kernels are new: run the cells again.",
        "Not there any more: gone.ipynb.",
        "Terminals are open again: my data in ~/data.",
        "Terminals are open again in your home, as their folders are gone: my scratch.",
    ]
    assert {one["name"] for one in ask(hub, "api/terminals")} == {"my data", "my scratch"}
    assert ask(hub, "gpuspawner/home", {"install": "once"})
    installed = lambda: any("Installed again: mine 1.0." in one for one in ask(hub, "gpuspawner/home")["notes"])  # noqa: E731
    eventually(installed, WAIT_SECONDS, "what was installed is back")
    assert run_in(east, hub, "python3", "-c", "import mine; print(mine.VALUE)") == "42"
    hub.stop("frank")
    hub.until_ended("frank", "stopped", WAIT_SECONDS)


def test_workspaces_start_in_either_cluster_and_are_measured_there(hub, east, one_machine):
    start(hub, "alice", HERE)
    start(hub, "bob", THERE)
    here, there = hub.until("alice", "running", WAIT_SECONDS), hub.until("bob", "running", WAIT_SECONDS)
    assert (here["gpu"], there["gpu"]) == (HERE, THERE)
    assert [len(pods(cluster, hub, user)) for cluster in (one_machine, east) for user in ("alice", "bob")] == [
        1,
        0,
        0,
        1,
    ]
    pod = pods(east, hub, "bob")[0]
    assert pod.metadata.labels["gpuspawner.io/lease"] == there["id"]
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"
    assert hub.server("bob")["ready"]
    (port,) = (p for p, behind in ways(east, hub.namespace).items() if behind == f"{pod.status.pod_ip}:8888")
    assert target(hub, "alice") == f"http://{pods(one_machine, hub, 'alice')[0].status.pod_ip}:8888"
    assert target(hub, "bob") == f"http://{east.own.address}:{port}"
    assert requests.get(f"{hub.url}/user/bob/", timeout=10).headers["Server"].startswith("SimpleHTTP")
    measured(hub, "alice")
    measured(hub, "bob")


@pytest.mark.slow
def test_a_hub_that_starts_again_finds_workspaces_in_both(hub, east, one_machine):
    before = {user: hub.lease(user)["id"] for user in ("alice", "bob")}
    hub.kill_hub()
    hub.start_hub()
    for user, lease in before.items():
        eventually(lambda user=user: hub.server(user)["ready"], WAIT_SECONDS, f"{user}'s server is known again")
        found = eventually(lambda user=user: hub.lease(user), WAIT_SECONDS, f"{user}'s lease is known again")
        assert (found["id"], found["phase"]) == (lease, "running")
    assert [len(pods(east, hub, "bob")), len(pods(one_machine, hub, "alice"))] == [1, 1]


@pytest.fixture
def away(hub, east, asking):
    """The other cluster's API server is away, and nothing is given there; returns what brings it back."""
    own, told = east.own, len(hub.log.read_text())

    def back():
        own.start_process("kube-apiserver")
        own.wait_until_ready()

    with asking:
        own.stop_process("kube-apiserver")
    try:
        # Until then it may only be slow, and what was seen last holds.
        eventually(
            lambda: "us-east has not answered since" in hub.log.read_text()[told:], WAIT_SECONDS, "us-east is away"
        )
        eventually(lambda: free(hub, THERE) is None, WAIT_SECONDS, "how many are free in us-east is not known")
        yield back
    finally:
        if "kube-apiserver" not in type(own).load(own.folder).processes:
            back()


def test_one_cluster_away_its_workspaces_go_on_unknown_and_the_other_grants(hub, east, away):
    lease = hub.lease("bob")["id"]
    eventually(lambda: state(hub, "bob") not in {"idle", "busy"}, WAIT_SECONDS, "bob is unknown, and not idle")
    start(hub, "carol", THERE)
    start(hub, "dave", HERE)
    hub.until("dave", "running", WAIT_SECONDS)
    assert hub.lease("carol")["phase"] in {"queued", "parked"}
    assert (hub.lease("bob")["id"], hub.lease("bob")["phase"]) == (lease, "running")
    away()
    hub.until("carol", "running", WAIT_SECONDS)
    measured(hub, "bob")
    assert len(pods(east, hub, "carol")) == 1
    assert hub.audit(lease, "stop") == []


@pytest.mark.slow
def test_a_workspace_moves_to_the_other_cluster_on_asking(hub, east, one_machine):
    hub.stop("bob")
    hub.until_ended("bob", "stopped", WAIT_SECONDS)
    assert pods(east, hub, "bob") == []
    eventually(lambda: len(ways(east, hub.namespace)) == 1, WAIT_SECONDS, "bob's port went with his pod, carol's stays")
    hub.stop("dave")
    hub.until_ended("dave", "stopped", WAIT_SECONDS)
    eventually(lambda: hub.begin("bob", template="lab", gpu=HERE, count=1).status_code < 300, WAIT_SECONDS, "asked")
    hub.until("bob", "running", WAIT_SECONDS)
    assert [len(pods(one_machine, hub, "bob")), len(pods(east, hub, "bob"))] == [1, 0]


@pytest.fixture
def gateway(east):
    """The kinds of the Gateway API."""
    files = (ensure_component(GATEWAY).parent / Path(name).name for name in GATEWAY.data)
    east.own.kubectl("apply", "--server-side", *(f"--filename={file}" for file in files))


@pytest.mark.slow
def test_ingresses_and_routes_to_a_workspace_are_taken_and_go_with_its_pod(hub, east, gateway):
    """No controller runs here: the API server takes them, and its garbage collector removes them."""
    pod = east.api.sanitize_for_serialization(pods(east, hub, "carol")[0])
    path = "/user/carol@example.org".replace("@", "%40")
    found = [
        ingress_of(pod, path, Route("https://in.example.org", class_name="public")),
        http_route_of(pod, path, 8888, Route("https://gw.example.org", gateway="shared", namespace="gateways")),
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    east.own.kubectl("apply", f"--namespace={hub.namespace}", "--validate=strict", "-f", "-", given=listed)

    def left():
        return east.own.kubectl("get", "ingress,httproute,service", "--output=name", f"--namespace={hub.namespace}")

    assert len(left().split()) == 3
    hub.stop("carol")
    eventually(lambda: not left(), WAIT_SECONDS, "they are gone")


@pytest.mark.slow
def test_a_request_for_either_cluster_gets_the_free_one(hub, east):
    # alice and bob hold both GPUs of eu-west
    start(hub, "erin", HERE, substitutes=[THERE])
    lease = hub.until("erin", "running", WAIT_SECONDS)
    assert len(pods(east, hub, "erin")) == 1
    assert lease["id"] == pods(east, hub, "erin")[0].metadata.labels["gpuspawner.io/lease"]


def kueue_objects(namespace):
    """A queue with one GPU of the two, and the way to it: its flavor's node is called as that of eu-west."""
    flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}}
    quota = {"name": "there", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 1}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    return [
        {"kind": "ResourceFlavor", "metadata": {"name": "there"}, "spec": flavor},
        {
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {"kind": "LocalQueue", "metadata": {"name": "gpus", "namespace": namespace}, "spec": {"clusterQueue": "all"}},
    ]


@pytest.fixture
def kueue_there(hub, east):
    """Kueue owns the queue of us-east from now on: grace's workspace, which ran there before, goes on."""
    for lease in hub.workspaces():
        hub.stop(lease["user"])
    eventually(lambda: not hub.workspaces(), WAIT_SECONDS, "all have ended")
    start(hub, "grace", THERE)
    hub.until("grace", "running", WAIT_SECONDS)
    kueue = Kueue(east.own)
    kueue.start()
    apply(east, KUEUE, hub.namespace)
    made = [{"apiVersion": "kueue.x-k8s.io/v1beta2", **one} for one in kueue_objects(hub.namespace)]
    east.own.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    hub.kill_hub()
    address = f"nodes: {east.own.address}"
    owned = f"{address}, scheduler: {{kueue: {{queue: gpus}}}}"
    hub.catalog.write_text(hub.catalog.read_text().replace(address, owned))
    hub.start_hub()
    yield
    kueue.stop()


def test_a_cluster_whose_queue_is_kueue_s_starts_by_it_and_the_other_by_ours(hub, east, one_machine, kueue_there):
    def workloads():
        """Whether Kueue has admitted each."""
        told = json.loads(east.own.kubectl("get", "workloads.kueue.x-k8s.io", f"-n={hub.namespace}", "-o=json"))
        return sorted(is_true(one, "Admitted") for one in told["items"])

    eventually(lambda: workloads() == [True], WAIT_SECONDS, "what ran before has its quota")
    start(hub, "heidi", THERE)

    def why():
        sentence = hub.lease("heidi")["queue"]["sentence"]
        return sentence.startswith("Kueue says") and sentence

    says = eventually(why, WAIT_SECONDS, "Kueue tells why she waits")
    assert "position 1 in the cluster's queue all" in says, says
    start(hub, "ivan", HERE)
    hub.until("ivan", "running", WAIT_SECONDS)
    assert len(pods(one_machine, hub, "ivan")) == 1
    assert hub.lease("heidi")["phase"] in {"queued", "parked"}
    assert pods(east, hub, "heidi") == [], "no pod before Kueue admits it"
    assert hub.lease("grace")["phase"] == "running"
    assert workloads() == [False, True]
    hub.stop("grace")
    hub.until("heidi", "running", WAIT_SECONDS)
    assert len(pods(east, hub, "heidi")) == 1
    assert hub.server("heidi")["ready"]
    eventually(lambda: workloads() == [True], WAIT_SECONDS, "hers alone is left")
