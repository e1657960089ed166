"""The hub's rights and the workspaces' priority in hub_config/ and the chart: each right is needed."""

import contextlib
import copy
import json
import re
import time
from pathlib import Path

import pytest
import yaml
from kube_hub import KubeHub, eventually
from kubernetes import client
from nodes import ROOT

pytestmark = pytest.mark.slow

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
        self.authorization = client.AuthorizationV1Api(cluster.api)
        text = (ROOT / "hub_config" / "kubernetes-hub.yaml").read_text()
        text = re.sub("namespace: (jhub|gpu-workspaces)", f"namespace: {namespace}", text)
        self.parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
        self.priority = f"workspace-{namespace}"
        self.parts["PriorityClass"]["metadata"]["name"] = self.priority

    def grant(self, resource="", verb=""):
        """Have all rights in force, but for this verb of this resource."""
        role = copy.deepcopy(self.parts["Role"])
        rules = role["rules"]
        for rule in rules:
            if rule["resources"] == [resource]:
                assert verb in rule["verbs"]
                rule["verbs"] = [other for other in rule["verbs"] if other != verb]
        made = [role, *(self.parts[kind] for kind in ("ServiceAccount", "RoleBinding", "PriorityClass"))]
        listed = {"apiVersion": "v1", "kind": "List", "items": made}
        self.kubectl("apply", "--filename=-", given=json.dumps(listed))
        for rule in rules:
            for granted in rule["verbs"]:
                eventually(lambda rule=rule, granted=granted: self.may(granted, *rule["resources"]), IN_FORCE_SECONDS)
        if verb:
            eventually(lambda: not self.may(verb, resource), IN_FORCE_SECONDS)

    def may(self, verb, resource):
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource}
        account = f"system:serviceaccount:{self.namespace}:gpuspawner-hub"
        review = client.V1SubjectAccessReview(spec={"user": account, "resourceAttributes": attributes})
        return self.authorization.create_subject_access_review(review).status.allowed

    def revoke(self):
        client.SchedulingV1Api(self.cluster.api).delete_priority_class(self.priority)

    def kubectl(self, *arguments, given=""):
        return self.cluster.own.kubectl(f"--namespace={self.namespace}", *arguments, given=given)

    def kubeconfig(self, folder):
        """Return a kubeconfig with only this account."""
        config = yaml.safe_load(Path(self.cluster.kubeconfig).read_text())
        token = self.kubectl("create", "token", "gpuspawner-hub", "--duration=1h").strip()
        for user in config["users"]:
            user["user"] = {"token": token}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)


@contextlib.contextmanager
def a_hub(cluster, folder, *without):
    """A hub with these rights, but for a verb of a resource; ``hub.rights`` are they."""
    with cluster.namespace() as namespace:
        rights = Rights(cluster, namespace)
        rights.grant(*without)
        extra, own = TINY.format(priority=rights.priority), rights.kubeconfig(folder)
        hub = KubeHub(folder, cluster=cluster, namespace=namespace, hub_kubeconfig=own, extra=extra)
        hub.rights = rights
        try:
            yield hub
        finally:
            hub.close()
            rights.revoke()


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    """A hub with all rights. Each call checks its rights again, so tests may remove rights while the hub runs."""
    with a_hub(one_machine, tmp_path_factory.mktemp("hub")) as hub:
        yield hub.start()


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


def what_works(hub, run=""):
    """Yield the name of each ability of a hub and whether it works, with users of this run only."""
    core, namespace = hub.cluster.core, hub.namespace
    alice, carol, vera = f"alice{run}", f"carol{run}", f"vera{run}"
    for user in (alice, carol):
        core.create_namespaced_secret(namespace, {"metadata": {"name": f"only-{user}"}})
    hub.cluster.start_pod(namespace, f"jupyter-{alice}", ["sleep", "600"])  # a pod that was left
    started = starts(hub, alice)
    yield "start", started

    before = homes(hub)
    hub.stop(alice)
    yield "end", started and soon(lambda: hub.pod(alice) is None)
    hub.api("DELETE", f"/users/{alice}")
    yield "home removed", before == {f"home-{alice}"} and soon(lambda: not homes(hub))

    hub.add_user(vera)  # of whose Secret, which is not there, events alone tell
    hub.begin(vera, template="cpu")
    yield "events", f"only-{vera}" in hub.first_steps(vera, f"only-{vera}")
    core.delete_collection_namespaced_persistent_volume_claim(namespace)
    core.create_namespaced_persistent_volume_claim(
        namespace,
        {
            "metadata": {"name": f"home-{carol}"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    full = {"metadata": {"name": "full"}, "spec": {"hard": {"persistentvolumeclaims": "1"}}}
    core.create_namespaced_resource_quota(namespace, full)
    yield "home where no more may be made", starts(hub, carol)


def homes(hub):
    return {one.metadata.name for one in hub.cluster.core.list_namespaced_persistent_volume_claim(hub.namespace).items}


@pytest.fixture
def left_empty(hub):
    """Have the next run find nothing of this one."""
    yield
    core, namespace = hub.cluster.core, hub.namespace
    hub.rights.grant()
    for lease in hub.workspaces():
        hub.stop(lease["user"])
    core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
    core.delete_collection_namespaced_resource_quota(namespace)
    core.delete_collection_namespaced_persistent_volume_claim(namespace)
    eventually(lambda: not hub.workspaces() and not homes(hub), 90, "nothing of it is left")


@pytest.mark.usefixtures("left_empty")
def test_a_hub_with_these_rights_can_do_everything_and_its_workspaces_preempt_no_pod(hub):
    assert {name for name, works in what_works(hub) if works} == ALL
    spec = hub.pod("carol").spec
    assert (spec.priority, spec.preemption_policy) == (-5, "Never")
    assert "cannot watch" not in hub.log.read_text()


@pytest.mark.usefixtures("left_empty")
@pytest.mark.parametrize(
    ("resource", "verb", "lost"),
    [
        pytest.param("pods", "get", "start", id="pods get"),
        pytest.param("pods", "create", "start", id="pods create"),
        pytest.param("pods", "delete", "end", id="pods delete"),
        pytest.param("persistentvolumeclaims", "get", "home where no more may be made", id="claims get"),
        pytest.param("persistentvolumeclaims", "create", "start", id="claims create"),
        pytest.param("persistentvolumeclaims", "delete", "home removed", id="claims delete"),
    ],
)
def test_without_a_verb_something_stops(hub, resource, verb, lost):
    hub.rights.grant(resource, verb)
    assert not next(works for name, works in what_works(hub, f"{resource[:2]}{verb}") if name == lost)


@pytest.mark.parametrize(("resource", "lost"), [("pods", "start"), ("events", "events")])
def test_without_the_right_to_list_it_sees_nothing(one_machine, tmp_path, resource, lost):
    with a_hub(one_machine, tmp_path, resource, "list") as hub:
        assert not next(works for name, works in what_works(hub.start()) if name == lost)


@pytest.mark.parametrize("resource", ["pods", "events"])
def test_without_the_right_to_watch_all_is_listed_again_and_again(one_machine, tmp_path, resource):
    with a_hub(one_machine, tmp_path, resource, "watch") as hub:
        one_machine.core.create_namespaced_secret(hub.namespace, {"metadata": {"name": "only-alice"}})
        starts(hub.start(), "alice")
        refused = f'cannot watch resource "{resource}"'
        eventually(lambda: hub.log.read_text().count(refused) > 10, 90, "what cannot be followed is listed")
