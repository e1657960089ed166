"""A pod that claims its GPUs (dynamic resource allocation)."""

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from kubespawner.objects import make_pod

from gpuspawner.core.errors import Conflict
from gpuspawner.spawner.kubernetes.manifests import (
    PodSettings,
    apply_changes,
    claim_of,
    find_contradiction,
    with_lease,
    with_owner,
)
from gpuspawner.spawner.kubernetes.pod_states import stage_of

SETTINGS = PodSettings(cpu_cores=8, memory_bytes=2**36, runtime_class="nvidia")
SPEC = {"devices": {"requests": [{"name": "h100", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}
ENVIRONMENT = {"GPUSPAWNER_LEASE_ID": "1e45e", "GPUSPAWNER_ATTEMPT": "2", "GPUSPAWNER_HUB_ID": "4ub"}
PATCH = {"environment": ENVIRONMENT, "pod": {"claim": SPEC, "spec": {}}}
NAMED = [{"name": "gpu", "resourceClaimName": "gpuspawner-m1"}]


@pytest.fixture
async def made():
    async with ApiClient(Configuration()) as api:
        model = make_pod(name="jupyter-alice", cmd=["x"], port=8888, image="lab:1", allow_privilege_escalation=False)
        yield api, model, api.sanitize_for_serialization(model)


async def test_the_server_has_the_claim_and_no_other_container(made):
    api, model, before = made
    pod = with_lease(before, PATCH, SETTINGS, "m1")
    (server,) = pod["spec"]["containers"]
    assert pod["spec"]["resourceClaims"] == NAMED
    assert server["resources"]["claims"] == [{"name": "gpu"}]
    assert set(server["resources"]["limits"]) == {"cpu", "memory"}
    assert pod["spec"]["runtimeClassName"] == "nvidia", "it has GPUs"
    assert find_contradiction(pod, PATCH, "m1") == ""
    assert api.sanitize_for_serialization(apply_changes(model, before, pod, "V1Pod")) == pod


async def test_the_claim_is_the_starts_own_and_goes_with_its_pod(made):
    claim = claim_of(PATCH, "m1")
    assert claim["spec"] == SPEC
    assert claim["metadata"]["name"] == "gpuspawner-m1"
    assert claim["metadata"]["labels"]["gpuspawner.io/lease"] == "1e45e"
    (owner,) = with_owner(claim, {"metadata": {"name": "jupyter-alice", "uid": "u"}})["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-alice", "uid": "u", "controller": True}
    assert claim_of({"environment": {}}, "m1") == {}


@pytest.mark.parametrize("claims", [[], [*NAMED, {"name": "more", "resourceClaimName": "mine"}]])
async def test_a_hook_that_changes_the_claim_is_refused(made, claims):
    pod = with_lease(made[2], PATCH, SETTINGS, "m1")
    pod["spec"]["resourceClaims"] = claims
    hook = "c.KubeSpawner.modify_pod_hook"
    assert find_contradiction(pod, PATCH, "m1") == (
        f"{hook} changes what the pod claims. GPUs come from the lease alone."
    )


async def test_a_claim_of_the_administrators_own_is_refused(made):
    pod = made[2]
    pod["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimName": "own"}]
    with pytest.raises(Conflict, match="resourceClaims gives devices that no lease counts"):
        with_lease(pod, PATCH, SETTINGS, "m1")


async def test_a_node_whose_driver_provides_no_device_is_reported(made):
    pod = {**made[2], "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
    event = {"reason": "FailedPrepareDynamicResources", "message": "the driver is not registered"}
    words = "Its node cannot give it its GPU yet: the driver is not registered. It keeps trying."
    assert stage_of(pod, [event], 3).words == words
    assert stage_of(pod, [event, {"reason": "Pulled", "message": ""}], 3).words != words
