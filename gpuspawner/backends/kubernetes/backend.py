"""Workspaces as pods of a Kubernetes cluster: the backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.backends.base import PodName, ProbeResult, Running
from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.names import HUB_LABEL, LEASE_LABEL
from gpuspawner.backends.kubernetes.patches import WITH_GPUS, WITHOUT_GPUS, as_json, pod_patch
from gpuspawner.backends.kubernetes.probes import Prober
from gpuspawner.backends.kubernetes.reading.interruptions import Interruption
from gpuspawner.backends.kubernetes.reading.objects import Pod, to_pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.view import Believes, ClusterView, believe_all
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Group, Slot
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.core.units import show_duration

NOT_FOUND, CONFLICT = 404, 409
LOOK_SECONDS = 0.2
"""Between two looks whether a pod is gone."""


class KubernetesBackend:
    """The pods of one hub on one cluster.

    Args:
        kinds: the catalog's GPU kinds as a cluster has them (``kinds.cluster_kinds``).
        hub: the hub's id; its pods carry it as a label. Those of other hubs are foreign.
        settings: how to reach the cluster, and what to do there.
        believes: whether the service signed what a pod says of a lease, where its user may have written it.
    """

    def __init__(
        self, kinds: Iterable[GpuKind], hub: str, settings: ClusterSettings, believes: Believes = believe_all
    ) -> None:
        """Take the settings; the cluster is first looked at by ``fleet`` or ``workspaces``."""
        kinds = tuple(kinds)
        self._kinds = {kind.name: kind for kind in kinds}
        self._hub, self.settings = hub, settings
        self.api = Api(settings)
        self._view = ClusterView(self.api, settings, kinds, hub, believes)
        self._prober = Prober(self.api, settings)
        self._gpus: tuple[Gpu, ...] = ()
        self._interrupted: dict[str, Interruption] = {}

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """What pods with GPUs tolerate, as Kubernetes writes it."""
        return as_json(self.settings.tolerations)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the service may not see of the cluster, each in a sentence for the administrator."""
        return self._view.limits

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match GPUs to these kinds from now on. Which resources count as GPUs is asked of the cluster once."""
        self._kinds = {kind.name: kind for kind in kinds}
        self._view.use_kinds(self._kinds.values())

    async def fleet(self) -> Fleet:
        """Return the GPUs of all nodes. Raises Unavailable while they are not seen as they are now."""
        self._gpus = await self._view.gpus()
        return Fleet(
            self._gpus, complete=True, age_seconds=self._view.age_seconds, host_resources=self._view.host_resources
        )

    async def workspaces(self) -> tuple[Running, ...]:
        """Return the pods of workspaces, until they are gone. Those of other hubs hold foreign GPUs, and no others.

        Raises:
            Unavailable: they are not seen as they are now.
        """
        now = time.time()
        own = await self._view.own_pods()
        self._prober.forget_but(own)
        self._interrupted = {pod.uid: self._interrupted[pod.uid] for pod in own if pod.uid in self._interrupted}
        running = [self._running(pod, now) for pod in own if not pod.ended and pod.lease]
        others = [pod for pod in self._view.of_other_hubs() if not pod.ended and pod.lease]
        running += [replace(self._running(pod, now), given=()) for pod in others]
        return tuple(sorted(running, key=lambda r: (r.lease_id, r.attempt)))

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe in the workspace's container. It sees its own GPUs alone, whatever the lease calls them."""
        pod = self._pod(lease_id, attempt)
        if pod is None:
            why = "no running pod of the workspace was found" if self._view.seen else "the cluster is not seen yet"
            return ProbeResult(problem=why)
        result = await self._prober.probe(pod, len(leased), deadline_seconds)
        node = self._view.node(pod.node)
        if result.problem and node is not None and not node.ready:
            result = replace(result, problem=f"its node {pod.node} is not ready{_next(pod)}: {result.problem}")
        models = [node.model(resource) for resource in pod.requests] if node else []
        divided = any(model.is_divided for model in models)
        shared = divided or any(model.profile for model in models)  # replicas, and slices of one device
        return replace(result, counted=True, shared=shared, divided=divided, pod=PodName(pod.namespace, pod.name))

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run it in the workspace's container."""
        pod = self._pod(lease_id, attempt)
        if pod is None:
            return ProbeResult(problem="no running pod of the workspace was found")
        return await self._prober.run_script(pod, script, deadline_seconds)

    async def end(
        self,
        lease_id: str,
        attempts: frozenset[int] | None = None,
        slots: tuple[Slot, ...] = (),  # noqa: ARG002 - the seam's
    ) -> bool:
        """Delete every pod of these attempts, and wait a while to see them gone.

        The API server is asked, not the view: a pod that was made a moment ago must not be missed.

        Raises:
            Unavailable: the API server does not answer, or does not let the service look or delete.
        """
        asked: set[str] = set()
        until = time.monotonic() + self.settings.gone_seconds
        while pods := await self._left(lease_id, attempts):
            for pod in pods:
                if pod.uid not in asked:
                    await self._delete(pod)
                    asked.add(pod.uid)
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def patch(self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = ()) -> dict[str, Any]:
        """Return what makes the cluster give a pod as many GPUs of that kind, on that node if it can."""
        pod = pod_patch(
            slots,
            self._view.nodes,
            self._gpus,
            self._kinds,
            self.settings.tolerations,
            must_be_there=self.settings.placement == "required",
            instead=instead,
        )
        return {"environment": dict(WITH_GPUS if slots else WITHOUT_GPUS), "path_prefix": "", "pod": pod}

    def pods_of(self, lease_id: str) -> Sequence[Pod]:
        """Return the pods of one lease as they were last seen."""
        return self._view.of_lease(lease_id)

    def room(self) -> NamespaceBounds:
        """Return what quotas and limits of the workspaces' namespace say, as they were last seen."""
        return self._view.room()

    async def close(self) -> None:
        """Follow the cluster no longer, and close the connections."""
        await self._view.close()
        await self.api.close()

    def _pod(self, lease_id: str, attempt: int) -> Pod | None:
        """Return the pod in which an attempt runs, None where none is seen."""
        pods = [p for p in self._view.of_lease(lease_id) if p.attempt == attempt and p.node and not p.ended]
        return min(pods, key=lambda pod: pod.deleting, default=None)

    def _running(self, pod: Pod, now: float) -> Running:
        given = tuple((Group(pod.node, resource), count) for resource, count in sorted(pod.requests.items()))
        disruption, ends_in_seconds = self._end_of(pod, now)
        return Running(
            lease_id=pod.lease,
            attempt=pod.attempt,
            age_seconds=max(0.0, now - pod.created_at),
            environment=pod.variables,
            given=given if pod.node and not (pod.claims and not given) else None,  # a claim may be seen after its pod
            waiting_seconds=self._view.refused_seconds(pod),
            waiting=pod.refusal,
            ending=pod.deleting,
            disruption=disruption,
            unhealthy=tuple(sorted({*pod.unhealthy, *self._view.devices.unhealthy(pod)})),
            uuids=self._view.devices.uuids(pod),
            ends_in_seconds=ends_in_seconds,
            # Users may have rights in a namespace of their own: what a pod says there may be theirs.
            kept_since=None if self.settings.all_namespaces else pod.created_at,
        )

    def _end_of(self, pod: Pod, now: float) -> tuple[str, float | None]:
        """Return why the cluster is about to end a pod, "" where it is not, and in how many seconds its server ends.

        A node goes before its pods do: what its taints told of them holds on.
        """
        node = self._view.nodes.get(pod.node)
        told = node.interruption if node else self._interrupted.get(pod.uid)
        self._interrupted.pop(pod.uid, None)
        if told is not None:
            self._interrupted[pod.uid] = told
        if pod.disruption or pod.deleting or told is None:
            disruption = pod.disruption or (told.why if told else "")
            return disruption, None if pod.server_ends_at is None else pod.server_ends_at - now
        return told.why, told.ends_in_seconds

    async def _left(self, lease_id: str, attempts: frozenset[int] | None) -> Sequence[Pod]:
        namespace = "" if self.settings.all_namespaces else f"namespaces/{self.settings.namespace}/"
        query = {"labelSelector": f"{HUB_LABEL}={self._hub},{LEASE_LABEL}={lease_id}"}
        try:
            listed = await self.api.get(f"/api/v1/{namespace}pods", query)
        except ApiRefused as error:
            raise Unavailable(f"The cluster does not list the pods of {lease_id}: {error}.") from error
        pods = [to_pod(item) for item in listed["items"]]
        own = (pod for pod in pods if pod is not None and self._view.is_ours(pod))
        return [pod for pod in own if attempts is None or pod.attempt in attempts]

    async def _delete(self, pod: Pod) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if self.settings.grace_seconds is not None:
            options["gracePeriodSeconds"] = self.settings.grace_seconds
        try:
            await self.api.delete(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", options)
        except ApiRefused as error:
            if error.status not in {NOT_FOUND, CONFLICT}:  # gone, or another pod of that name: this one is gone
                raise Unavailable(f"The cluster does not delete the pod {pod.name}: {error}.") from error


def _next(pod: Pod) -> str:
    """Return what comes next for a pod whose node is not heard of, in words; "" where nothing does."""
    if pod.lost_seconds is None:
        return ""
    return f" (if it stays so for {show_duration(pod.lost_seconds)}, the cluster ends this workspace)"
