"""The current state of a cluster by list and watch: nodes, pods, quotas and limits, and the fleet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.dra.view import DeviceView
from gpuspawner.backends.kubernetes.fleet import gpus_of_node, host_resources_of_node
from gpuspawner.backends.kubernetes.nodes import Node, to_limits, to_node, to_quota
from gpuspawner.backends.kubernetes.pods import Pod, to_pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, HostResources, NodeName
from gpuspawner.core.outages import API_SERVER, ETCD
from gpuspawner.core.quotas.namespaces import NamespaceBounds, NamespaceLimit, NamespaceQuota, NodeSize

log = logging.getLogger("gpuspawner.kubernetes")

T = TypeVar("T")

LeaseCheck = Callable[[str, Mapping[str, str]], bool]

FIRST_LIST_SECONDS = 10.0
"""How long the first question waits for the first lists. 5,000 nodes take some seconds."""


def accept_all(_lease: str, _variables: Mapping[str, str]) -> bool:
    """Accept the lease of each pod."""
    return True


class ClusterView:
    """Watches the cluster from the first question on, in that question's event loop."""

    def __init__(
        self,
        api: Api,
        settings: ClusterSettings,
        kinds: Iterable[GpuKind],
        hub: str,
        is_signed: LeaseCheck = accept_all,
    ) -> None:
        """``is_signed`` checks the lease of a pod that its user may have written."""
        self._api, self._settings, self._kinds, self._hub = api, settings, tuple(kinds), hub
        self._is_signed = is_signed
        self._named = frozenset(kind.resource for kind in self._kinds if kind.resource)
        self._tasks: list[asyncio.Task[None]] = []
        self._gpus_of: dict[str, tuple[Gpu, ...]] = {}
        self._gpus: tuple[Gpu, ...] | None = None
        self._size_of: dict[str, NodeSize] = {}
        self._sizes: frozenset[NodeSize] = frozenset()
        self._host_resources: dict[NodeName, HostResources] = {}
        self._pods_on: dict[str, dict[str, Pod]] = {}
        self._dirty: set[str] = set()
        self._own: dict[str, Pod] = {}
        self._own_of: dict[str, dict[str, Pod]] = {}
        self._of_other_hubs: dict[str, Pod] = {}
        self._refused_at: dict[str, float] = {}
        self._node_names: dict[str, Node] = {}
        labels = [f"{key}={value}" for key, value in settings.node_selector]
        selector = ",".join([*labels, settings.node_labels] if settings.node_labels else labels)
        self._nodes = Watch(
            api,
            "/api/v1/nodes",
            {"labelSelector": selector} if selector else {},
            partial(to_node, named=self._named),
            self._node_changed,
            settings,
        )
        self._all_pods = self._pods_at("/api/v1/pods")
        self._pods_here = self._pods_at(f"/api/v1/namespaces/{settings.namespace}/pods")
        self._quotas: Watch[tuple[NamespaceQuota, ...]] = self._rules("resourcequotas", to_quota)
        self._limits: Watch[tuple[NamespaceLimit, ...]] = self._rules("limitranges", to_limits)
        self.devices = DeviceView(api, settings, self._kinds, self._dirty.add)
        self._answered_at = time.monotonic()
        self._no_answer = ""
        """Why the last request for data failed."""
        self._server_answers = False
        """Whether the API server answered its last request that needs no database."""

    @property
    def age_seconds(self) -> float:
        """Time since the API server last answered with data. A watch stays silent while nothing changes."""
        return time.monotonic() - self._answered_at

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences for the administrator about objects that the service may not observe."""
        watches: tuple[Watch[Any], ...] = (self._all_pods, self._quotas, self._limits, *self.devices.watches)
        return tuple(dict.fromkeys(watch.limit for watch in watches if watch.limit))

    async def gpus(self) -> tuple[Gpu, ...]:
        """Return each GPU of each node.

        Raises:
            Unavailable: Nodes or pods are not observed now.
        """
        await self._ensure_current(self._nodes, self._pods)
        self._count_changed()
        if self._gpus is None:
            self._gpus = tuple(gpu for name in sorted(self._gpus_of) for gpu in self._gpus_of[name])
            self._sizes = frozenset(self._size_of.values())
        return self._gpus

    @property
    def host_resources(self) -> Mapping[NodeName, HostResources]:
        """CPU and memory of nodes, as last counted by :meth:`gpus`."""
        return dict(self._host_resources)

    async def own_pods(self) -> Sequence[Pod]:
        """Return the pods of this hub's workspaces, including ended ones. Raises like :meth:`gpus`."""
        await self._ensure_current(self._pods)
        self._count_changed()  # a pod's devices count as its node says
        return tuple(self.devices.pod(pod) for pod in self._own.values())

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match the GPUs of all nodes to these kinds at the next look."""
        self._kinds = tuple(kinds)
        self.devices.use_kinds(self._kinds)
        self._dirty.update(self._node_names)

    def of_other_hubs(self) -> Sequence[Pod]:
        """Return the pods of other hubs' workspaces in this hub's namespaces, as last observed."""
        return tuple(self._of_other_hubs.values())

    def of_lease(self, lease_id: str) -> Sequence[Pod]:
        """Return the pods of one lease, as last observed."""
        return tuple(self.devices.pod(pod) for pod in self._own_of.get(lease_id, {}).values())

    def refused_seconds(self, pod: Pod) -> float:
        """Return how long no node was found for a pod, by this machine's clock."""
        since = self._refused_at.get(pod.uid)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def seen(self) -> bool:
        """Whether the pods have been listed since the service began."""
        return self._pods.complete

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes as last observed, by name."""
        return self._node_names

    def node(self, name: str) -> Node | None:
        """Return a node with its claimed devices, None if unknown."""
        node = self._node_names.get(name)
        return self.devices.node(node) if node else None

    def room(self) -> NamespaceBounds:
        """Return the rules of the workspaces' namespace that can be observed."""
        counted = (p.lease for p in self._own.values() if p.namespace == self._settings.namespace and not p.ended)
        limits = (one for rules in self._limits.objects.values() for one in rules)
        quotas = (one for rules in self._quotas.objects.values() for one in rules)
        return NamespaceBounds(
            tuple(sorted(limits, key=lambda x: (x.name, x.resource))),
            tuple(sorted(quotas, key=lambda x: (x.name, x.resource, x.hard))),
            frozenset(counted),
            frozenset(size for size in self._sizes if size.cpu and size.memory),
        )

    async def close(self) -> None:
        """Stop all watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _ensure_current(self, *watches: Watch[Node] | Watch[Pod]) -> None:
        """Start the watches if needed, and raise Unavailable unless these are current."""
        if is_first := not self._tasks:
            rules, devices = self._watch_rules(), self.devices.run_watches()
            running = (self._poll_data(), self._nodes.run(), self._watch_pods(), *rules, *devices)
            self._tasks = [asyncio.create_task(one) for one in running]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._first_lists(), FIRST_LIST_SECONDS)
        if is_first:
            self._answered_at = time.monotonic()  # the lists are an answer with data
        for watch in self._current(watches):
            if watch.refused:
                raise Unavailable(
                    f"The cluster does not let the service observe it: {watch.refused}. Bind the rights of "
                    "hub_config/kubernetes-service-rbac.yaml to the service's account."
                )
            if not watch.complete:
                raise Unavailable("The cluster has not been observed yet.")
            self._check_age(watch)
        for device_watch in self.devices.watches:
            if not device_watch.answered.is_set():
                raise Unavailable("The cluster's devices have not been observed yet.")
            if device_watch.complete:
                self._check_age(device_watch)
        if self.age_seconds > self._settings.stale_seconds:
            part = ETCD if self._server_answers and not self._nodes.lost_seconds else API_SERVER
            raise Unavailable(f"{part} does not answer: {self._no_answer or 'no answer came'}.", part)

    def _check_age(self, watch: Watch[Any]) -> None:
        if watch.lost_seconds > self._settings.stale_seconds:
            problem = watch.problem.removeprefix(f"{API_SERVER} does not answer: ")
            raise Unavailable(f"{API_SERVER} does not answer: {problem or 'no answer came'}.", API_SERVER)

    async def _poll_data(self) -> None:
        """Read one node at intervals: while the API server's database is away, watches stay open and silent."""
        patience_seconds = self._settings.stale_seconds
        while True:
            # The version needs no database. A frozen server keeps its watches open, too.
            self._no_answer = await self._why_unanswered("/version", {}, patience_seconds / 2)
            self._server_answers = not self._no_answer
            if self._server_answers:
                self._no_answer = await self._why_unanswered("/api/v1/nodes", {"limit": "1"}, patience_seconds)
            if not self._no_answer:
                self._answered_at = time.monotonic()
            await asyncio.sleep(patience_seconds / 4)

    async def _why_unanswered(self, path: str, query: Mapping[str, str], seconds: float) -> str:
        """Return why the API server did not answer, else "". A refusal is an answer, but a server error is not."""
        try:
            # Not `wait_for`: before Python 3.12 it may lose the cancellation of this task.
            await self._api.get(path, query, seconds)
        except ApiRefused as error:
            return str(error) if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
        except Unavailable as error:
            return str(error).removeprefix(f"{API_SERVER} does not answer: ").rstrip(".") or "no answer came"
        return ""

    async def _first_lists(self) -> None:
        await self._nodes.answered.wait()
        while not (pods := self._pods).answered.is_set():  # a refused watch is replaced by another
            await pods.answered.wait()
        for watch in self.devices.watches:
            await watch.answered.wait()

    def _current(self, watches: Sequence[Watch[Node] | Watch[Pod]]) -> list[Watch[Node] | Watch[Pod]]:
        """Return the watches, with the current watch of pods: it may have been replaced by one that observes less."""
        return [watch if watch is self._nodes else self._pods for watch in watches]

    def _pods_at(self, path: str) -> Watch[Pod]:
        return Watch(self._api, path, {}, self._to_pod, self._pod_changed, self._settings)

    def _to_pod(self, data: Mapping[str, Any]) -> Pod | None:
        """Return a pod reduced to the needed fields, without a lease that is not the hub's own.

        Other users create pods in other namespaces. In a user's own namespace the lease must be signed by our service.
        """
        pod = to_pod(data, self._named)
        if pod is None or not pod.hub or self.is_ours(pod):
            return pod
        return replace(pod, hub="", variables={}) if pod.requests or pod.claims else None

    def is_ours(self, pod: Pod) -> bool:
        """Return whether a pod's lease was written by a hub."""
        if not self._settings.all_namespaces:
            return pod.namespace == self._settings.namespace
        return pod.hub != self._hub or self._is_signed(pod.lease, pod.variables)

    @property
    def _pods(self) -> Watch[Pod]:
        """The current watch of pods: all, or those of one namespace while all are refused."""
        return self._pods_here if self._all_pods.limit and not self._settings.all_namespaces else self._all_pods

    def _watch_pods(self) -> Coroutine[Any, Any, None]:
        """Watch the pods of all namespaces or, while that is refused, of the workspaces' namespace."""
        if self._settings.all_namespaces:
            unseen = "Pods cannot be observed in all namespaces ({}), and workspaces are in many."
            return self._all_pods.run_despite_refusal(unseen.format)
        unseen = (
            f"Pods outside namespace {self._settings.namespace} cannot be observed ({{}}). GPUs that they use look "
            "free. A workspace that finds them in use keeps its place in the queue and is tried again. To change this, "
            "give the service a ClusterRole with list and watch of pods, as in "
            "hub_config/kubernetes-service-rbac.yaml."
        )
        return self._all_pods.run_despite_refusal(unseen.format, self._pods_here)

    def _rules(self, collection: str, trim: Callable[..., T | None]) -> Watch[T]:
        path = f"/api/v1/namespaces/{self._settings.namespace}/{collection}"
        return Watch(
            self._api, path, {}, partial(trim, named=self._named), lambda _before, _after: None, self._settings
        )

    def _watch_rules(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Watch quotas and limits of the workspaces' namespace, unless each user has a namespace of their own."""
        rules: Sequence[tuple[str, Watch[Any]]] = (("Quotas", self._quotas), ("Limits", self._limits))
        for what, watch in () if self._settings.all_namespaces else rules:
            unseen = (
                f"{what} of namespace {self._settings.namespace} cannot be observed ({{}}). GPUs beyond them look "
                "free, and the cluster refuses workspaces that exceed them."
            )
            yield watch.run_despite_refusal(unseen.format)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        if after is None:
            assert before is not None, "a removed node was known"
            self._node_names.pop(before.name, None)
            self._dirty.add(before.name)
        else:
            self._node_names[after.name] = after
            self._dirty.add(after.name)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is not None and pod.node:
                self._dirty.add(pod.node)
        if before is not None:
            self._forget(before)
            if after is None or not after.refusal:
                self._refused_at.pop(before.uid, None)
        if after is not None:
            if after.refusal:
                self._refused_at.setdefault(after.uid, time.monotonic())
            self._pods_on.setdefault(after.node, {})[after.uid] = after
            if after.hub == self._hub:
                self._own[after.uid] = after
                self._own_of.setdefault(after.lease, {})[after.uid] = after
            elif after.hub:
                self._of_other_hubs[after.uid] = after

    def _forget(self, before: Pod) -> None:
        self._own.pop(before.uid, None)
        self._of_other_hubs.pop(before.uid, None)
        of_lease = self._own_of.get(before.lease, {})
        of_lease.pop(before.uid, None)
        if not of_lease:
            self._own_of.pop(before.lease, None)
        on_node = self._pods_on.get(before.node, {})
        on_node.pop(before.uid, None)
        if not on_node:
            self._pods_on.pop(before.node, None)

    def _count_changed(self) -> None:
        for name in self._dirty:
            self._count(name)
            self._gpus = None
        self._dirty.clear()

    def _count(self, name: str) -> None:
        node, seen = self.node(name), self._pods_on.get(name, {})
        self._host_resources.pop(NodeName("", name), None)
        pods = [*self.devices.pods(seen), *self.devices.other_users(name, seen)]
        node = self.devices.with_domains_in_use(node, seen, self._hub) if node else None
        gpus = gpus_of_node(node, pods, self._kinds, self._hub, self._settings.tolerations) if node else ()
        if gpus and node:
            self._gpus_of[name] = gpus
            self._size_of[name] = NodeSize(frozenset(gpu.pool for gpu in gpus), node.cpu, node.memory_bytes)
            if (host_resources := host_resources_of_node(node, pods, self._hub)) is not None:
                self._host_resources[NodeName("", name)] = host_resources
        else:
            self._gpus_of.pop(name, None)
            self._size_of.pop(name, None)
