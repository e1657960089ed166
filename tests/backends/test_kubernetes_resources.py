"""Custom resources of a cluster: the policy that protects requests, and policies of the whole cluster."""

import copy
from contextlib import asynccontextmanager

import pytest
from harness.waiting import until

from gpuspawner.backends.custom_resources.cluster import CustomResources, _is_as_strict
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.resources.definitions import admission

POLICY, BINDING = (one["spec"] for one in admission())


def as_there(**rule):
    """The policy as the API server has it, with what it fills in, and one rule changed."""
    there = copy.deepcopy(POLICY)
    there["matchConstraints"] |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    there["matchConstraints"]["resourceRules"][0] |= {"scope": "*", **rule}
    return there


def test_defaults_of_the_api_server_keep_a_policy_strict():
    assert _is_as_strict(as_there(), POLICY)
    assert _is_as_strict({**BINDING}, BINDING)


@pytest.mark.parametrize("rule", [{"resourceNames": ["train"]}, {"scope": "Cluster"}, {"operations": ["CREATE"]}])
def test_a_policy_for_some_requests_alone_is_not_as_strict(rule):
    assert not _is_as_strict(as_there(**rule), POLICY)


def a_policy(kind, name, namespace=None):
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    metadata |= {"namespace": namespace} if namespace else {}
    return {"apiVersion": "gpuspawner.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": {"mode": "warn"}}


@asynccontextmanager
async def resources_of(api, folder, namespace):
    """The custom resources as the service of a namespace sees them."""
    (folder / namespace).mkdir()
    found = CustomResources(ClusterSettings(namespace, api.kubeconfig(folder / namespace), custom_resources=namespace))
    yield found
    await found.close()


async def test_a_policy_of_the_cluster_applies_to_each_hub_and_has_a_status_for_each(api, tmp_path):
    api.objects.clear()
    api.put(a_policy("DevGPUVMClusterLifecyclePolicy", "night"))
    api.put(a_policy("DevGPUVMLifecyclePolicy", "day", "jhub"))
    async with resources_of(api, tmp_path, "jhub") as jhub, resources_of(api, tmp_path, "lab") as lab:
        assert [(one.section, one.name, one.cluster_wide) for one in await jhub.entries()] == [
            ("policies", "day", False),
            ("policies", "night", True),
        ]
        (night,) = await lab.entries()
        await lab.tell(night, {"phase": "Refused"})
        await jhub.tell(night, {"phase": "InForce"})

        async def phases():
            return [next(x for x in await one.entries() if x.cluster_wide).phase for one in (jhub, lab)]

        async def both():
            return await phases() == ["InForce", "Refused"]

        await until(both)
    managers = [query["fieldManager"] for verb, path, query in api.asked if path.endswith("night/status")]
    assert managers == ["gpuspawner-lab", "gpuspawner-jhub"], "no hub takes away what another one wrote"
