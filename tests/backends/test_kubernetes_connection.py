"""The way to the API server: what the kubeconfig says, and where it says nothing of a proxy, the environment."""

import pytest
from cluster_objects import a_node, a_workspace
from kube_api import KubeApi, ends_with

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.connection import proxy_to
from gpuspawner.backends.kubernetes.settings import ClusterSettings

FAR = "http://cluster.example.org:6443"
"""Nobody is there: only a proxy answers for it."""


@pytest.fixture
async def proxy():
    """A proxy that answers as the API server behind it would."""
    api = KubeApi()
    await api.start()
    api.put(a_node("gpu-1"))
    api.put(a_workspace("jupyter-alice", "a" * 32))
    api.execs["jupyter-alice"] = ends_with(0, b"out", b"")
    yield api
    await api.stop()


async def names_and_output(settings):
    api = Api(settings)
    try:
        nodes = await api.get("/api/v1/nodes")
        ended = await api.execute("jhub", "jupyter-alice", "notebook", ["sh"], b"", 1000)
    finally:
        await api.close()
    return [node["metadata"]["name"] for node in nodes["items"]], ended.output


async def test_requests_and_execs_go_by_the_proxy_that_the_kubeconfig_names(proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    file = proxy.kubeconfig(tmp_path, {"server": FAR, "proxy-url": proxy.url})
    assert await names_and_output(ClusterSettings("jhub", file)) == (["gpu-1"], "out")


async def test_they_go_by_the_environments_where_it_names_none(proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    file = proxy.kubeconfig(tmp_path, {"server": FAR})
    assert await names_and_output(ClusterSettings("jhub", file)) == (["gpu-1"], "out")


def test_what_the_environment_keeps_from_its_proxy_goes_straight(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "10.96.0.1,.svc")
    assert proxy_to("https://10.96.0.1:443") is None
    assert proxy_to("https://kubernetes.default.svc") is None
    assert proxy_to("https://[fd00::1]:443") == "http://proxy.example.org:3128"
