"""The way to the API server: what the kubeconfig says, and where it says nothing of a proxy, the environment."""

import asyncio

import pytest
from cluster_objects import a_node, a_workspace
from kube_api import KubeApi, ends_with

from gpuspawner.backends.kubernetes import api as apis
from gpuspawner.backends.kubernetes.api import Api, find_proxy
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable

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


def test_hosts_excluded_from_the_environments_proxy_are_reached_directly(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "10.96.0.1,.svc")
    assert find_proxy("https://10.96.0.1:443") is None
    assert find_proxy("https://kubernetes.default.svc") is None
    assert find_proxy("https://[fd00::1]:443") == "http://proxy.example.org:3128"


async def refusal(settings, ask=lambda api: api.get("/api/v1/nodes")):
    api = Api(settings)
    try:
        with pytest.raises(Unavailable) as refused:
            await asyncio.wait_for(ask(api), 60)
    finally:
        await api.close()
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not a kubeconfig"),
        ("[]", "it is not a kubeconfig"),
        ("a token alone", "it is not a kubeconfig"),
        ("{a", "line 1"),
        ("clusters: []", "current-context"),
    ],
)
async def test_an_invalid_kubeconfig_is_named(tmp_path, text, why):
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    said = await refusal(ClusterSettings("jhub", str(file)))
    assert str(file) in said
    assert why in said


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"certificate-authority-data": "bm90IGEgY2VydA=="}, "no certificate"),
        ({"proxy-url": "socks5://me:secret@proxy.example.org:1080"}, "has socks5://"),
        ({"proxy-url": 3128}, "has no scheme://"),
    ],
)
async def test_an_impossible_kubeconfig_setting_is_reported(proxy, tmp_path, cluster, why):
    file = proxy.kubeconfig(tmp_path, {"server": "https://cluster.example.org:6443", **cluster})
    said = await refusal(ClusterSettings("jhub", file))
    assert file in said
    assert why in said
    assert "secret" not in said


def test_a_proxy_of_the_environment_is_read_as_others_read_it(monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example.org:3128")
    assert find_proxy("https://10.96.0.1:443") == "http://proxy.example.org:3128"
    monkeypatch.setenv("https_proxy", "https://proxy.example.org:3129")
    assert find_proxy("https://10.96.0.1:443") is None, "as KubeSpawner's own client"
    monkeypatch.setenv("https_proxy", "socks5://proxy.example.org:1080")
    with pytest.raises(ValueError, match="has socks5://"):
        find_proxy("https://10.96.0.1:443")


async def test_a_watch_does_not_wait_forever_for_a_proxy_that_says_nothing(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(apis, "REQUEST_SECONDS", 0.2)
    ended = asyncio.Event()

    async def says_nothing(_reader, writer):
        await ended.wait()
        writer.close()

    async def watch(api):
        async for _ in api.watch("/api/v1/nodes", {}, 0.2):
            pass

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    file = proxy.kubeconfig(tmp_path, {"server": "https://cluster.example.org:6443", "proxy-url": url})
    try:
        assert "does not answer" in await refusal(ClusterSettings("jhub", file), watch)
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


async def test_a_token_of_a_kubeconfigs_own_command_is_renewed_by_one_run(proxy, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    command = tmp_path / "token"
    command.write_text(
        f"#!/bin/sh\necho run >> {runs}\n"
        'echo \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
        f'{{"token": "\'$(wc -l < {runs})\'", "expirationTimestamp": "2026-01-01T00:00:00Z"}}}}\'\n'
    )
    command.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(command)}}
    api = Api(ClusterSettings("jhub", proxy.kubeconfig(tmp_path, user=user)))
    try:
        await asyncio.gather(*(api.get("/api/v1/nodes") for _ in range(3)))
        assert proxy.tokens == {"Bearer 1"}
        monkeypatch.setattr(apis, "RENEW_SECONDS", 0.0)
        await api.get("/api/v1/nodes")
        monkeypatch.undo()
        await asyncio.gather(*(api.get("/api/v1/nodes") for _ in range(3)))
        assert proxy.tokens == {"Bearer 1", "Bearer 2"}
        command.write_text("#!/bin/sh\necho sign in first >&2\nexit 1\n")
        monkeypatch.setattr(apis, "RENEW_SECONDS", 0.0)
        with pytest.raises(Unavailable, match="sign in first"):
            await api.get("/api/v1/nodes")
    finally:
        await api.close()


async def test_a_call_that_comes_after_the_end_opens_nothing(proxy, tmp_path):
    api = Api(ClusterSettings("jhub", proxy.kubeconfig(tmp_path)))
    await api.get("/api/v1/nodes")
    closing = asyncio.create_task(api.close())
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the service ends"):
            await api.get("/api/v1/nodes")
        await closing
