"""Which workspace keeps another from starting, by a volume that is mounted once: read, told, and waited for."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from harness.waiting import until
from kubernetes_asyncio.client import ApiException
from test_kube_start import created, manifest, seen, start  # noqa: F401 - a fixture

from gpuspawner.core.rules import Rules
from gpuspawner.spawner.kubernetes import volumes as waits
from gpuspawner.spawner.kubernetes.volumes import (
    Holder,
    claims_of,
    describe_holder,
    holder_of,
    is_attached_elsewhere,
    is_for_one_pod,
)
from gpuspawner.spawner.waiting import StartEnded

MADE = "2026-11-26T10:02:00Z"
MULTI_ATTACH = {
    "reason": "FailedAttachVolume",
    "message": 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) jupyter-alice--train',
}


def a_pod(name, claim="home-alice", user="alice", server="", lease="l", made=MADE, phase="Running", node="node-7"):
    return {
        "metadata": {
            "namespace": "hub",
            "name": name,
            "creationTimestamp": made,
            "labels": {"gpuspawner.io/lease": lease},
            "annotations": {"hub.jupyter.org/username": user, "hub.jupyter.org/servername": server},
        },
        "spec": {"nodeName": node, "volumes": [{"name": "h", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": phase},
    }


def test_the_pod_that_mounts_the_claim_is_found_the_oldest_first():
    own = a_pod("jupyter-alice")
    pods = [
        own,
        a_pod("over", phase="Succeeded"),
        a_pod("others", claim="data"),
        a_pod("later", server="late", made="2026-11-26T11:00:00Z"),
        a_pod("train", server="train"),
    ]
    assert claims_of(own) == {"home-alice"}
    found = holder_of(own, {"home-alice", "data"}, pods)
    assert found == Holder("home-alice", "alice", "train", "l", 1795687320.0, "node-7")
    assert holder_of(own, (), pods) is None
    assert holder_of(own, {"home-alice"}, pods[:3]) is None
    words = "Your home is mounted by one workspace at a time, and your workspace train has it since 10:02, on node-7."
    assert describe_holder(found, "alice", "10:02") == words
    assert "and another pod has it since" in describe_holder(found, "bob", "10:02"), "whose it is is not for others"


@pytest.mark.parametrize(
    ("modes", "alone"),
    [(["ReadWriteOncePod"], True), (["ReadWriteOnce"], False), (["ReadWriteMany"], False), ([], False)],
)
def test_the_access_mode_of_a_claim_tells_whether_one_pod_may_mount_it(modes, alone):
    assert is_for_one_pod({"spec": {"accessModes": modes}}) is alone


def test_the_last_event_tells_whether_a_volume_is_attached_elsewhere():
    assert is_attached_elsewhere([MULTI_ATTACH])
    assert not is_attached_elsewhere([MULTI_ATTACH, {"reason": "Pulling", "message": "Pulling image"}])
    assert not is_attached_elsewhere([])


@pytest.fixture
def alices(start):  # noqa: F811
    """A start of alice's whose home one pod alone may mount."""
    start.user = SimpleNamespace(name="alice")
    start.gpu_service_prefix = "/services/gpu/"
    start.gpu_read_catalog = lambda: SimpleNamespace(clusters={}, templates={}, scheduler=None, rules=Rules())
    start.modes = ["ReadWriteOncePod"]

    async def read(name, namespace):
        if not start.modes:
            raise ApiException(status=403)
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"accessModes": start.modes}}

    start.read_namespaced_persistent_volume_claim = read
    start.api_client.sanitize_for_serialization = lambda given: given if isinstance(given, dict) else plain(given)
    plain = type(start.api_client).sanitize_for_serialization.__get__(start.api_client)
    return start


@pytest.fixture
def with_home(monkeypatch):
    home = {"name": "h", "persistentVolumeClaim": {"claimName": "home-alice"}}
    monkeypatch.setitem(manifest.__globals__, "manifest", lambda mark="": manifest(mark, volumes=[home]))


def blocked_by_train(start):  # noqa: F811
    start.pod_reflector.pods["hub/train"] = a_pod("train", server="train")


async def test_no_pod_is_made_while_another_workspace_has_the_home_and_the_start_then_continues(alices, with_home):
    blocked_by_train(alices)
    task = asyncio.create_task(created(alices))
    await seen(alices, "your workspace train has it since")
    assert alices.made == [], "it would wait in the cluster without end"
    step = alices._gpu_steps.shown[-1]
    assert step["message"].endswith("Stop that one, and this start goes on by itself once it has ended.")
    assert '<a href="/services/gpu/workspaces/l">Its page, to stop it</a>' in step["html_message"]
    assert step["stop"] == "l", "which the page offers to stop"
    del alices.pod_reflector.pods["hub/train"]
    assert await task == "http://10.0.0.1:8888"


async def test_an_unreleased_home_ends_the_start_and_names_both_ways_to_continue(alices, with_home, monkeypatch):
    monkeypatch.setattr(waits, "BLOCKED_SECONDS", 0.05)
    blocked_by_train(alices)
    with pytest.raises(StartEnded, match="by gpuspawner stop train: then start this again") as ended:
        await created(alices)
    assert "/services/gpu/workspaces/l" in ended.value.jupyterhub_html_message
    assert alices.made == []


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], []], ids=["many of a node", "not to be seen"])
async def test_a_home_that_several_pods_may_mount_blocks_no_start(alices, with_home, modes):
    alices.modes = modes
    blocked_by_train(alices)
    assert await created(alices) == "http://10.0.0.1:8888"


async def test_a_volume_on_another_node_says_whose_workspace_has_it(alices, with_home):
    alices.modes = ["ReadWriteOnce"]
    blocked_by_train(alices)
    task = asyncio.create_task(alices._gpu_create())
    await until(lambda: alices.made)
    alices.shows("Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    alices._gpu_own_pod()["spec"]["volumes"] = a_pod("x")["spec"]["volumes"]
    alices._gpu_own_pod()["metadata"] |= {"namespace": "hub", "name": "jupyter-alice"}
    alices.event_reflector.resources["e"] = {**MULTI_ATTACH, "involvedObject": {"uid": "u"}, "lastTimestamp": MADE}
    await seen(alices, "your workspace train has it since")
    task.cancel()
    await asyncio.wait({task})
    assert time.monotonic() - alices._gpu_attempt.pod.made_at < 60
