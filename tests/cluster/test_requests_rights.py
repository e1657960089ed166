"""The chart's rights for custom resources suffice for all that the service does with them."""

import pytest
import yaml
from custom import Typed, installed, manifest
from harness import waiting
from nodes import ROOT, wait_for

from gpuspawner.backends.custom_resources.cluster import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.resources.definitions import API_GROUP, KINDS, POLICY, REQUESTS
from gpuspawner.catalog.resources.merging import MergeResult
from gpuspawner.service.custom_resources.entries import status_of

pytestmark = pytest.mark.slow

OWN = ("service-rights", "custom-resources")


@pytest.fixture
def service(one_machine, namespace, tmp_path):
    """The custom resources with the rights of the chart's service account, and an administrator's kubectl."""
    kubectl = Typed(one_machine, namespace)
    with installed(one_machine, tmp_path / "helm") as helm:
        catalog = ROOT / "hub_config" / "kubernetes-catalog.yaml"
        shown = [f"--show-only=templates/{name}.yaml" for name in OWN]
        told = [f"--namespace={namespace}", f"--set-file=catalog={catalog}", "--set=customResources.enabled=true"]
        rendered = helm("template", "gpuspawner", ROOT / "helm" / "gpuspawner", *told, *shown)
        kubectl("apply", "--filename=-", given=rendered)
        config = yaml.safe_load(one_machine.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": kubectl("create", "token", "gpuspawner").strip()}
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield ClusterSettings(namespace, kubeconfig=str(path), custom_resources=namespace), kubectl
        kubectl("delete", "--ignore-not-found", "--filename=-", given=rendered)


async def seen(resources, name):
    """The resource of that name, once it is seen as it is now."""
    return next((one for one in await resources.requests() if one.name == name), None)


async def test_all_calls_of_the_service_are_permitted_and_a_changed_policy_is_seen(service):
    settings, kubectl = service
    account = f"system:serviceaccount:{settings.namespace}:gpuspawner"
    wait_for(lambda: kubectl.run("auth", "can-i", "list", REQUESTS, f"--as={account}").returncode == 0, "rights hold")
    resources = CustomResources(settings)
    try:
        assert await resources.refuses() == ""
        assert await resources.going() is False
        await resources.make("ws-1", "a" * 32, {"user": "ada", "server": ""})
        kubectl("create", "--filename=-", given=manifest("DevGPUVMRequest", {"user": "bob"}, "bobs"))
        await until(resources, lambda found: {one.name for one in found} == {"ws-1", "bobs"})
        bobs = await seen(resources, "bobs")
        await resources.hold(bobs)
        await until(resources, lambda found: all(one.held for one in found))
        await resources.tell(await seen(resources, "bobs"), {"phase": "Queued", "observedGeneration": 1})
        await until(resources, lambda found: any(one.phase == "Queued" for one in found))
        for one in await resources.requests():
            await resources.delete(one)
        await until(resources, lambda found: all(one.deleting for one in found))
        for one in await resources.requests():
            await resources.release(one)
        await until(resources, lambda found: not found)
        binding = f"validatingadmissionpolicybinding/{POLICY}"
        kubectl("patch", binding, "--type=merge", '--patch={"spec":{"validationActions":["Audit"]}}')
        assert "was changed, so no request is accepted" in await resources.refuses()
        kubectl("annotate", f"crd/{REQUESTS}.{API_GROUP}", "--overwrite", f"{API_GROUP}/schema=older")
        assert "has another version" in await resources.refuses()
    finally:
        await resources.close()


async def test_entries_of_the_catalog_are_seen_and_told_and_a_definition_that_goes_is_noticed(service):
    settings, kubectl = service
    spec = {"gpus": {"a100": "1-2"}, "bounds": {"lifetime": "1h-8h"}}
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMTemplate", spec, "big"))
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMLifecyclePolicy", {"mode": "warn"}, "night"))
    quota = {"everybody": True, "gpus": {"hard": 9}}
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMQuota", quota, "all"))
    kubectl("apply", "--filename=-", "--namespace=default", given=manifest("DevGPUVMQuota", quota, "elsewhere"))
    account = f"system:serviceaccount:{settings.namespace}:gpuspawner"
    wait_for(lambda: kubectl.run("auth", "can-i", "list", KINDS[3].plural, f"--as={account}").returncode == 0, "rights")
    resources = CustomResources(settings)
    try:
        entries = await resources.entries()
        assert len(entries) == 3, "what is in another namespace counts for nothing"
        found = {one.section: one for one in entries}
        assert {one: found[one].name for one in found} == {"templates": "big", "policies": "night", "quotas": "all"}
        assert (found["templates"].spec, found["quotas"].spec) == (spec, quota)
        assert await resources.going(entries=True) is False
        judged = MergeResult({found["quotas"].uid: "no"}, {one.uid: one.spec for one in found.values()})
        for one in found.values():
            await resources.tell(one, status_of(one, judged, 0.0))
        path = "--output=jsonpath={.status.phase} {.status.inForce.gpus} {.status.message}"
        assert kubectl("get", "gvmt", "big", path) == 'InForce {"a100":"1-2"} It is part of the catalog.'
        assert kubectl("get", "gvmq", "all", path) == 'Refused {"hard":9} The one before stays in force. no'
        kubectl("delete", "crd", f"{KINDS[3].plural}.{API_GROUP}", "--timeout=60s")
        assert await resources.going(entries=True) is True
    finally:
        await resources.close()


async def until(resources, holds):
    """Wait until the requests are seen so."""

    async def is_so():
        return holds(await resources.requests())

    await waiting.until(is_so)
