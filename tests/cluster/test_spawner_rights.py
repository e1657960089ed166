"""The hub's rights and the workspaces' priority, as hub_config/ has them to copy, on a real cluster."""

import re
from pathlib import Path

import pytest
import yaml
from kube_hub import KubeHub, eventually
from kubernetes import client
from nodes import ROOT

TINY = """
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.priority_class_name = {priority!r}
"""


@pytest.fixture
def hub(one_machine, namespace, tmp_path):
    text = (ROOT / "hub_config" / "kubernetes-hub.yaml").read_text()
    text = re.sub("namespace: (jhub|gpu-workspaces)", f"namespace: {namespace}", text)
    parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
    parts["PriorityClass"]["metadata"]["name"] = f"workspace-{namespace}"
    rbac, scheduling = client.RbacAuthorizationV1Api(one_machine.api), client.SchedulingV1Api(one_machine.api)
    one_machine.core.create_namespaced_service_account(namespace, parts["ServiceAccount"])
    rbac.create_namespaced_role(namespace, parts["Role"])
    rbac.create_namespaced_role_binding(namespace, parts["RoleBinding"])
    scheduling.create_priority_class(parts["PriorityClass"])
    answer = one_machine.core.create_namespaced_service_account_token(
        "gpuspawner-hub", namespace, {"spec": {"expirationSeconds": 3600}}
    )
    config = yaml.safe_load(Path(one_machine.kubeconfig).read_text())
    for user in config["users"]:
        user["user"] = {"token": answer.status.token}
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(config))
    extra = TINY.format(priority=f"workspace-{namespace}")
    hub = KubeHub(tmp_path, cluster=one_machine, namespace=namespace, hub_kubeconfig=str(own), extra=extra)
    try:
        yield hub.start()
    finally:
        hub.close()
        scheduling.delete_priority_class(f"workspace-{namespace}")


def test_a_hub_with_these_rights_starts_and_ends_workspaces_that_preempt_nobody(hub):
    hub.add_user("alice")
    hub.begin("alice", template="cpu")
    hub.until("alice", "running", 60)
    spec = hub.pod("alice").spec
    assert (spec.priority, spec.preemption_policy) == (-5, "Never")
    hub.stop("alice")
    eventually(lambda: hub.pod("alice") is None, 30, "alice's pod is gone")
