"""Custom resources of a cluster: the policy that protects requests, and policies of the whole cluster."""

import copy
from contextlib import asynccontextmanager

import pytest
from harness.waiting import until
from hypothesis import given
from hypothesis import strategies as st
from kube_api import merged

from gpuspawner.backends.custom_resources.base import EntryRefused
from gpuspawner.backends.custom_resources.cluster import CustomResources, _is_as_strict, merge_patch
from gpuspawner.backends.custom_resources.managers import tool_of
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.resources.definitions import admission
from gpuspawner.core.errors import Conflict

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


async def seen(resources, name, holds=lambda one: one is not None):
    """The entry of that name, once it is seen so."""

    async def found():
        return next((one for one in await resources.entries() if one.name == name), None)

    async def is_so():
        return holds(await found())

    await until(is_so)
    return await found()


async def test_entries_are_created_changed_and_deleted_with_their_version_as_guard(api, tmp_path):
    api.objects.clear()
    async with resources_of(api, tmp_path, "jhub") as jhub:
        assert not await jhub.may_write_entries()
        api.rights.add(("patch", "devgpuvmtemplates"))
        assert await jhub.may_write_entries()

        async def write(spec, before, *, dry_run=False):
            return await jhub.write_entry("templates", "big", spec, before, dry_run=dry_run)

        spec = {"gpus": {"a100": 2, "t4": 1}, "title": "Big"}
        await write(spec, None, dry_run=True)
        assert await jhub.entries() == ()
        made = await write(spec, None)
        assert (made.spec, made.generation) == (spec, 1)
        with pytest.raises(Conflict, match="Nothing was saved"):
            await write(spec, None)
        first = await seen(jhub, "big")
        changed = await write({"gpus": {"a100": 4}, "opens": ["lab"]}, first)
        assert (changed.spec, changed.generation) == ({"gpus": {"a100": 4}, "opens": ["lab"]}, 2)
        with pytest.raises(Conflict):
            await write(spec, first)
        with pytest.raises(Conflict):
            await write(None, first)
        second = await seen(jhub, "big", lambda one: one.generation == 2)
        with pytest.raises(EntryRefused, match="unknown field"):
            await write({"refuse": True}, second, dry_run=True)
        await write(None, second, dry_run=True)
        assert await seen(jhub, "big")
        await write(None, second)
        await seen(jhub, "big", lambda one: one is None)
        with pytest.raises(Conflict):
            await write(spec, second)


VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
SPECS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(SPECS, SPECS)
def test_a_merge_patch_makes_one_spec_of_another(before, after):
    assert merged(before, merge_patch(before, after)) == after


def written_by(manager, field="f:spec"):
    return {"managedFields": [{"manager": manager, "fieldsV1": {field: {}}}]}


@pytest.mark.parametrize(
    ("metadata", "tool"),
    [
        pytest.param({"annotations": {"argocd.argoproj.io/tracking-id": "a"}}, "Argo CD", id="argo-annotation"),
        pytest.param({"labels": {"kustomize.toolkit.fluxcd.io/name": "a"}}, "Flux", id="flux-label"),
        pytest.param({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "Helm", id="helm-label"),
        pytest.param(written_by("argocd-controller"), "Argo CD", id="argo-field-manager"),
        pytest.param(written_by("helm", "f:status"), "", id="not-its-spec"),
        pytest.param(written_by("kubectl-client-side-apply"), "", id="kubectl"),
        pytest.param({}, "", id="no-marks"),
    ],
)
def test_the_tool_that_manages_an_entry_is_known_by_its_marks(metadata, tool):
    assert tool_of(metadata) == tool
