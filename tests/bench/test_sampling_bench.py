"""``bench/sampling`` counts what it says, on a few workspaces of an API server of the tests' own."""

import exec_load
import pytest
from cluster_objects import a_workspace
from kube_api import KubeApi, ends_with

from gpuspawner.backends.fake import probe_text


@pytest.fixture
async def backend(tmp_path):
    api = KubeApi()
    await api.start()
    for number in range(6):
        pod = a_workspace(f"jupyter-{number}", f"{number:06}", hub=exec_load.HUB)
        pod["metadata"]["namespace"] = exec_load.NAMESPACE
        api.put(pod)
        said = probe_text({"GPU-0": 50}, clock_seconds=100.0 + number).encode()
        api.execs[f"jupyter-{number}"] = ends_with(0, said) if number < 5 else ends_with(1)
    backend = exec_load.Counted(api.kubeconfig(tmp_path))
    assert len(await backend.workspaces()) == 6
    yield backend
    await backend.close()
    await api.stop()


async def test_failures_are_distinguished_from_successes(backend):
    found = await exec_load.alone(backend, count=6, seconds=60.0 / 6)
    assert (found["well"], found["failed"]) == (1, 0), "a sixth of a period"
    found = await exec_load.alone(backend, count=600, seconds=0.6)
    assert (found["well"], found["failed"]) == (5, 1)
    assert found["problems"][0].startswith("the probe failed with exit code 1")
    assert found["memory_mib"] > 1
