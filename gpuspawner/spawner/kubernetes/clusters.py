"""The API servers of workspaces: KubeSpawner's watches, made to last, and pods in other clusters.

KubeSpawner's own watches give up after 51 s without an API server, and then show the last state forever. A watch whose
first list fails shows no pod at all: a hub that started at that time would believe that every workspace has ended. Ours
continue through each failure and remember deleted pods.

A pod in another cluster needs an API client, and an address by which the proxy reaches its server.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException, CoreV1Api, CustomObjectsApi, NetworkingV1Api
from kubespawner.reflector import ResourceReflector
from kubespawner.spawner import EventReflector, PodReflector
from traitlets import validate

from gpuspawner.backends.kubernetes.api import Connection
from gpuspawner.backends.kubernetes.pods import ATTEMPT_LABEL, LEASE_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import Cluster, Route
from gpuspawner.core.errors import Unavailable
from gpuspawner.spawner.kubernetes.pod_states import short

MAX_REMEMBERED = 1000
"""Maximum number of remembered deleted pods. Arbitrary: the hub asks for each within a minute."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Intervals between attempts of the first list. Until it succeeds the hub does not know which workspaces run."""


class LastingWatch(ResourceReflector):
    """A watch of KubeSpawner that never gives up. ``trouble`` is why nothing has been listed yet, or ""."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner does, but do not end the hub after a failure."""
        super().__init__(**{**kwargs, "on_failure": None})
        if getattr(self.parent, "gpu_in_cluster", None) is not None:
            self.api = self.parent.api  # KubeSpawner uses the client of the hub's own cluster
        self.trouble = ""

    async def start(self) -> None:
        """List until it succeeds, then watch. A refused list is repeated too: rights may be granted later."""
        tries = 0
        while True:
            try:
                await self._list_and_update()
                break
            except Exception as error:  # noqa: BLE001 - any error of the client for an unreachable server
                self.trouble = short(str(error) or type(error).__name__).rstrip(".")
                wait_seconds = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                self.log.warning(
                    "%s cannot be listed (%s); next attempt in %s s", self.kind, self.trouble, wait_seconds
                )
                await asyncio.sleep(wait_seconds)
                tries += 1
        self.trouble = ""
        self.watch_task = asyncio.create_task(self._watch_and_update())

    async def _list_and_update(self, resource_version: str | None = None) -> str:  # noqa: ARG002 - its own is too old
        """List the current state and return its version.

        KubeSpawner accepts any list that is not older than its last list. One of several API servers may be behind the
        watch: a pod that it does not know yet would count as deleted, and would be ended.
        """
        version: str = await super()._list_and_update(None)
        return version

    async def _watch_and_update(self) -> None:
        """Watch as KubeSpawner does, and start again whenever it gives up."""
        try:
            while not self._stopping:
                try:
                    await super()._watch_and_update()
                except Exception:
                    self.log.exception("watching %s failed", self.kind)
                if not self._stopping:
                    self.log.warning("%s are not watched now; next attempt in %s s", self.kind, RETRY_SECONDS[-1])
                    await asyncio.sleep(RETRY_SECONDS[-1])
        except asyncio.CancelledError:
            if not self._stopping:  # `stop` awaits this task and expects no exception
                raise


class EventWatch(LastingWatch, EventReflector):
    """KubeSpawner's watch of events."""


class PodMemory(LastingWatch, PodReflector):
    """KubeSpawner's watch of pods. It tells changes at once and remembers how deleted pods were observed last."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner does."""
        self.gone: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        # An event without waiters is dropped.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        super().__init__(**kwargs)

    def next_change(self, key: str) -> asyncio.Event:
        """Return an event that is set once the pod ``namespace/name`` is made, changed or gone."""
        return self._changes.setdefault(key, asyncio.Event())

    def note_change(self, key: str) -> None:
        """Wake the tasks that wait for a change of this pod."""
        if change := self._changes.pop(key, None):
            change.set()

    def note_gone(self, key: str, pod: Mapping[str, Any]) -> None:
        """Remember the last state of the pod ``namespace/name``."""
        self.gone[key] = pod
        self.gone.move_to_end(key)
        while len(self.gone) > MAX_REMEMBERED:
            self.gone.popitem(last=False)

    @validate("resources")
    def _remember(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """Take a new list: pods that are missing in it were deleted while the watch was broken."""
        listed = _Pods(proposal["value"])
        listed.memory = self
        for key, pod in self._trait_values.get("resources", {}).items():
            if key not in listed:
                self.note_gone(key, pod)
        for key in tuple(self._changes):
            self.note_change(key)
        return listed


class _Pods(dict[str, Any]):
    """The existing pods by ``namespace/name``, which tell their memory each change."""

    memory: PodMemory

    def __setitem__(self, key: str, pod: Any) -> None:
        super().__setitem__(key, pod)
        self.memory.note_change(key)

    def pop(self, key: str, default: Any = None) -> Any:
        if key in self:
            self.memory.note_gone(key, self[key])
        pod = super().pop(key, default)
        self.memory.note_change(key)
        return pod


WATCHES: Mapping[str, type[LastingWatch]] = {"pods": PodMemory, "events": EventWatch}
"""Replacements of KubeSpawner's own watches, by kind."""


if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.starting import PodStart

PORT_NAME = "workspace"
GATEWAY_API = "gateway.networking.k8s.io/v1"

Json = Mapping[str, Any]


def service_of(pod: Json, port: int, *, of_nodes: bool) -> dict[str, Any]:
    """Return the Service of a pod's port. ``of_nodes``: every node has a port that leads to it."""
    labels = pod["metadata"]["labels"]
    spec = {
        "type": "NodePort" if of_nodes else "ClusterIP",
        "selector": {key: labels[key] for key in (LEASE_LABEL, ATTEMPT_LABEL)},
        "ports": [{"name": PORT_NAME, "port": port}],
    }
    return {"metadata": _metadata(pod), "spec": spec}


def ingress_of(pod: Json, path: str, route: Route) -> dict[str, Any]:
    """Return the Ingress from ``path`` to a pod's Service, for each way to name the controller."""
    name = _metadata(pod)["name"]
    backend = {"service": {"name": name, "port": {"name": PORT_NAME}}}
    spec: dict[str, Any] = {"rules": [{"http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}]}
    if route.class_name:
        spec["ingressClassName"] = route.class_name
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": _metadata(pod), "spec": spec}


def http_route_of(pod: Json, path: str, port: int, route: Route) -> dict[str, Any]:
    """Return the HTTPRoute from ``path`` to a pod's Service. Requests to kernels last long."""
    gateway = {"name": route.gateway, **({"namespace": route.namespace} if route.namespace else {})}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "timeouts": {"request": "0s"},
        "backendRefs": [{"name": _metadata(pod)["name"], "port": port}],
    }
    spec = {"parentRefs": [gateway], "rules": [rule]}
    return {"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": _metadata(pod), "spec": spec}


def _metadata(pod: Json) -> dict[str, Any]:
    of_pod = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": of_pod["name"], "uid": of_pod["uid"]}
    name, labels = f"workspace-{of_pod['uid']}", {LEASE_LABEL: of_pod["labels"][LEASE_LABEL]}
    return {"name": name, "labels": labels, "ownerReferences": [owner]}


AGAIN_SECONDS = 5.0
ASK_SECONDS, ASK_AGAIN_SECONDS = 10.0, 1.0
TO_HUB = ("JUPYTERHUB_API_URL", "JUPYTERHUB_ACTIVITY_URL", "GPUSPAWNER_SERVICE_URL")
"""Variables with the addresses of hub and service."""

_clients: dict[tuple[Any, Cluster], CoreV1Api] = {}
"""API clients by event loop, like KubeSpawner's own."""


class OtherCluster:
    """The differences of a workspace that is not in the hub's own cluster."""

    def __init__(self, spawner: PodStart) -> None:
        """Reach the cluster of this spawner's workspace."""
        self._spawner = spawner

    @property
    def _cluster(self) -> Cluster | None:
        return self._spawner.gpu_in_cluster

    @property
    def api(self) -> Any:
        """The API client of this cluster, which `open_client` makes."""
        return _clients[asyncio.get_running_loop(), self._cluster]  # type: ignore[index]  # only of another cluster

    async def await_client(self) -> None:
        """Return once there is a client of the workspace's cluster. With an unreadable file this takes long.

        Until then a request for a workspace's state waits: it is not known to have ended.
        """
        while True:
            try:
                return await self.open_client()
            except Unavailable as error:
                self._spawner.log.warning(
                    "cluster %s: %s Again in %s s.", self._spawner._gpu_attempt.cluster, error, AGAIN_SECONDS
                )
            await asyncio.sleep(AGAIN_SECONDS)

    async def open_client(self) -> None:
        """Make the client of the workspace's cluster if it is missing. Raises Unavailable."""
        cluster, loop = self._cluster, asyncio.get_running_loop()
        if cluster is None:
            if self._spawner._gpu_attempt.cluster:
                raise Unavailable(f"The catalog has no cluster {self._spawner._gpu_attempt.cluster} any more.")
            return
        if (loop, cluster) in _clients:
            return
        settings = ClusterSettings(self._spawner.namespace, kubeconfig=cluster.kubeconfig, context=cluster.context)
        connection = await Connection.open(settings)
        if (loop, cluster) in _clients:  # another start made it first
            await connection.close()
            return
        connection.client.configuration.refresh_api_key_hook = lambda _configuration: connection.renew()
        _clients[loop, cluster] = CoreV1Api(connection.client)
        self._closing = loop.create_task(_close_at_end(loop, cluster, connection))

    async def find_address(self, pod: Mapping[str, Any]) -> None:
        """Make a pod of another cluster reachable for the proxy, by nodes, an ingress controller or a Gateway."""
        cluster = self._cluster
        if cluster is None or not (cluster.nodes or cluster.route) or self._spawner._gpu_attempt.node_port:
            return
        try:
            port = await asyncio.wait_for(self._lead_to(pod, cluster.route), ASK_SECONDS)
        except (ApiException, ClientError, OSError, asyncio.TimeoutError) as error:
            self._spawner.log.warning("no address of %s yet: %s", self._spawner._log_name, str(error) or "time-out")
            await asyncio.sleep(ASK_AGAIN_SECONDS)
            return
        self._spawner._gpu_change(node_port=port)

    async def _lead_to(self, pod: Mapping[str, Any], route: Route | None) -> int:
        """Make the objects that lead to a pod unless they exist. Return the port."""
        service = service_of(pod, self._spawner.port, of_nodes=route is None)
        made = await _made(self._spawner.api.create_namespaced_service(self._spawner.namespace, service))
        if route is None:
            made = made or await self._spawner.api.read_namespaced_service(
                service["metadata"]["name"], self._spawner.namespace
            )
            return int(made.spec.ports[0].node_port)
        path, client = self._spawner.server.base_url.rstrip("/"), self._spawner.api.api_client
        if route.gateway:
            group, _, version = GATEWAY_API.partition("/")
            body, routes = http_route_of(pod, path, self._spawner.port, route), CustomObjectsApi(client)
            making = routes.create_namespaced_custom_object(group, version, self._spawner.namespace, "httproutes", body)
        else:
            ingresses: Any = NetworkingV1Api(client)  # it accepts plain JSON too
            making = ingresses.create_namespaced_ingress(self._spawner.namespace, ingress_of(pod, path, route))
        await _made(making)
        return int(self._spawner.port)

    def address(self, own: str) -> str:
        """Return the workspace's address for the proxy. ``own`` is its address in its cluster."""
        cluster = self._cluster
        if cluster is None or not (cluster.nodes or cluster.route):
            return own
        return cluster.route.url if cluster.route else f"http://{cluster.nodes}:{self._spawner._gpu_attempt.node_port}"

    def is_no_answer(self, status: int) -> bool:
        """Return whether an answer comes from a route that does not lead to the workspace yet."""
        cluster = self._cluster
        return status == HTTPStatus.NOT_FOUND and cluster is not None and cluster.route is not None

    def with_hub(self, environment: dict[str, str]) -> dict[str, str]:
        """Return the environment, with the hub's address for the other cluster."""
        cluster = self._cluster
        if cluster is None:
            return environment
        there = {name: f"{cluster.hub}{urlsplit(environment[name]).path}" for name in TO_HUB if environment.get(name)}
        return {**environment, **there}


async def _close_at_end(loop: Any, cluster: Cluster, connection: Connection) -> None:
    """Close a client when the hub ends, which cancels its tasks."""
    try:
        await asyncio.Event().wait()
    finally:
        _clients.pop((loop, cluster), None)
        await connection.close()


async def _made(making: Awaitable[Any]) -> Any:
    """Return the new object, or None if it exists already."""
    try:
        return await making
    except ApiException as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return None
