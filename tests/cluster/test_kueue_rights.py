"""The service's rights on Kueue suffice, and each of them is needed."""

from dataclasses import replace

import pytest
from fake_kueue import is_true
from kueue_world import API, RESOURCE, World, apply, asks, installed
from lease_builders import NOW
from nodes import ROOT, wait_for
from test_rights import Service

from gpuspawner.backends.kubernetes import watches
from gpuspawner.core.leases.lease import Phase

pytestmark = pytest.mark.slow

MANIFEST = ROOT / "hub_config" / "kubernetes-kueue-rbac.yaml"
QUEUE = "guarded"
GROUP, VERSION = API.split("/")
WHEN = "2026-11-26T12:00:00Z"
SECONDS, LOST_SECONDS = 120.0, 6.0
"""In which what may work does, on a busy machine too, and after which what may not is taken to be lost."""
GRANTED, READY, PLACE, GONE = "granted", "told ready", "place", "gone"
ALL = {GRANTED, READY, PLACE, GONE}


@pytest.fixture(autouse=True)
def refusals_are_meant(monkeypatch):
    """Soon believed: the API server knew its roles long before."""
    monkeypatch.setattr(watches, "REFUSED_SECONDS", 1.0)


@pytest.fixture(scope="module")
def kueue(one_machine):
    with installed(one_machine) as kueue:
        flavors = [{"name": name, "resources": [{"name": RESOURCE, "nominalQuota": 2}]} for name in ("a100", "t4")]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": flavors}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": "of-t4", "onFlavors": ["t4"]}]},
        }
        apply(
            one_machine,
            {"kind": "WorkloadPriorityClass", "metadata": {"name": "usual"}, "value": 7},
            {"kind": "AdmissionCheck", "metadata": {"name": "of-t4"}, "spec": {"controllerName": "example.com/t4"}},
            {"kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": spec},
        )
        yield kueue


@pytest.fixture
def service(kueue, one_machine, tmp_path):
    with one_machine.namespace() as namespace:
        place = {"name": QUEUE, "namespace": namespace}
        apply(one_machine, {"kind": "LocalQueue", "metadata": place, "spec": {"clusterQueue": QUEUE}})
        service = Service(one_machine, namespace, tmp_path, MANIFEST)
        nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
        service.parts["ClusterRole"]["rules"].append(nodes)  # it also has that right
        yield service
        service.revoke()


async def what_works(service, lost=frozenset()):
    """Return the abilities of the service: be granted GPUs, report their use, report a position, and free the quota.

    For what is thought to be ``lost`` it waits less.
    """
    teams = {QUEUE: QUEUE}
    world = World(service.cluster, service.namespace, service.kubeconfig(), teams=teams, priority_class="usual")
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": WHEN}
    status = {"status": {"conditions": [active]}}
    world.objects.patch_cluster_custom_object_status(GROUP, VERSION, "admissionchecks", "of-t4", status)
    works, first = set(), asks("first", count=2, team=QUEUE)

    async def does(what, look):
        try:
            found = await world.until(look, what, seconds=LOST_SECONDS if what in lost else SECONDS)
        except AssertionError:
            return None
        works.add(what)
        return found

    try:
        await world.scheduler.observe(NOW)
        world.put(first)
        if grants := await does(GRANTED, lambda answer: answer.grants()):
            world.put(replace(first, phase=Phase.RUNNING, slots=grants[0].slots, running_at=NOW))
            await does(READY, lambda _: is_true(world.of(first), "PodsReady"))
            world.put(asks("second", 1, count=2, team=QUEUE))
            await does(PLACE, lambda answer: answer.places()["second"].number == 1)
            world.drop(first)
            await does(GONE, lambda _: not world.of(first))
    finally:
        await world.scheduler.close()
        await world.api.close()
        world.objects.delete_collection_namespaced_custom_object(GROUP, VERSION, service.namespace, "workloads")
        wait_for(lambda: not world.workloads(), "its quota is free for the next", SECONDS)
    return works


async def test_the_rights_suffice(service):
    service.grant()
    assert await what_works(service) == ALL


@pytest.mark.parametrize(
    ("without", "lost"),
    [
        pytest.param(("ClusterRole", "clusterqueues", "get"), ALL, id="clusterqueues get"),
        pytest.param(("ClusterRole", "resourceflavors", "get"), ALL, id="resourceflavors get"),
        pytest.param(("ClusterRole", "admissionchecks", "get"), ALL, id="admissionchecks get"),
        pytest.param(("ClusterRole", "workloadpriorityclasses", "get"), ALL, id="priority classes get"),
        pytest.param(("Role", "localqueues", "get"), ALL, id="localqueues get"),
        pytest.param(("Role", "workloads", "list"), ALL, id="workloads list"),
        pytest.param(("Role", "workloads", "watch"), ALL, id="workloads watch"),
        pytest.param(("Role", "workloads", "create"), ALL, id="workloads create"),
        pytest.param(("Role", "workloads", "update"), {READY}, id="workloads update"),
        pytest.param(("Role", "workloads", "delete"), {GONE}, id="workloads delete"),
        pytest.param(("Role", "workloads/status", "update"), {READY, GONE}, id="status update"),
        pytest.param(("Role", "localqueues/pendingworkloads", "get"), {PLACE}, id="places get"),
    ],
)
async def test_without_a_verb_something_stops_and_nothing_else(service, without, lost):
    service.grant(without)
    assert ALL - await what_works(service, lost) == lost
