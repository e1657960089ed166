"""A workspace in another cluster than the hub's: whose client, which watch, which address."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kubernetes_asyncio.client import ApiException
from test_kube_start import Kube

from gpuspawner.catalog import Cluster
from gpuspawner.catalog.cluster_models import Gateway, Ingress
from gpuspawner.core.errors import Unavailable
from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.kubernetes import clusters
from gpuspawner.spawner.kubernetes.starting import PodStart
from gpuspawner.spawner.mixin import GPUSpawnerMixin

EAST = Cluster("us-east", "US East", kubeconfig="/none", hub="https://hub.example.org", nodes="10.9.0.1")
POD = {
    "metadata": {
        "uid": "u-1", "name": "jupyter-alice", "labels": {"gpuspawner.io/lease": "l1", "gpuspawner.io/attempt": "2"}
    }
}  # fmt: skip


class There:
    """The other cluster's API server."""

    def __init__(self):
        self.made, self.taken, self.routes = [], set(), []
        self.api_client = self

    async def create_namespaced_ingress(self, namespace, ingress):
        self._route(namespace, ingress)

    async def create_namespaced_custom_object(self, group, version, namespace, plural, route):
        assert (f"{group}/{version}", plural) == (route["apiVersion"], "httproutes")
        self._route(namespace, route)

    def _route(self, namespace, route):
        if any(one["metadata"]["name"] == route["metadata"]["name"] for _, one in self.routes):
            raise ApiException(status=409)
        self.routes.append((namespace, route))

    async def create_namespaced_service(self, namespace, service):
        name = service["metadata"]["name"]
        self.made.append((namespace, service))
        if name in self.taken:
            raise ApiException(status=409)
        self.taken.add(name)
        return self._service()

    async def read_namespaced_service(self, _name, _namespace):
        return self._service()

    def _service(self):
        return SimpleNamespace(spec=SimpleNamespace(ports=[SimpleNamespace(node_port=31234)]))


class Base(Kube):
    port = 8888
    server = SimpleNamespace(base_url="/user/alice/")

    def get_env(self):
        return {
            "JUPYTERHUB_API_URL": "http://10.0.0.5:8081/hub/api",
            "JUPYTERHUB_ACTIVITY_URL": "http://10.0.0.5:8081/hub/api/users/alice/activity",
            "GPUSPAWNER_SERVICE_URL": "http://10.0.0.5:9470/services/gpu/",
            "HOME": "/home/alice",
        }


class One(PodStart, GPUSpawnerMixin, Base):
    def __init__(self):
        Base.__init__(self, None)
        self._gpu_attempt = Attempt()

    gpu_catalog = SimpleNamespace(clusters={"us-east": EAST, "eu-west": Cluster("eu-west", "eu-west")})


@pytest.fixture
async def spawner():
    return One()


@pytest.fixture
async def there(spawner, monkeypatch):
    """The other cluster, whose client is known; the spawner's workspace is granted there."""
    api = There()
    monkeypatch.setattr(clusters, "_clients", {(asyncio.get_running_loop(), EAST): api})
    spawner._gpu_attempt = spawner._gpu_attempt.granted(None, {"cluster": "us-east"}, 0.0)
    return api


async def test_the_hubs_own_cluster_needs_no_additions(spawner):
    assert spawner.api is spawner
    assert spawner.gpu_in_cluster is None


async def test_each_cluster_has_a_client_of_its_own(spawner, there):
    assert spawner.api is there
    spawner._gpu_attempt = spawner._gpu_attempt.granted(None, {}, 0.0)
    assert spawner.api is spawner


async def test_the_hubs_address_is_the_one_for_the_other_cluster(spawner, there):
    assert spawner._gpu_cluster.with_hub(Base.get_env(spawner)) == {
        "JUPYTERHUB_API_URL": "https://hub.example.org/hub/api",
        "JUPYTERHUB_ACTIVITY_URL": "https://hub.example.org/hub/api/users/alice/activity",
        "GPUSPAWNER_SERVICE_URL": "https://hub.example.org/services/gpu/",
        "HOME": "/home/alice",
    }


async def test_the_proxy_reaches_a_pod_by_a_node_port_that_goes_with_the_pod(spawner, there):
    await spawner._gpu_cluster.find_address(POD)
    ((namespace, service),) = there.made
    assert (namespace, service["spec"]["type"]) == ("hub", "NodePort")
    assert service["spec"]["selector"] == POD["metadata"]["labels"]
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert spawner._gpu_cluster.address("http://10.244.1.7:8888") == "http://10.9.0.1:31234"
    await spawner._gpu_cluster.find_address(POD)
    assert len(there.made) == 1


async def test_a_service_whose_creation_was_not_answered_is_found(spawner, there):
    there.taken.add("workspace-u-1")
    await spawner._gpu_cluster.find_address(POD)
    assert spawner._gpu_attempt.node_port == 31234


INGRESS = {"ingress": Ingress("https://in.example.org", "public")}
GATEWAY = {"gateway": Gateway("http://gw.example.org", "shared", "gateways")}


@pytest.fixture
async def routed(spawner, there, monkeypatch, request):
    """The other cluster's workspaces are reached by an ingress controller or a Gateway."""
    cluster = replace(EAST, nodes="", **request.param)
    monkeypatch.setattr(clusters, "NetworkingV1Api", lambda client: client)
    monkeypatch.setattr(clusters, "CustomObjectsApi", lambda client: client)
    monkeypatch.setattr(clusters, "_clients", {(asyncio.get_running_loop(), cluster): there})
    monkeypatch.setattr(One, "gpu_catalog", SimpleNamespace(clusters={"us-east": cluster}))
    return cluster.route


async def routes_of(spawner, there, kind, url):
    """The one route that is made, and its rule: also where it and its Service are there already."""
    assert spawner._gpu_cluster.address("http://10.244.1.7:8888") == url
    for _ in range(2):
        spawner._gpu_attempt = replace(spawner._gpu_attempt, node_port=0)
        await spawner._gpu_cluster.find_address(POD)
        assert spawner._gpu_attempt.node_port == 8888
    ((_, service), _) = there.made
    assert service["spec"]["type"] == "ClusterIP"
    ((namespace, route),) = there.routes
    assert (namespace, route["kind"], route["metadata"]) == ("hub", kind, service["metadata"])
    return route["spec"], route["spec"]["rules"][0]


@pytest.mark.parametrize("routed", [INGRESS], indirect=True)
async def test_the_proxy_reaches_a_pod_by_an_ingress_of_its_path(spawner, there, routed):
    spec, rule = await routes_of(spawner, there, "Ingress", "https://in.example.org")
    assert spec["ingressClassName"] == "public"
    (way,) = rule["http"]["paths"]
    assert (way["path"], way["pathType"]) == ("/user/alice", "Prefix")
    assert way["backend"]["service"] == {"name": "workspace-u-1", "port": {"name": "workspace"}}


@pytest.mark.parametrize("routed", [GATEWAY], indirect=True)
async def test_the_proxy_reaches_a_pod_by_a_route_of_a_gateway(spawner, there, routed):
    spec, rule = await routes_of(spawner, there, "HTTPRoute", "http://gw.example.org")
    assert spec["parentRefs"] == [{"name": "shared", "namespace": "gateways"}]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/user/alice"}}]
    assert rule["backendRefs"] == [{"name": "workspace-u-1", "port": 8888}]
    assert rule["timeouts"] == {"request": "0s"}


@pytest.mark.parametrize("routed", [INGRESS, GATEWAY], indirect=True)
async def test_a_server_route_answers_404_before_the_server_exists(spawner, there, routed):
    assert [spawner._gpu_cluster.is_no_answer(status) for status in (404, 302, 403)] == [True, False, False]


async def test_a_server_without_a_route_may_answer_404(spawner, there):
    assert not spawner._gpu_cluster.is_no_answer(404)


async def test_state_saved_by_the_hub_finds_its_server_again(spawner, there):
    await spawner._gpu_cluster.find_address(POD)
    saved = replace(spawner._gpu_attempt, lease="l1", number=2).started().to_state()
    found = Attempt.from_state(saved)
    assert (found.cluster, found.node_port) == ("us-east", 31234)
    at_home = replace(Attempt().granted(None, {}, 0.0), lease="l1", number=2).started()
    assert "gpu_cluster" not in at_home.to_state()


async def test_a_cluster_with_a_missing_file_is_away_and_its_workspaces_continue(spawner, monkeypatch):
    monkeypatch.setattr(clusters, "AGAIN_SECONDS", 0.01)
    spawner._gpu_attempt = spawner._gpu_attempt.granted(None, {"cluster": "us-east"}, 0.0)
    with pytest.raises(Unavailable, match="kubeconfig /none"):
        await spawner._gpu_cluster.open_client()
    look = asyncio.create_task(spawner._gpu_cluster.await_client())
    _, waiting = await asyncio.wait([look], timeout=0.2)
    assert waiting == {look}
    while not look.done():  # before Python 3.12, wait_for inside may lose a cancellation
        look.cancel()
        await asyncio.sleep(0.01)
