"""Volumes, containers, resources and variables of a template, in real pods of the restricted standard."""

import pytest
import yaml
from harness import pages
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
CATALOG = """
version: 1
templates:
  whole:
    bounds: {{cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1m-24h}}
    default: {{cpu: 0.2, memory: 512MiB, lifetime: 8h}}
    environment: {{HF_HOME: /scratch/hf}}
    resources: {{ephemeral-storage: 1Gi}}
    priority_class: {priority}
    ports: {{tensorboard: {{port: 6006, title: TensorBoard}}}}
    volumes:
      scratch: {{empty: memory, size: 64MiB, mount: /scratch}}
      settings: {{config_map: settings, mount: /etc/settings}}
      own: {{per_user: 1GiB, mount: /own}}
      team: {{secret: missing, mount: /run/team, groups: [nobody]}}
    init:
      fetch: {{image: "{image}", command: [sh, -c, "cp /etc/settings/greeting /scratch/fetched"]}}
    sidecars:
      beat: {{image: "{image}", command: [sh, -c, "while :; do date > /scratch/beat; sleep 1; done"]}}
  missing:
    extends: whole
    volumes: {{data: {{claim: there-is-none, mount: /data}}}}
"""
EXTRA = """
c.KubeSpawner.uid = 1000
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
"""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with one_machine.namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        core = one_machine.core
        core.create_namespaced_config_map(namespace, {"metadata": {"name": "settings"}, "data": {"greeting": "hello"}})
        one_machine.own.kubectl("create", "priorityclass", namespace, "--value=-10")
        claim = {"namespace": namespace, "name": "gpu-own-alice"}
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": claim}
        spec["hostPath"] = {"path": f"/var/lib/{namespace}", "type": "DirectoryOrCreate"}
        core.create_persistent_volume({"metadata": {"name": namespace}, "spec": spec})
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=EXTRA)
        hub.catalog.write_text(CATALOG.format(image=one_machine.image, priority=namespace))
        try:
            yield hub.start()
        finally:
            hub.close()
            core.delete_persistent_volume(namespace)
            one_machine.own.kubectl("delete", "priorityclass", namespace)


def test_a_pod_has_what_its_template_adds_and_its_own_claim_stays(hub):
    hub.add_user("alice")
    hub.begin("alice", template="whole")
    hub.until("alice", "running", WAIT_SECONDS)
    pod = hub.pod("alice")
    assert pod.spec.priority_class_name == hub.namespace

    def run(*command):
        told = ["exec", "--namespace", hub.namespace, pod.metadata.name, "--container", "notebook", "--", *command]
        return hub.cluster.own.kubectl(*told).strip()

    assert run("cat", "/scratch/fetched") == "hello"
    assert run("sh", "-c", "echo $HF_HOME") == "/scratch/hf"
    eventually(lambda: run("cat", "/scratch/beat"), 30, "the sidecar writes into the shared volume")
    server = next(one for one in pod.spec.containers if one.name == "notebook")
    assert server.resources.limits["ephemeral-storage"] == "1Gi"
    assert hub.lease("alice")["ports"] == [{"title": "TensorBoard", "port": 6006}]
    hub.end(hub.lease("alice")["id"])
    claim = hub.cluster.core.read_namespaced_persistent_volume_claim("gpu-own-alice", hub.namespace)
    assert claim.status.phase == "Bound"


def test_a_volume_that_is_missing_is_named_to_its_user(hub):
    hub.add_user("bob")
    hub.begin("bob", template="missing")
    assert "there-is-none" in hub.failure("bob")


def test_the_api_server_accepts_the_objects_of_the_page_about_gpu_nodes(one_machine, namespace):
    shown = [
        yaml.safe_load_all(one) for one in pages.blocks(pages.page("how-to/administrators/prepare-gpu-nodes"), "yaml")
    ]
    objects = [one for documents in shown for one in documents if "kind" in one]
    assert {one["kind"] for one in objects} == {"RuntimeClass", "ConfigMap", "ResourceQuota", "LimitRange"}
    for one in objects:
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = namespace
        one_machine.own.kubectl("apply", "--dry-run=server", "--filename=-", given=yaml.safe_dump(one))
