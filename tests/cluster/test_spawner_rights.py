"""The hub's rights and the workspaces' priority, as hub_config/ and the chart have them: none is spare."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from kube_hub import KubeHub, eventually
from kubernetes import client
from nodes import ROOT

from tools.progress import StepError

TINY = """
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.priority_class_name = {priority!r}
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.pvc_name_template = "home-{{username}}"
c.KubeSpawner.volumes = {{"own": {{"name": "own", "secret": {{"secretName": "only-{{username}}"}}}}}}
c.KubeSpawner.volume_mounts = {{"own": {{"name": "own", "mountPath": "/own"}}}}
"""
IN_FORCE_SECONDS = 60
"""Rights take a moment to be in force."""
ALL = {"start", "events", "end", "home removed", "home where no more may be made"}


class Rights:
    """The manifests for one namespace, of which a verb may be left out."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace = cluster, namespace
        text = (ROOT / "hub_config" / "kubernetes-hub.yaml").read_text()
        text = re.sub("namespace: (jhub|gpu-workspaces)", f"namespace: {namespace}", text)
        self.parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
        self.priority = f"workspace-{namespace}"
        self.parts["PriorityClass"]["metadata"]["name"] = self.priority

    def grant(self, resource="", verb=""):
        rules = self.parts["Role"]["rules"]
        for rule in rules:
            if rule["resources"] == [resource]:
                assert verb in rule["verbs"]
                rule["verbs"] = [other for other in rule["verbs"] if other != verb]
        made = [self.parts[kind] for kind in ("ServiceAccount", "Role", "RoleBinding", "PriorityClass")]
        listed = {"apiVersion": "v1", "kind": "List", "items": made}
        self.kubectl("apply", "--filename=-", given=json.dumps(listed))
        for rule in rules:
            for granted in rule["verbs"]:
                eventually(lambda rule=rule, granted=granted: self.may(granted, *rule["resources"]), IN_FORCE_SECONDS)

    def may(self, verb, resource):
        account = f"--as=system:serviceaccount:{self.namespace}:gpuspawner-hub"
        try:
            return self.kubectl("auth", "can-i", verb, resource, account).strip() == "yes"
        except StepError:
            return False

    def revoke(self):
        client.SchedulingV1Api(self.cluster.api).delete_priority_class(self.priority)

    def kubectl(self, *arguments, given=""):
        return self.cluster.own.kubectl(f"--namespace={self.namespace}", *arguments, given=given)

    def kubeconfig(self, folder):
        """A kubeconfig of this account and nobody else."""
        config = yaml.safe_load(Path(self.cluster.kubeconfig).read_text())
        token = self.kubectl("create", "token", "gpuspawner-hub", "--duration=1h").strip()
        for user in config["users"]:
            user["user"] = {"token": token}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)


@pytest.fixture
def rights(one_machine, namespace):
    rights = Rights(one_machine, namespace)
    yield rights
    rights.revoke()


def a_hub(rights, folder):
    extra = TINY.format(priority=rights.priority)
    own = rights.kubeconfig(folder)
    return KubeHub(folder, cluster=rights.cluster, namespace=rights.namespace, hub_kubeconfig=own, extra=extra)


def starts(hub, user):
    """Whether this user's workspace runs, where nothing else stands against it."""
    hub.add_user(user)
    hub.begin(user, template="cpu")
    until = time.monotonic() + 40
    while time.monotonic() < until:
        if any(one["user"] == user and one["phase"] == "running" for one in hub.workspaces()):
            return True
        if any(one["user"] == user and one["phase"] == "ended" for one in hub.workspaces(ended=9)):
            return False
        time.sleep(0.3)
    return False


def soon(look):
    """Whether something is so within a while."""
    try:
        return bool(eventually(look, 20))
    except AssertionError:
        return False


def what_works(hub, rights):
    """Yield what a hub may be able to do and whether it can, one after the other."""
    core = rights.cluster.core
    for user in ("alice", "carol"):
        core.create_namespaced_secret(rights.namespace, {"metadata": {"name": f"only-{user}"}})
    rights.cluster.start_pod(rights.namespace, "jupyter-alice", ["sleep", "600"])  # a pod that was left
    started = starts(hub, "alice")
    yield "start", started

    def homes():
        return {one.metadata.name for one in core.list_namespaced_persistent_volume_claim(rights.namespace).items}

    before = homes()
    hub.stop("alice")
    yield "end", started and soon(lambda: hub.pod("alice") is None)
    hub.api("DELETE", "/users/alice")
    yield "home removed", before == {"home-alice"} and soon(lambda: not homes())

    hub.add_user("vera")  # of whose Secret, which is not there, events alone tell
    hub.begin("vera", template="cpu")
    yield "events", "only-vera" in hub.first_steps("vera", "only-vera")
    core.delete_collection_namespaced_persistent_volume_claim(rights.namespace)
    core.create_namespaced_persistent_volume_claim(
        rights.namespace,
        {
            "metadata": {"name": "home-carol"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    full = {"metadata": {"name": "full"}, "spec": {"hard": {"persistentvolumeclaims": "1"}}}
    core.create_namespaced_resource_quota(rights.namespace, full)
    yield "home where no more may be made", starts(hub, "carol")


def test_a_hub_with_these_rights_can_do_all_of_it_and_its_workspaces_preempt_nobody(rights, tmp_path):
    rights.grant()
    hub = a_hub(rights, tmp_path)
    try:
        assert {name for name, works in what_works(hub.start(), rights) if works} == ALL
        spec = hub.pod("carol").spec
        assert (spec.priority, spec.preemption_policy) == (-5, "Never")
        assert "cannot watch" not in hub.log.read_text()
    finally:
        hub.close()


@pytest.mark.parametrize(
    ("resource", "verb", "lost"),
    [
        pytest.param("pods", "get", "start", id="pods get"),
        pytest.param("pods", "list", "start", id="pods list"),
        pytest.param("pods", "create", "start", id="pods create"),
        pytest.param("pods", "delete", "end", id="pods delete"),
        pytest.param("events", "list", "events", id="events list"),
        pytest.param("persistentvolumeclaims", "get", "home where no more may be made", id="claims get"),
        pytest.param("persistentvolumeclaims", "create", "start", id="claims create"),
        pytest.param("persistentvolumeclaims", "delete", "home removed", id="claims delete"),
    ],
)
def test_without_a_verb_something_stops(rights, tmp_path, resource, verb, lost):
    rights.grant(resource, verb)
    hub = a_hub(rights, tmp_path)
    try:
        assert not next(works for name, works in what_works(hub.start(), rights) if name == lost)
    finally:
        hub.close()


@pytest.mark.parametrize("resource", ["pods", "events"])
def test_without_the_right_to_watch_all_is_listed_again_and_again(rights, tmp_path, resource):
    rights.grant(resource, "watch")
    hub = a_hub(rights, tmp_path)
    rights.cluster.core.create_namespaced_secret(rights.namespace, {"metadata": {"name": "only-alice"}})
    try:
        starts(hub.start(), "alice")
        refused = f'cannot watch resource "{resource}"'
        eventually(lambda: hub.log.read_text().count(refused) > 10, 90, "what cannot be followed is listed")
    finally:
        hub.close()
