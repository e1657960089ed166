"""GPUSpawner on a real cluster: a pod from the hub's API to its end."""

import pytest
from kube_hub import KubeHub, eventually


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with one_machine.namespace(**restricted) as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace)
        try:
            yield hub.start()
        finally:
            hub.close()


def test_a_workspace_is_a_pod_that_passes_the_restricted_standard_and_is_gone_after_its_stop(hub):
    hub.add_user("alice")
    assert hub.begin("alice", template="cpu").status_code in {201, 202}
    eventually(lambda: hub.server("alice")["ready"], 90, "alice's server is ready")
    pod = hub.pod("alice")
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.termination_grace_period_seconds == 3
    assert pod.spec.containers[0].resources.limits == {"cpu": "200m", "memory": "512Mi"}
    code, printed, _ = hub.cluster.run_in(hub.namespace, pod.metadata.name, "sh", "-c", "df -k /dev/shm | tail -1; env")
    assert code == 0
    assert printed.split()[1] == str(256 * 1024)
    assert "NVIDIA_VISIBLE_DEVICES=void" in printed.splitlines()
    assert hub.stop("alice").status_code in {202, 204}
    eventually(lambda: hub.pod("alice") is None, 30, "alice's pod is gone")
