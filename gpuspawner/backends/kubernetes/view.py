"""The cluster as it is now: nodes, pods, quotas and limits by list and watch, and the fleet they make."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.devices.view import DeviceView
from gpuspawner.backends.kubernetes.fleet import beside_on_node, gpus_of_node
from gpuspawner.backends.kubernetes.reading.limits import to_limits, to_quota
from gpuspawner.backends.kubernetes.reading.objects import Node, Pod, to_node, to_pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, HostResources, NodeName
from gpuspawner.core.outages import API_SERVER, ETCD
from gpuspawner.core.quotas.namespaces import NamespaceBounds, NamespaceLimit, NamespaceQuota, NodeSize

log = logging.getLogger("gpuspawner.kubernetes")

T = TypeVar("T")

Believes = Callable[[str, Mapping[str, str]], bool]

FIRST_LOOK_SECONDS = 10.0
"""How long the first question waits for the first lists: 5,000 nodes take some seconds."""
SERVER_ERRORS = 500
"""From this HTTP status on, the API server says that it cannot tell."""


def believe_all(_lease: str, _variables: Mapping[str, str]) -> bool:
    """Believe what any pod says."""
    return True


class ClusterView:
    """Follows the cluster from the first question on, in that question's event loop."""

    def __init__(
        self, api: Api, settings: ClusterSettings, kinds: Iterable[GpuKind], hub: str, believes: Believes = believe_all
    ) -> None:
        """Look through ``api`` for GPUs of ``kinds`` and the pods of ``hub``.

        ``believes`` judges what a pod says of a lease that its user may have written.
        """
        self._api, self._settings, self._kinds, self._hub = api, settings, tuple(kinds), hub
        self._believes = believes
        self._named = frozenset(kind.resource for kind in self._kinds if kind.resource)
        self._tasks: list[asyncio.Task[None]] = []
        self._gpus_of: dict[str, tuple[Gpu, ...]] = {}
        self._gpus: tuple[Gpu, ...] | None = None
        self._size_of: dict[str, NodeSize] = {}
        self._sizes: frozenset[NodeSize] = frozenset()
        self._beside: dict[NodeName, HostResources] = {}
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
        self._told: dict[Watch[Any], str] = {}
        self._answered_at = time.monotonic()
        self._server_answers = False
        """Whether the API server answered when it was asked last for something that needs no database."""
        self._no_answer = ""
        """Why the last question for data was not answered."""

    @property
    def age_seconds(self) -> float:
        """How long ago the API server answered with data: a watch says nothing while nothing changes."""
        return time.monotonic() - self._answered_at

    @property
    def limits(self) -> tuple[str, ...]:
        """What the service may not see, each in a sentence for the administrator."""
        told = (sentence for watch, sentence in self._told.items() if not watch.complete)
        return tuple(dict.fromkeys((*told, *self.devices.limits)))

    async def gpus(self) -> tuple[Gpu, ...]:
        """Return every GPU of every node.

        Raises:
            Unavailable: nodes or pods were not seen yet, or not for too long.
        """
        await self._seen(self._nodes, self._pods)
        self._count_changed()
        if self._gpus is None:
            self._gpus = tuple(gpu for name in sorted(self._gpus_of) for gpu in self._gpus_of[name])
            self._sizes = frozenset(self._size_of.values())
        return self._gpus

    @property
    def host_resources(self) -> Mapping[NodeName, HostResources]:
        """What nodes have beside their GPUs, as they were last counted by :meth:`gpus`."""
        return dict(self._beside)

    async def own_pods(self) -> Sequence[Pod]:
        """Return the pods of this hub's workspaces, those that have ended included. Raises as :meth:`gpus` does."""
        await self._seen(self._pods)
        self._count_changed()  # as what a pod's devices are counted, their node says
        return tuple(self.devices.pod(pod) for pod in self._own.values())

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match the GPUs of all nodes to these kinds at the next look."""
        self._kinds = tuple(kinds)
        self.devices.use_kinds(self._kinds)
        self._dirty.update(self._node_names)

    def of_other_hubs(self) -> Sequence[Pod]:
        """Return the pods of other hubs' workspaces, where this hub's are made, as they were last seen."""
        return tuple(self._of_other_hubs.values())

    def of_lease(self, lease_id: str) -> Sequence[Pod]:
        """Return the pods of one lease as they were last seen."""
        return tuple(self.devices.pod(pod) for pod in self._own_of.get(lease_id, {}).values())

    def refused_seconds(self, pod: Pod) -> float:
        """Return for how long no place was found for a pod, by this machine's clock: the cluster's may be another."""
        since = self._refused_at.get(pod.uid)
        return 0.0 if since is None else time.monotonic() - since

    @property
    def seen(self) -> bool:
        """Whether the pods were listed since the service began."""
        return self._pods.complete

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes as they were last seen, by name."""
        return self._node_names

    def node(self, name: str) -> Node | None:
        """Return a node with the devices that are claimed there, None where it is not seen."""
        node = self._node_names.get(name)
        return self.devices.node(node) if node else None

    def room(self) -> NamespaceBounds:
        """Return the rules of the workspaces' namespace: those that may not be seen are not in it."""
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
        """Follow nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _seen(self, *watches: Watch[Node] | Watch[Pod]) -> None:
        """Return once these are known as they are now."""
        if is_first := not self._tasks:
            self._tasks = [
                asyncio.create_task(self._ask_for_data()),
                asyncio.create_task(self._nodes.run()),
                asyncio.create_task(self._follow_pods()),
                *(asyncio.create_task(self._follow_rules(*rules)) for rules in self._rule_watches()),
                *(asyncio.create_task(following) for following in self.devices.follow()),
            ]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._first_look(), FIRST_LOOK_SECONDS)
        if is_first:
            self._answered_at = time.monotonic()  # the lists are data
        for watch in self._current(watches):
            if watch.refused:
                raise Unavailable(
                    f"The cluster does not let the service see it: {watch.refused}. The rights that it needs stand in "
                    "hub_config/kubernetes-service-rbac.yaml: bind them to the account that it acts by."
                )
            if not watch.complete:
                raise Unavailable("The cluster has not been seen yet.")
            self._check_heard(watch)
        for device_watch in self.devices.watches:
            if not device_watch.answered.is_set():
                raise Unavailable("The cluster's devices have not been seen yet.")
            if device_watch.complete:
                self._check_heard(device_watch)
        if self.age_seconds > self._settings.stale_seconds:
            part = ETCD if self._server_answers and not self._nodes.lost_seconds else API_SERVER
            raise Unavailable(f"{part} does not answer: {self._no_answer or 'no answer came'}.", part)

    def _check_heard(self, watch: Watch[Any]) -> None:
        if watch.lost_seconds > self._settings.stale_seconds:
            raise Unavailable(f"{API_SERVER} does not answer: {watch.problem or 'no answer came'}.", API_SERVER)

    async def _ask_for_data(self) -> None:
        """Ask for one node again and again: while the API server's database is away, its watches stay open, silent."""
        patience_seconds = self._settings.stale_seconds
        while True:
            # The version needs no database. A server that is frozen keeps its watches open too.
            self._no_answer = await self._unanswered("/version", {}, patience_seconds / 2)
            self._server_answers = not self._no_answer
            if self._server_answers:
                self._no_answer = await self._unanswered("/api/v1/nodes", {"limit": "1"}, patience_seconds)
            if not self._no_answer:
                self._answered_at = time.monotonic()
            await asyncio.sleep(patience_seconds / 4)

    async def _unanswered(self, path: str, query: Mapping[str, str], seconds: float) -> str:
        """Ask the API server. Return why it did not answer, or "". A refusal is an answer, its own failure is not."""
        try:
            # Not `wait_for`: before Python 3.12 it may forget that this task was cancelled.
            await self._api.get(path, query, seconds)
        except ApiRefused as error:
            return str(error) if error.status >= SERVER_ERRORS else ""
        except Unavailable as error:
            return str(error).removeprefix(f"{API_SERVER} does not answer: ").rstrip(".") or "no answer came"
        return ""

    async def _first_look(self) -> None:
        await self._nodes.answered.wait()
        while not (pods := self._pods).answered.is_set():  # it gives way to another where it is refused
            await pods.answered.wait()
        for watch in self.devices.watches:
            await watch.answered.wait()

    def _current(self, watches: Sequence[Watch[Node] | Watch[Pod]]) -> list[Watch[Node] | Watch[Pod]]:
        """Return the watches with that of the pods as it is by now: it may have given way to one that sees less."""
        return [watch if watch is self._nodes else self._pods for watch in watches]

    def _pods_at(self, path: str) -> Watch[Pod]:
        return Watch(self._api, path, {}, self._to_pod, self._pod_changed, self._settings)

    def _to_pod(self, data: Mapping[str, Any]) -> Pod | None:
        """Trim a pod. In other namespaces others make pods: what one says there of a lease of ours is not believed.

        Where each user has a namespace, and may have rights there, it is where our service has signed it.
        """
        pod = to_pod(data, self._named)
        if pod is None or not pod.hub or self.is_ours(pod):
            return pod
        return replace(pod, hub="", variables={}) if pod.requests or pod.claims else None

    def is_ours(self, pod: Pod) -> bool:
        """Whether what a pod says of a lease is a hub's own word."""
        if not self._settings.all_namespaces:
            return pod.namespace == self._settings.namespace
        return pod.hub != self._hub or self._believes(pod.lease, pod.variables)

    @property
    def _pods(self) -> Watch[Pod]:
        """The watch of the pods that are seen by now: all, or while that is refused those of one namespace."""
        narrowed = self._all_pods in self._told and not self._all_pods.complete and not self._settings.all_namespaces
        return self._pods_here if narrowed else self._all_pods

    async def _follow_pods(self) -> None:
        """Follow the pods of all namespaces or, while that is refused, those of the workspaces' own."""
        await self._all_pods.run(until_refused=True)
        if self._settings.all_namespaces:
            self._tell(
                self._all_pods,
                f"Pods are not seen in all namespaces ({self._all_pods.refused}), where workspaces are.",
            )
            await self._all_pods.allowed()
        else:
            self._tell(
                self._all_pods,
                f"Pods outside namespace {self._settings.namespace} are not seen ({self._all_pods.refused}): GPUs that "
                "they use look free, and a workspace that finds them taken keeps its place in the queue and is tried "
                "again. If that is not meant, give the service a ClusterRole with list and watch of pods, as in "
                "hub_config/kubernetes-service-rbac.yaml.",
            )
            await self._all_pods.allowed(self._pods_here)
        await self._all_pods.run()

    def _rules(self, collection: str, trim: Callable[..., T | None]) -> Watch[T]:
        path = f"/api/v1/namespaces/{self._settings.namespace}/{collection}"
        return Watch(
            self._api, path, {}, partial(trim, named=self._named), lambda _before, _after: None, self._settings
        )

    def _rule_watches(self) -> Sequence[tuple[str, Watch[Any]]]:
        """Return what bounds workspaces in their namespace: nothing where each user has one of their own."""
        rules: Sequence[tuple[str, Watch[Any]]] = (("Quotas", self._quotas), ("Limits", self._limits))
        return () if self._settings.all_namespaces else rules

    async def _follow_rules(self, what: str, watch: Watch[Any]) -> None:
        """Follow quotas or limits of the workspaces' namespace; refused, they are asked for every so often."""
        await watch.run(until_refused=True)
        self._tell(
            watch,
            f"{what} of namespace {self._settings.namespace} are not seen ({watch.refused}): what they leave "
            "out looks free, and the cluster refuses the workspaces that go beyond.",
        )
        await watch.allowed()
        await watch.run()

    def _tell(self, watch: Watch[Any], sentence: str) -> None:
        log.warning(sentence)
        self._told[watch] = sentence

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        if after is None:
            assert before is not None, "what is gone was there"
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
        self._beside.pop(NodeName("", name), None)
        pods = [*self.devices.pods(seen), *self.devices.others(name, seen)]
        gpus = gpus_of_node(node, pods, self._kinds, self._hub, self._settings.tolerations) if node else ()
        if gpus and node:
            self._gpus_of[name] = gpus
            self._size_of[name] = NodeSize(frozenset(gpu.pool for gpu in gpus), node.cpu, node.memory_bytes)
            if (host_resources := beside_on_node(node, pods, self._hub)) is not None:
                self._beside[NodeName("", name)] = host_resources
        else:
            self._gpus_of.pop(name, None)
            self._size_of.pop(name, None)
