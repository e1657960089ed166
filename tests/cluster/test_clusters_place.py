"""Which of two real clusters a workspace gets: by `place` of its template, and by a scheduler over HTTP for both."""

import pytest
import requests
import yaml
from batch import NAME, Batch
from ends import SERVER
from kube_hub import KubeHub, eventually
from nodes import ROOT
from test_clusters import EXTRA, HERE, THERE, asking, east, namespace, pods, reached

from gpuspawner.cli import main
from tools.cluster.settings import NODE
from tools.cluster.workspace import ensure_small_image

__all__ = ["asking", "east", "namespace", "reached"]
pytestmark = pytest.mark.slow

WAIT_SECONDS = 120
CATALOG = """
version: 1
currency: CHF
gpus:
  a100: {{title: A100, match: NVIDIA-A100*, memory: 40GiB, price: 3}}
clusters:
  eu-west: {{data: [genomes]}}
  us-east:
    kubeconfig: {reached}
    price_factor: 0.5
    hub: '{address}'
    nodes: {nodes}
templates:
  cpu:
    title: No GPU
    bounds: {{cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}}
    default: {{cpu: 0.1, memory: 128MiB, lifetime: 8h}}
  cheap: {{extends: cpu, title: Cheap, gpus: {{a100: 1-2}}, place: cheapest}}
  near: {{extends: cpu, title: Near, gpus: {{a100: 1-2}}, place: nearest, data: [genomes]}}
  soon: {{extends: cpu, title: Soon, gpus: {{a100: 1-2}}, place: soonest}}
policies:
  default: {{mode: observe, lifetime: 1s-24h}}
"""
(PRIORITY,) = (
    part
    for part in yaml.safe_load_all((ROOT / "hub_config" / "kubernetes-hub.yaml").read_text())
    if part["kind"] == "PriorityClass"
)
IN_CLASS = f"c.KubeSpawner.priority_class_name = {PRIORITY['metadata']['name']!r}\n"
INVENTORY = f"""
clusters:
  - {{name: eu-west, near: true, price: {{a100: 3.0}}, nodes: {{{NODE}: {{a100: 2}}}}}}
  - {{name: us-east, near: false, price: {{a100: 1.5}}, nodes: {{{NODE}: {{a100: 2}}}}}}
"""


@pytest.fixture(scope="module")
def hub(one_machine, east, namespace, reached, asking, tmp_path_factory):
    small = {cluster.own.give_image(ensure_small_image(cluster.own.folder)) for cluster in (one_machine, east)}
    one_machine.own.kubectl("apply", "--filename=-", given=yaml.safe_dump(PRIORITY))
    extra = EXTRA.format(server=SERVER, small=small.pop(), image="unused") + IN_CLASS
    hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
    address = f"http://{one_machine.own.host_address}:{hub.hub_port}"
    hub.catalog.write_text(CATALOG.format(reached=reached, address=address, nodes=east.own.address))
    with hub:
        both = {HERE: 2, THERE: 2}
        eventually(lambda: free(hub) == both, WAIT_SECONDS, "the GPUs of both clusters are offered")
        yield hub


def free(hub):
    return {offer["kind"]: offer["free"] for offer in hub.gpu("/offers")["offers"]}


def token_of(hub, user):
    return hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]


def check(hub, user, **options):
    """Return the sentence that a user gets before Start."""
    hub.add_user(user)
    where, headers = f"{hub.url}/services/gpu/api/v1/check", {"Authorization": f"token {token_of(hub, user)}"}
    answer = requests.post(where, json=options, headers=headers, timeout=30)
    assert answer.ok, answer.text
    return answer.json()["sentence"]


def explained(hub, user, capsys, monkeypatch):
    """Return what `gpuspawner explain` prints for a user's workspace."""
    monkeypatch.setenv("GPUSPAWNER_TOKEN", token_of(hub, user))
    monkeypatch.setenv("GPUSPAWNER_URL", f"{hub.url}/services/gpu")
    assert main(["explain", "-"]) == 0
    return capsys.readouterr().out


def page(hub, user):
    """Return the page of a user's workspace."""
    return hub.login(user).get(f"{hub.url}/services/gpu/workspaces/{hub.lease(user)['id']}", timeout=60).text


def clusters_of(hub, user, one_machine, east):
    """Return the number of a user's pods in either cluster."""
    return [len(pods(cluster, hub, user)) for cluster in (one_machine, east)]


def run(hub, user, gpu, **options):
    start(hub, user, gpu, **options)
    return hub.until(user, "running", WAIT_SECONDS)


def end_all(hub):
    for lease in hub.workspaces():
        hub.end(lease["id"])
    eventually(lambda: not hub.workspaces() and free(hub) == {HERE: 2, THERE: 2}, WAIT_SECONDS, "all have ended")


def start(hub, user, gpu, template="cheap", count=1, **options):
    hub.add_user(user)
    answer = hub.begin(user, template=template, gpu=gpu, count=count, **options)
    assert answer.status_code in {201, 202}, answer.text


def test_a_template_chooses_among_the_clusters_that_its_user_accepts(hub, one_machine, east, capsys, monkeypatch):
    why = "Of the clusters that you accept, us-east is the cheapest with free GPUs."
    assert why in check(hub, "alice", template="cheap", gpu=HERE, count=1, substitutes=[THERE])
    run(hub, "alice", HERE, substitutes=[THERE])
    assert clusters_of(hub, "alice", one_machine, east) == [0, 1]
    assert pods(east, hub, "alice")[0].spec.priority < 0, "the other cluster has the class of workspaces too"
    assert why in page(hub, "alice")
    assert "A100 in us-east instead of A100 in eu-west, as you allowed" in explained(hub, "alice", capsys, monkeypatch)

    assert "Of the clusters" not in check(hub, "bob", template="cheap", gpu=HERE, count=1)
    run(hub, "bob", HERE)
    assert clusters_of(hub, "bob", one_machine, east) == [1, 0], "it accepts no other cluster, however cheap"

    nearest = "Of the clusters that you accept, eu-west is the nearest with free GPUs."
    asked = {"template": "near", "gpu": THERE, "count": 1, "substitutes": [HERE]}
    assert nearest in check(hub, "carol", **asked)
    run(hub, "carol", asked.pop("gpu"), **asked)
    assert clusters_of(hub, "carol", one_machine, east) == [1, 0]

    soonest = "Of the clusters that you accept, us-east starts it soonest."
    asked = {"template": "soon", "gpu": HERE, "count": 1, "substitutes": [THERE]}
    assert soonest in check(hub, "dave", **asked)
    run(hub, "dave", asked.pop("gpu"), **asked)
    assert clusters_of(hub, "dave", one_machine, east) == [0, 1]
    end_all(hub)


@pytest.fixture
def batch(hub, tmp_path):
    """A scheduler over HTTP decides for both clusters from now on."""
    batch = Batch(tmp_path, INVENTORY)
    batch.start()
    hub.kill_hub()
    hub.catalog.write_text(hub.catalog.read_text() + batch.named(f"http://127.0.0.1:{hub.service_port}"))
    hub.start_hub()
    eventually(lambda: free(hub) == {HERE: 2, THERE: 2}, WAIT_SECONDS, "the scheduler's numbers are known")
    yield batch
    batch.kill()


def test_a_scheduler_over_http_places_in_both_clusters_within_consent(
    hub, batch, one_machine, east, capsys, monkeypatch
):
    offered = check(hub, "erin", template="cheap", gpu=HERE, count=1, substitutes=[THERE])
    assert f"{NAME} offers it on eu-west for 3.00 per hour." in offered
    erin = run(hub, "erin", HERE, substitutes=[THERE])
    assert batch.states(hub)[erin["id"]]["grant"]["cluster"] == "eu-west", "near is first, by its own policy"
    assert clusters_of(hub, "erin", one_machine, east) == [1, 0]
    assert "Of the clusters that you accept" not in page(hub, "erin"), "the scheduler chose, and not the template"

    judy = run(hub, "judy", THERE)
    assert batch.states(hub)[judy["id"]]["grant"]["cluster"] == "us-east", "its user accepts no other"
    assert clusters_of(hub, "judy", one_machine, east) == [0, 1]

    run(hub, "grace", HERE)
    start(hub, "heidi", HERE)
    said = lambda: f"{NAME} says" in hub.lease("heidi")["queue"]["sentence"]  # noqa: E731
    eventually(said, WAIT_SECONDS, "the scheduler's reason is shown")
    assert clusters_of(hub, "heidi", one_machine, east) == [0, 0], "a GPU of us-east is free, but not accepted"
    assert f"{NAME} says" in explained(hub, "heidi", capsys, monkeypatch)
    assert f"{NAME} says" in page(hub, "heidi")

    ivan = run(hub, "ivan", HERE, substitutes=[THERE])
    assert batch.states(hub)[ivan["id"]]["grant"]["cluster"] == "us-east", "eu-west is full, and it accepts both"
    assert clusters_of(hub, "ivan", one_machine, east) == [0, 1]
    hub.stop("grace")
    hub.until("heidi", "running", WAIT_SECONDS)
    assert clusters_of(hub, "heidi", one_machine, east) == [1, 0]
