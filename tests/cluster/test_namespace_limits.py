"""A namespace's quotas and limit ranges, which hub and service report before a pod is made; on a real cluster."""

import pytest
import requests
from kube_hub import KubeHub, eventually
from nodes import wait_for

pytestmark = pytest.mark.slow

QUOTA = {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "1", "limits.memory": "4Gi"}}}
LIMIT = {"metadata": {"name": "each"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}}
ADDS_GPUS = {"metadata": {"name": "gpus"}, "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]}}
"""The API server completes it: each container that names no GPU would get two."""
SCOPED = {
    "metadata": {"name": "scoped"},
    "spec": {
        "hard": {"pods": "1"},
        "scopeSelector": {"matchExpressions": [{"scopeName": "NotTerminating", "operator": "Exists"}]},
    },
}
"""Which pods it counts is for the API server to say: the service grants what it refuses then."""


VOLUMES = {"metadata": {"name": "volumes"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}}


def check(hub, user, **options):
    """Return the status and the words that a user gets before Start."""
    hub.add_user(user)
    token = hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]
    where, headers = f"{hub.url}/services/gpu/api/v1/check", {"Authorization": f"token {token}"}
    answer = requests.post(where, json=options, headers=headers, timeout=30)
    return answer.status_code, answer.json().get("sentence") or answer.text


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with one_machine.namespace() as namespace:
        one_machine.core.create_namespaced_resource_quota(namespace, QUOTA)
        one_machine.core.create_namespaced_limit_range(namespace, LIMIT)
        one_machine.core.create_namespaced_limit_range(namespace, ADDS_GPUS)
        extra = 'c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]'
        with KubeHub(
            tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra, wait=300
        ) as hub:
            yield hub


def test_promise_8_what_no_limit_ever_lets_through_is_refused_with_both_quantities(hub):
    limit = "You asked for 2 GiB memory. Allowed: at most 1 GiB memory in one workspace, by the cluster's limit each."
    status, words = check(hub, "large", template="cpu", memory="2GiB")
    assert (status, limit in words) == (403, True), words
    hub.begin("large", template="cpu", memory="2GiB")
    told = hub.failure("large")
    assert limit in told
    assert "Ask for 1 GiB memory" in told
    assert hub.pod("large") is None


def test_a_workspace_without_a_gpu_gets_none_where_a_limit_range_adds_gpus(hub):
    limits = hub.cluster.core.read_namespaced_limit_range("gpus", hub.namespace).spec.limits
    assert limits[0].default == {"nvidia.com/gpu": "2"}
    hub.add_user("plain")
    hub.begin("plain", template="cpu")
    hub.until("plain", "running", 300)
    pod = hub.pod("plain")
    assert {(one.name, one.resources.limits["nvidia.com/gpu"]) for one in pod.spec.containers} == {("notebook", "0")}
    hub.stop("plain")
    hub.until_ended("plain", "stopped", 60)


def test_promise_6_a_quota_that_is_full_is_a_queue_and_not_a_failure(hub):
    hub.add_user("first", "second")
    hub.begin("first", template="cpu")
    hub.until("first", "running", 300)
    full = "The cluster's quota team leaves 0 workspaces of 1 workspace, and this needs 1 workspace."
    eventually(lambda: full in check(hub, "second", template="cpu")[1], 60, "it is said before Start")
    hub.begin("second", template="cpu")
    queue = eventually(lambda: hub.lease("second")["queue"], 60, "second waits")
    assert full in queue["sentence"]
    assert hub.pod("second") is None
    hub.stop("first")
    hub.until("second", "running", 300)
    hub.stop("second")
    hub.until_ended("second", "stopped", 60)


def test_a_quota_of_volumes_that_is_full_is_told_before_the_start_to_a_user_without_a_volume(hub):
    core = hub.cluster.core
    core.create_namespaced_resource_quota(hub.namespace, VOLUMES)
    try:
        words = "The cluster's quota volumes allows no further volume: 0 of 0 are in use."
        told = lambda: check(hub, "new", template="cpu")  # noqa: E731
        eventually(lambda: words in told()[1], 60, "it is said before Start")
        assert words not in check(hub, "first", template="cpu")[1], "this user has started before"
    finally:
        core.delete_namespaced_resource_quota("volumes", hub.namespace)


def test_promise_6_a_full_quota_that_only_the_api_server_counts_is_a_queue_too(hub):
    core = hub.cluster.core
    core.delete_namespaced_resource_quota("team", hub.namespace)
    core.create_namespaced_resource_quota(hub.namespace, SCOPED)
    used = lambda: core.read_namespaced_resource_quota("scoped", hub.namespace).status.used  # noqa: E731
    wait_for(lambda: used() == {"pods": "0"}, "the quota is counted", 300)
    hub.add_user("third", "fourth")
    hub.begin("third", template="cpu")
    hub.until("third", "running", 300)
    hub.begin("fourth", template="cpu")
    lease = eventually(lambda: hub.lease("fourth"), 60, "fourth is asked for")["id"]
    (told,) = eventually(lambda: hub.audit(lease, "requeued"), 300, "fourth is sent back")[:1]
    assert told["why"] == "The cluster's quota scoped leaves no room: 1 pods asked, 1 pods of 1 pods in use."
    hub.stop("third")
    hub.until("fourth", "running", 300)
    hub.stop("fourth")
    hub.until_ended("fourth", "stopped", 60)
