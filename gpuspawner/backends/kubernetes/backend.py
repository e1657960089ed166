"""The Kubernetes backend: workspaces are pods. Each probe is one exec in the workspace's pod."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from weakref import WeakValueDictionary

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.nodes import Interruption
from gpuspawner.backends.kubernetes.patches import WITH_GPUS, WITHOUT_GPUS, pod_patch, tolerations_json
from gpuspawner.backends.kubernetes.pods import HUB_LABEL, LEASE_LABEL, Pod, to_pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.view import ClusterView, LeaseCheck, accept_all
from gpuspawner.backends.probes.script import script
from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Group, Slot
from gpuspawner.core.gpus.vendors import NVIDIA, Vendor, vendor_of
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import GpuHealth
from gpuspawner.core.quotas.namespaces import NamespaceBounds
from gpuspawner.core.units import show_duration

MAX_OUTPUT_BYTES = 1024 * 1024
"""More output than this is a fault. 16 GPUs and 1,000 processes print a tenth of it."""


class _Slots:
    """Limits the number of probes, overall and on each node."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._overall = asyncio.Semaphore(settings.probes_at_once)
        self._per_node = settings.probes_per_node
        # Nodes come and go: an unused semaphore is dropped.
        self._on_node: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def acquire(self, node: str) -> AsyncIterator[None]:
        on_node = self._on_node.setdefault(node, asyncio.Semaphore(self._per_node))
        async with on_node, self._overall:
            yield


class Prober:
    """Runs probes, limited overall and on each node.

    A pod whose last probe failed may hang again until its deadline. Such pods wait for each other only.
    """

    def __init__(self, api: Api, settings: ClusterSettings) -> None:
        self._api, self._settings = api, settings
        self._script = script()
        self._slots, self._slow_slots = _Slots(settings), _Slots(settings)
        self._scripts = asyncio.Semaphore(settings.scripts_at_once)
        self._failed: set[str] = set()
        self._probing: set[str] = set()

    async def probe(self, pod: Pod, gpus: int, deadline_seconds: float) -> ProbeResult:
        """Probe a pod with this number of GPUs. Never raises: a failure is a result with ``problem``."""
        if pod.uid in self._probing:
            return ProbeResult(problem="the last probe has not ended yet")
        self._probing.add(pod.uid)
        try:
            async with (self._slow_slots if pod.uid in self._failed else self._slots).acquire(pod.node):
                result = await self._execute(
                    pod, self._stdin(pod, gpus, deadline_seconds), deadline_seconds, "the probe"
                )
        finally:
            self._probing.discard(pod.uid)
        (self._failed.add if result.problem else self._failed.discard)(pod.uid)
        return result

    async def run_script(self, pod: Pod, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run another script in a pod, with its own limit of connections. Never raises."""
        async with self._scripts:
            return await self._execute(pod, script, deadline_seconds, "the script")

    def forget_except(self, pods: Iterable[Pod]) -> None:
        """Forget the failures of all other pods."""
        if self._failed:
            self._failed &= {pod.uid for pod in pods}

    async def _execute(self, pod: Pod, stdin: bytes, deadline_seconds: float, what: str) -> ProbeResult:
        container = self._settings.container
        running = self._api.execute(pod.namespace, pod.name, container, ["/bin/sh", "-s"], stdin, MAX_OUTPUT_BYTES)
        try:
            ended = await asyncio.wait_for(running, deadline_seconds)
        except asyncio.TimeoutError:
            return ProbeResult(problem=f"{what} did not end within {deadline_seconds:g} s")
        except ApiRefused as error:
            return ProbeResult(problem=f"the cluster refused {what}: {error}")
        except Unavailable as error:
            return ProbeResult(problem=str(error))
        if ended.problem:
            return ProbeResult(problem=f"{what} failed: {ended.problem}")
        if ended.code != 0:
            said = quoted(ended.error_output.strip())
            return ProbeResult(problem=f"{what} failed with exit code {ended.code}: {said}")
        return ProbeResult(text=ended.output)

    def _stdin(self, pod: Pod, gpus: int, deadline_seconds: float) -> bytes:
        """Return the script with parameters before it and an exit after it, because an exec's stdin is never closed.

        A script continues after its client has gone. So a watchdog ends the probe with all its children at the
        deadline. Otherwise each probe would add one more nvidia-smi that hangs.

        The script ends the watchdog and waits for it. An orphan would be left to the container's first process, and few
        images have one that reaps orphans. After a day no process could be started there.
        """
        readings, vendor = self._settings.readings, vendor_of_pod(pod)
        parameters = {
            "GPUSPAWNER_PROBE_GPUS": "",
            "GPUSPAWNER_PROBE_READINGS": str(readings if gpus else 0),
            "GPUSPAWNER_PROBE_PAUSE": f"{min(self._settings.pause_seconds, deadline_seconds / (2 * readings)):.2f}",
            "GPUSPAWNER_PROBE_DEVICES": self._settings.devices if vendor is NVIDIA else vendor.open_files,
            "GPUSPAWNER_PROBE_VENDOR": vendor.name,
            "GPUSPAWNER_PROBE_CGROUP": "/sys/fs/cgroup",
            "GPUSPAWNER_PROBE_PIDS": "all",
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in parameters.items()]
        seconds = math.ceil(deadline_seconds)
        sleep = f"trap 'kill -9 $!; wait $!; exit' TERM; sleep {seconds} & wait $!"
        watch = f"({sleep}; kill -9 -$$ || kill -9 $$) </dev/null >/dev/null 2>&1 &"
        before = "\n".join([*lines, watch, "GPUSPAWNER_PROBE_WATCH=$!", ""])
        after = "kill $GPUSPAWNER_PROBE_WATCH\nwait $GPUSPAWNER_PROBE_WATCH 2>/dev/null\nexit 0\n"
        return before.encode() + self._script + b"\n" + after.encode()


def vendor_of_pod(pod: Pod) -> Vendor:
    """Return the vendor of a pod's GPUs: NVIDIA unless its resources tell otherwise."""
    return next(filter(None, map(vendor_of, pod.requests)), NVIDIA)


POLL_SECONDS = 0.2
"""Interval between checks whether a pod is gone."""


class KubernetesBackend:
    """The pods of one hub on one cluster.

    Args:
        kinds: the catalog's GPU kinds as a cluster has them (``cluster_kinds``).
        hub: the hub's id, a label of its pods. Pods of other hubs are foreign.
        settings: the settings of the cluster.
        is_signed: checks the lease of a pod that its user may have written.
    """

    def __init__(
        self, kinds: Iterable[GpuKind], hub: str, settings: ClusterSettings, is_signed: LeaseCheck = accept_all
    ) -> None:
        """Nothing is observed before the first ``fleet`` or ``workspaces``."""
        kinds = tuple(kinds)
        self._kinds = {kind.name: kind for kind in kinds}
        self._hub, self.settings = hub, settings
        self.api = Api(settings)
        self._view = ClusterView(self.api, settings, kinds, hub, is_signed)
        self._prober = Prober(self.api, settings)
        self._gpus: tuple[Gpu, ...] = ()
        self._interrupted: dict[str, Interruption] = {}

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """Tolerations of pods with GPUs, as JSON."""
        return tolerations_json(self.settings.tolerations)

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences for the administrator about objects that the service may not observe."""
        return self._view.limits

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match GPUs to these kinds. The resources that count as GPUs stay those of the service's start."""
        self._kinds = {kind.name: kind for kind in kinds}
        self._view.use_kinds(self._kinds.values())

    async def fleet(self) -> Fleet:
        """Return the GPUs of all nodes. Raises Unavailable if they are not observed now."""
        self._gpus = await self._view.gpus()
        return Fleet(
            self._gpus, complete=True, age_seconds=self._view.age_seconds, host_resources=self._view.host_resources
        )

    async def workspaces(self) -> tuple[Running, ...]:
        """Return the pods of workspaces that are not gone. Pods of other hubs hold foreign GPUs only.

        Raises:
            Unavailable: They are not observed now.
        """
        now = time.time()
        own = await self._view.own_pods()
        self._prober.forget_except(own)
        self._interrupted = {pod.uid: self._interrupted[pod.uid] for pod in own if pod.uid in self._interrupted}
        running = [self._running(pod, now) for pod in own if not pod.ended and pod.lease]
        others = [pod for pod in self._view.of_other_hubs() if not pod.ended and pod.lease]
        running += [replace(self._running(pod, now), given=()) for pod in others]
        return tuple(sorted(running, key=lambda r: (r.lease_id, r.attempt)))

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe in the workspace's container, which sees its own GPUs only."""
        pod = self._pod(lease_id, attempt)
        if pod is None:
            why = "the workspace has no running pod" if self._view.seen else "the cluster has not been observed yet"
            return ProbeResult(problem=why)
        result = await self._prober.probe(pod, len(leased), deadline_seconds)
        node = self._view.node(pod.node)
        if result.problem and node is not None and not node.ready:
            result = replace(result, problem=f"its node {pod.node} is not ready{_describe_loss(pod)}: {result.problem}")
        models = [node.model(resource) for resource in pod.requests] if node else []
        divided = any(model.is_divided for model in models)
        shared = divided or any(model.profile for model in models)  # replicas or slices
        return replace(result, counted=True, shared=shared, divided=divided, pod=PodName(pod.namespace, pod.name))

    async def gpu_health(self) -> Mapping[str, GpuHealth]:
        """Return nothing: only an exporter reads the health of GPUs on nodes."""
        return {}

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script in the workspace's container."""
        pod = self._pod(lease_id, attempt)
        if pod is None:
            return ProbeResult(problem="the workspace has no running pod")
        return await self._prober.run_script(pod, script, deadline_seconds)

    async def end(
        self,
        lease_id: str,
        attempts: frozenset[int] | None = None,
        slots: tuple[Slot, ...] = (),  # noqa: ARG002 - part of the interface
    ) -> bool:
        """Delete each pod of these attempts, and wait some time until they are gone.

        This asks the API server, not the view, which might miss a pod that was just created.

        Raises:
            Unavailable: The API server does not answer, or the service may not list or delete.
        """
        requested: set[str] = set()
        until = time.monotonic() + self.settings.gone_seconds
        while pods := await self._list_remaining(lease_id, attempts):
            for pod in pods:
                if pod.uid not in requested:
                    await self._delete(pod)
                    requested.add(pod.uid)
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def patch(
        self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = (), *, one_domain: bool = False
    ) -> dict[str, Any]:
        """Return the patch that requests the GPUs of these slots, on their node if possible."""
        node = self._view.node(slots[0].group.node) if one_domain and slots[0].group else None
        pod = pod_patch(
            slots,
            self._view.nodes,
            self._gpus,
            self._kinds,
            self.settings.tolerations,
            must_be_there=one_domain or self.settings.placement == "required",
            instead=instead,
            alike=node.domain_attribute if node else "",
        )
        patch = {"environment": dict(WITH_GPUS if slots else WITHOUT_GPUS), "path_prefix": "", "pod": pod}
        added = sorted({limit.resource for limit in self._view.room().limits if limit.added})
        return {**patch, "not_added": added} if added else patch

    def pods_of(self, lease_id: str) -> Sequence[Pod]:
        """Return the pods of one lease, as last observed."""
        return self._view.of_lease(lease_id)

    def room(self) -> NamespaceBounds:
        """Return the namespace's quotas and limits, as last observed."""
        return self._view.room()

    async def close(self) -> None:
        """Stop watching the cluster and close the connections."""
        await self._view.close()
        await self.api.close()

    def _pod(self, lease_id: str, attempt: int) -> Pod | None:
        """Return the pod of an attempt, None if unknown."""
        pods = [p for p in self._view.of_lease(lease_id) if p.attempt == attempt and p.node and not p.ended]
        return min(pods, key=lambda pod: pod.deleting, default=None)

    def _running(self, pod: Pod, now: float) -> Running:
        given = tuple((Group(pod.node, resource), count) for resource, count in sorted(pod.requests.items()))
        disruption, ends_in_seconds = self._find_disruption(pod, now)
        return Running(
            lease_id=pod.lease,
            attempt=pod.attempt,
            age_seconds=max(0.0, now - pod.created_at),
            environment=pod.variables,
            given=given if pod.node and not (pod.claims and not given) else None,  # its claim may be observed later
            waiting_seconds=self._view.refused_seconds(pod),
            waiting=pod.refusal,
            ending=pod.deleting,
            disruption=disruption,
            unhealthy=tuple(sorted({*pod.unhealthy, *self._view.devices.unhealthy(pod)})),
            uuids=self._view.devices.uuids(pod),
            ends_in_seconds=ends_in_seconds,
            # Users may have rights in a namespace of their own, so a pod's time there may be forged.
            kept_since=None if self.settings.all_namespaces else pod.created_at,
        )

    def _find_disruption(self, pod: Pod, now: float) -> tuple[str, float | None]:
        """Return why the cluster is about to end a pod, else "", and in how many seconds its server ends.

        A node may be removed before its pods, so its last interruption stays valid for them.
        """
        node = self._view.nodes.get(pod.node)
        interruption = node.interruption if node else self._interrupted.get(pod.uid)
        self._interrupted.pop(pod.uid, None)
        if interruption is not None:
            self._interrupted[pod.uid] = interruption
        if pod.disruption or pod.deleting or interruption is None:
            disruption = pod.disruption or (interruption.why if interruption else "")
            return disruption, None if pod.server_ends_at is None else pod.server_ends_at - now
        return interruption.why, interruption.ends_in_seconds

    async def _list_remaining(self, lease_id: str, attempts: frozenset[int] | None) -> Sequence[Pod]:
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
            if error.status not in {
                HTTPStatus.NOT_FOUND,
                HTTPStatus.CONFLICT,
            }:  # it is gone, or another pod has its name now
                raise Unavailable(f"The cluster does not delete the pod {pod.name}: {error}.") from error


def _describe_loss(pod: Pod) -> str:
    """Return when the cluster ends a pod of an unreachable node, in words. "" if it does not."""
    if pod.lost_seconds is None:
        return ""
    return f" (if it stays so for {show_duration(pod.lost_seconds)}, the cluster ends this workspace)"
