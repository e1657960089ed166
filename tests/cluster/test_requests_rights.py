"""The chart's rights for custom resources suffice for all that the service does with them."""

import asyncio

import pytest
import yaml
from custom import Typed, installed, manifest
from nodes import ROOT, wait_for

from gpuspawner.backends.kubernetes.resources import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.resources.definitions import API_GROUP, POLICY, REQUESTS

OWN = ("service-rights", "custom-resources")


@pytest.fixture
def service(one_machine, namespace, tmp_path):
    """The custom resources as the chart's service account sees them, and kubectl beside it."""
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


async def test_all_that_the_service_does_is_granted_and_a_changed_policy_is_seen(service):
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
        assert "is of another version" in await resources.refuses()
    finally:
        await resources.close()


async def until(resources, holds, looks=600):
    """Wait until what is seen is so."""
    for _ in range(looks):
        if holds(await resources.requests()):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(await resources.requests())
