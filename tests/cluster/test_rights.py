"""The service's rights on the cluster suffice, and each of them is needed."""

import asyncio
import itertools
import re
from pathlib import Path

import pytest
import yaml
from gpus import simulated
from kubernetes import client
from nodes import ROOT, wait_for
from workspaces import HUB, eventually, start

from gpuspawner.backends.kubernetes import watches
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.schedulers.kubernetes import KubernetesScheduler

MANIFESTS = ROOT / "hub_config" / "kubernetes-service-rbac.yaml"
KINDS = {"a100": GpuKind("a100", "A100", 80 * 2**30, match="NVIDIA-A100*")}
LEASE = "e" * 32
IN_FORCE_SECONDS = 300
"""Rights take a moment to be in force, on a busy machine a long one."""


@pytest.fixture(autouse=True)
def refusals_are_meant(monkeypatch):
    """Soon believed: the API server knew its roles long before."""
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 1.0)


class Service:
    """A service account with the rights of the manifests, some of them taken away."""

    def __init__(self, cluster, namespace, folder, manifests=MANIFESTS):
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.rbac = client.RbacAuthorizationV1Api(cluster.api)
        text = re.sub("namespace: (jhub|gpu-workspaces)", f"namespace: {namespace}", manifests.read_text())
        self.parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
        (subject,) = self.parts["RoleBinding"]["subjects"]
        self.account = subject["name"]
        self.name = f"service-{namespace}"
        self.parts["ClusterRole"]["metadata"]["name"] = self.name
        self.parts["ClusterRoleBinding"]["metadata"]["name"] = self.name
        self.parts["ClusterRoleBinding"]["roleRef"]["name"] = self.name

    def grant(self, without=(None, None, None)):
        """Make the roles, but for one verb of one resource of one of them."""
        kind, resource, verb = without
        for role in ("ClusterRole", "Role"):
            rules = self.parts[role]["rules"]
            for rule in [rule for rule in rules if role == kind and resource in rule["resources"]]:
                assert verb in rule["verbs"]
                others = [other for other in rule["resources"] if other != resource]
                if others:
                    rules.append({**rule, "resources": others})
                rule |= {"resources": [resource], "verbs": [other for other in rule["verbs"] if other != verb]}
                if not rule["verbs"]:
                    rules.remove(rule)
        core, rbac = self.cluster.core, self.rbac
        core.create_namespaced_service_account(self.namespace, {"metadata": {"name": self.account}})
        rbac.create_cluster_role(self.parts["ClusterRole"])
        rbac.create_cluster_role_binding(self.parts["ClusterRoleBinding"])
        rbac.create_namespaced_role(self.namespace, self.parts["Role"])
        rbac.create_namespaced_role_binding(self.namespace, self.parts["RoleBinding"])
        for role, namespace in (("ClusterRole", None), ("Role", self.namespace)):
            for rule in self.parts[role]["rules"]:
                (group,) = rule["apiGroups"]
                for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
                    wait_for(
                        lambda asked=(verb, resource, namespace, group): self.may(*asked),
                        f"{role}: {verb} {resource} is in force",
                        IN_FORCE_SECONDS,
                    )

    def may(self, verb, resource, namespace, group=""):
        """Whether the API server lets the service do this now; ``namespace`` is None for all of them."""
        name, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": name,
            "subresource": subresource,
            "namespace": namespace,
        }
        account = f"system:serviceaccount:{self.namespace}:{self.account}"
        review = client.V1SubjectAccessReview(spec={"user": account, "resourceAttributes": attributes})
        return client.AuthorizationV1Api(self.cluster.api).create_subject_access_review(review).status.allowed

    def revoke(self):
        for remove in (self.rbac.delete_cluster_role_binding, self.rbac.delete_cluster_role):
            remove(self.name)

    def kubeconfig(self):
        """Return a kubeconfig with only this service account."""
        answer = self.cluster.core.create_namespaced_service_account_token(
            self.account, self.namespace, {"spec": {"expirationSeconds": 3600}}
        )
        config = yaml.safe_load(Path(self.cluster.kubeconfig).read_text())
        for user in config["users"]:
            user["user"] = {"token": answer.status.token}
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, count=2) as found:
        yield found


@pytest.fixture
def service(one_machine, namespace, tmp_path):
    service = Service(one_machine, namespace, tmp_path)
    yield service
    service.revoke()


async def what_works(service):
    """Return the abilities of the service, for example to read the fleet, and its messages about missing rights."""
    start(service.cluster, service.namespace, "one", LEASE)
    service.cluster.core.create_namespaced_resource_quota(
        service.namespace, {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    )
    service.cluster.core.create_namespaced_limit_range(
        service.namespace,
        {"metadata": {"name": "each"}, "spec": {"limits": [{"type": "Pod", "max": {"memory": "1Ti"}}]}},
    )
    wait_for(lambda: _is_counted(service), "the quota counts what is used", IN_FORCE_SECONDS)
    settings = ClusterSettings(service.namespace, service.kubeconfig())
    backend = KubernetesBackend(KINDS.values(), HUB, settings)
    works = set()
    try:
        scheduler = KubernetesScheduler(backend, KINDS)
        await _does(scheduler.observe(0.0))  # it begins to look
        await eventually(lambda: _is_settled(backend), "each watch is followed or refused", IN_FORCE_SECONDS)
        if await _does(scheduler.observe(0.0)):
            works.add("fleet")
        if await _does(backend.workspaces()):
            works.add("workspaces")
        if not (await backend.probe(LEASE, 1, ("x",), 15.0)).problem:
            works.add("probe")
        works |= await _rules(backend)
        if await _does(backend.end(LEASE)):
            works.add("end")
        if not any("outside namespace" in limit for limit in backend.limits):
            works.add("all namespaces")
    finally:
        await backend.close()
    return works


def _is_counted(service):
    status = service.cluster.core.read_namespaced_resource_quota("gpus", service.namespace).status
    return (status.used or {}).get("requests.nvidia.com/gpu") == "1"


async def _rules(backend):
    """Which of quota and limit are seen, within a moment."""
    for _ in range(30):
        room = backend.room()
        if room.quotas and room.limits:
            break
        await asyncio.sleep(0.1)
    return {name for name, seen in (("quota", room.quotas), ("limit", room.limits)) if seen}


async def _is_settled(backend):
    """Whether the cluster's answers to all that is watched are known: a watch is only asked for after its list."""
    view = backend._view
    seen = (view._nodes, view._pods, view._quotas, view._limits)
    return all(watch.answered.is_set() and (watch.refused or watch.lost_seconds == 0) for watch in seen)


async def _does(call):
    try:
        return bool(await call)
    except (Unavailable, AssertionError):
        return False


ALL = {"fleet", "workspaces", "probe", "quota", "limit", "end", "all namespaces"}


async def test_the_rights_suffice(service, gpus):
    service.grant()
    assert await what_works(service) == ALL
    for verb, resource in (("create", "pods/exec"), ("delete", "pods"), ("list", "secrets")):
        assert not service.may(verb, resource, "default"), "the hub's own namespace is another one"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "lost"),
    [
        pytest.param(("ClusterRole", "nodes", "list"), {"fleet"}, id="nodes list"),
        pytest.param(("ClusterRole", "nodes", "watch"), {"fleet"}, id="nodes watch"),
        pytest.param(("ClusterRole", "pods", "list"), {"all namespaces"}, id="pods list, of all"),
        pytest.param(("ClusterRole", "pods", "watch"), {"fleet", "workspaces"}, id="pods watch, of all"),
        pytest.param(("Role", "pods", "delete"), {"end"}, id="pods delete"),
        pytest.param(("Role", "pods/exec", "get"), {"probe"}, id="exec get"),
        pytest.param(("Role", "pods/exec", "create"), {"probe"}, id="exec create"),
        pytest.param(("Role", "resourcequotas", "list"), {"quota"}, id="quotas list"),
        pytest.param(("Role", "limitranges", "list"), {"limit"}, id="limits list"),
    ],
)
async def test_without_a_verb_something_stops_and_nothing_else(service, gpus, without, lost):
    service.grant(without)
    assert ALL - await what_works(service) == lost
