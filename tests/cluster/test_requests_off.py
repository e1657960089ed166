"""Custom resources taken from a release by an upgrade alone: requests can be deleted after it."""

import json

import pytest
from chart_release import Release
from custom import Typed, installed, manifest

from gpuspawner.backends.custom_resources.cluster import FINALIZER

pytestmark = pytest.mark.slow


@pytest.fixture
def release(one_machine, tmp_path):
    """One whose service waits for a hub: it holds no request, and lets none go."""
    with (
        installed(one_machine, tmp_path / "crds"),
        one_machine.namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}) as namespace,
    ):
        release = Release(one_machine, namespace, tmp_path)
        release.write("http://hub:8081")
        try:
            yield release
        finally:
            release.close()


def test_an_upgrade_without_custom_resources_locks_no_request(release, one_machine):
    def run(action, *, enabled):
        release.values["customResources"] = {"enabled": enabled}
        done = release.run(action, "--wait=hookOnly")  # the last one holds
        assert done.returncode == 0, done.stdout + done.stderr

    run("install", enabled=True)
    kubectl = Typed(one_machine, release.namespace)
    held = json.loads(manifest("DevGPUVMRequest", {"user": "ada"}, "train"))
    held["metadata"]["finalizers"] = [FINALIZER]
    kubectl("create", "--filename=-", given=json.dumps(held))
    run("upgrade", enabled=True)
    assert "finalizers" in json.loads(kubectl("get", "gvm", "train", "--output=json"))["metadata"]
    run("upgrade", enabled=False)
    left = json.loads(kubectl("get", "gvm", "train", "--output=json"))
    assert "finalizers" not in left["metadata"], "it stays, and nothing keeps it"
    kubectl("delete", "gvm", "train", "--timeout=20s")
    assert kubectl("get", "serviceaccounts,roles,jobs", "--output=name").count("finalizers") == 0
