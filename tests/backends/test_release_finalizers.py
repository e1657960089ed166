"""`gpuspawner kube crd --release-finalizers` on an API server of the tests: what keeps requests is taken away, once."""

import asyncio
import contextlib

import pytest
from kube_api import KubeApi

from gpuspawner.backends.custom_resources.cluster import FINALIZER
from gpuspawner.cli.kube import objects as finalizers
from gpuspawner.cli.main import main

REQUESTS = "/apis/gpuspawner.io/v1alpha1/namespaces/jhub/devgpuvmrequests"


@pytest.fixture
async def api(monkeypatch):
    monkeypatch.setattr(finalizers, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(finalizers, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(finalizers, "MOST_LOOKS", 5)
    api = KubeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
def typed(api, tmp_path):
    """Run the command in the namespace jhub; return its exit code."""

    async def run(*more):
        given = ["kube", "crd", "--release-finalizers", "--namespace=jhub", f"--kubeconfig={api.kubeconfig(tmp_path)}"]
        return await asyncio.to_thread(main, [*given, *more])

    return run


def a_request(name, *others, namespace="jhub", going=False):
    metadata = {"name": name, "uid": f"uid-{namespace}-{name}", "namespace": namespace}
    metadata |= {"creationTimestamp": "2026-11-26T08:00:00Z", "finalizers": [FINALIZER, *others]}
    metadata |= {"deletionTimestamp": "2026-11-26T09:00:00Z"} if going else {}
    return {"kind": "DevGPUVMRequest", "metadata": metadata, "spec": {"user": "ada"}}


def finalizers_in(api, namespace="jhub"):
    listed = [one["metadata"] for one in api.objects["/apis/gpuspawner.io/v1alpha1/devgpuvmrequests"].values()]
    return {one["name"]: one["finalizers"] for one in listed if one["namespace"] == namespace}


async def test_it_prints_its_plan_and_carries_it_out_on_request(api, typed, capsys):
    many = [f"one-{number}" for number in range(260)]  # more than are listed at once
    for name in many:
        api.put(a_request(name))
    api.put(a_request("others", "example.org/backup"))
    api.put(a_request("gone", going=True))
    api.put(a_request("elsewhere", namespace="lab"))
    assert await typed() == 0
    said = capsys.readouterr().out
    assert said.startswith("262 DevGPUVMRequests in jhub are kept until the workspace has ended, by the finalizer")
    assert "With --yes it is removed, and no workspace stops." in said
    assert {verb for verb, *_ in api.asked} == {"get"}
    assert await typed("--yes") == 0
    assert capsys.readouterr().out == "262 DevGPUVMRequests in jhub are released. No workspace was stopped.\n"
    assert finalizers_in(api) == {**{name: [] for name in many}, "others": ["example.org/backup"]}
    assert finalizers_in(api, "lab") == {"elsewhere": [FINALIZER]}
    assert {verb for verb, *_ in api.asked} == {"get", "patch"}, "nothing is deleted, and no workspace touched"


async def test_a_running_service_is_reported(api, typed, capsys):
    api.put(a_request("train"))

    async def held_again():
        while True:
            if finalizers_in(api) == {"train": []}:
                api.put(a_request("train"))
            await asyncio.sleep(0.05)

    service = asyncio.create_task(held_again())
    assert await typed("--yes") == 2
    service.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await service
    assert capsys.readouterr().err.startswith("They are held again: a service with custom resources is running.")


async def test_without_the_kind_nothing_is_done(api, typed, capsys, monkeypatch):
    monkeypatch.setattr(api, "_list", lambda *_: answered(api, 404))
    assert await typed("--yes") == 0
    assert capsys.readouterr().out.startswith("0 DevGPUVMRequests in jhub are released")


async def test_a_missing_right_and_an_absent_cluster_are_reported(api, typed, capsys):
    api.put(a_request("train"))
    api.refused = {("patch", f"{REQUESTS}/train")}
    assert await typed("--yes") == 2
    assert "needs the rights to list and patch them, and to use the devgpuvmusers" in capsys.readouterr().err
    await api.stop()
    assert await typed() == 3
    assert "does not answer" in capsys.readouterr().err


async def answered(api, code):
    return api._status(code, "the server could not find the requested resource")
