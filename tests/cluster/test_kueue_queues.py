"""Queues of the real Kueue with admission checks, those that are refused, and pods that it holds back itself."""

import json
from dataclasses import replace

import pytest
from kueue_world import API, HUB, RESOURCE, a_world, apply, asks, installed

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.cli import main
from gpuspawner.core.leases.lease import Phase
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.kueue.cluster import KueueCluster
from tools.cluster.kueue import MANAGED

pytestmark = pytest.mark.slow

GROUP, VERSION = API.split("/")
WHEN = "2026-11-26T12:00:00Z"
CHECKS = {"nodes": "example.com/nodes", "far": "kueue.x-k8s.io/multikueue"}
NOBODY = ["--hub", "http://127.0.0.1:9/hub/api", "--service", "http://127.0.0.1:9"]
CATALOG = """
version: 1
gpus: {a100: {match: NVIDIA-A100*, memory: 80GiB}}
templates: {lab: {gpus: {a100: 1}}}
scheduler: {kueue: {queue: ours, users: {ada: checked}}}
"""


def a_cluster_queue(name, **spec):
    quota = {"name": "a100", "resources": [{"name": RESOURCE, "nominalQuota": 2}]}
    groups = [{"coveredResources": [RESOURCE], "flavors": [quota]}]
    return {
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
    }


@pytest.fixture(scope="module")
def kueue(one_machine):
    with installed(one_machine) as kueue:
        apply(
            one_machine,
            *(
                {"kind": "AdmissionCheck", "metadata": {"name": name}, "spec": {"controllerName": controller}}
                for name, controller in CHECKS.items()
            ),
            *(
                a_cluster_queue(queue, admissionChecksStrategy={"admissionChecks": [{"name": check}]})
                for queue, check in (("checked", "nodes"), ("far", "far"))
            ),
            a_cluster_queue("moves", concurrentAdmissionPolicy={"migration": {"mode": "TryPreferredFlavors"}}),
        )
        yield kueue


@pytest.fixture
async def world(kueue, one_machine):
    with one_machine.namespace() as namespace:
        async with a_world(one_machine, namespace, ("checked", "far", "moves")) as world:
            active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": WHEN}
            world.objects.patch_cluster_custom_object_status(
                GROUP, VERSION, "admissionchecks", "nodes", {"status": {"conditions": [active]}}
            )
            yield world


async def test_it_waits_for_the_checks_of_its_queue_and_its_pod_gets_what_they_say(world):
    lease = asks("waits", team="checked")
    world.put(lease)

    def reserved(answer):
        assert not answer.grants(), "quota that is set aside is no admission"
        return "It waits for nodes." in answer.places()["waits"].says

    await world.until(reserved, "its quota is set aside, and the check has not answered")
    update = {
        "name": "main",
        "nodeSelector": {"pool": "p"},
        "labels": {"l": "v"},
        "annotations": {"provisioned": "yes"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
    }
    ready = {"name": "nodes", "state": "Ready", "message": "", "lastTransitionTime": WHEN, "podSetUpdates": [update]}
    name = world.of(lease)["metadata"]["name"]
    world.objects.patch_namespaced_custom_object_status(
        GROUP, VERSION, world.namespace, "workloads", name, {"status": {"admissionChecks": [ready]}}
    )
    (grant,) = await world.until(lambda answer: answer.grants(), "it is admitted")
    reserved = replace(lease, phase=Phase.RESERVED, slots=grant.slots)
    beside = world.scheduler.patch(reserved)["pod"]["beside"]
    assert beside == {
        "nodeSelector": {"product": "a100", "pool": "p"},
        "tolerations": update["tolerations"],
        "labels": {"l": "v"},
        "annotations": {"provisioned": "yes"},
    }


async def test_queues_that_send_work_elsewhere_or_move_it_are_refused_with_the_reason(world):
    world.put(asks("far", team="far"), asks("moves", 1, team="moves"))
    refused = await world.until(lambda answer: len(answer.refused) == 2 and answer.refused, "both are refused")
    why = {one.claim.id: one.why for one in refused}
    assert "sends its work to other clusters (MultiKueue)" in why["far"]
    assert "moves running work to other GPUs (ConcurrentAdmission)" in why["moves"]
    assert not world.workloads()


def examined(cluster, namespace, tmp_path, capsys):
    """Return doctor's findings on Kueue, by check."""
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(CATALOG)
    where = ["--kubernetes", "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace]
    main(["server", "doctor", "--json", *NOBODY, *where, "--catalog", str(catalog)])
    return {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


async def test_a_namespace_whose_pods_it_holds_back_is_refused_at_start(world, one_machine):
    with one_machine.namespace(**MANAGED) as namespace:
        settings = ClusterSettings(namespace, str(one_machine.kubeconfig))
        api = Api(settings)
        try:
            with pytest.raises(UnusableScheduler, match=f"Leave {namespace} out of managedJobsNamespaceSelector"):
                await KueueCluster(api, settings, namespace, HUB).connect()
        finally:
            await api.close()


def test_doctor_finds_all_well_and_then_a_namespace_that_is_held_back(kueue, one_machine, tmp_path, capsys):
    for managed in (False, True):
        with one_machine.namespace(**(MANAGED if managed else {})) as namespace:
            for name in ("ours", "checked"):
                place = {"name": name, "namespace": namespace}
                apply(one_machine, {"kind": "LocalQueue", "metadata": place, "spec": {"clusterQueue": name}})
            found = examined(one_machine, namespace, tmp_path, capsys)
            states = {check: found[check]["state"] for check in ("Kueue", "Kueue's rights", "queue ours", "places")}
            assert set(states.values()) == {"good"}, found
            assert "0.19 or newer" in found["Kueue"]["words"]
            assert found["pods"]["state"] == ("bad" if managed else "good"), found
            if managed:
                assert f"Leave {namespace} out of managedJobsNamespaceSelector" in found["pods"]["remedy"]
