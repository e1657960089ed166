"""Workspaces as pods: the mixin over KubeSpawner and over each class derived from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import ClientError
from jupyterhub.utils import url_path_join
from kubernetes_asyncio.client import ApiException, CustomObjectsApi
from kubespawner import KubeSpawner
from traitlets import Bool, Dict, Enum, Float, Integer, Unicode, default

from gpuspawner.backends.kubernetes.pods import ANNOTATIONS, ATTEMPT_LABEL, HUB_LABEL, LEASE_LABEL
from gpuspawner.catalog import PodQueues
from gpuspawner.catalog.requests.profile_options import choices_of
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.gpus.pools import NODE_WAIT_FACTOR
from gpuspawner.spawner.kubernetes.clusters import WATCHES
from gpuspawner.spawner.kubernetes.manifests import (
    CLAIM_API,
    START_MARK,
    PodSettings,
    apply_changes,
    claim_of,
    find_contradiction,
    with_lease,
    with_owner,
)
from gpuspawner.spawner.kubernetes.pod_ends import (
    before_restart,
    has_ended,
    message_of,
    outcome_of,
    refusal,
    restarts,
    shortage,
    why_ended,
)
from gpuspawner.spawner.kubernetes.pod_states import short
from gpuspawner.spawner.kubernetes.starting import (
    ASK_SECONDS,
    EVENTS_SECONDS,
    POLL_SECONDS,
    NoRoom,
    PodStart,
)
from gpuspawner.spawner.kubernetes.volumes import with_template
from gpuspawner.spawner.mixin import FENCE_SECONDS, GPUSpawnerMixin
from gpuspawner.spawner.waiting import StartEnded


class KubePods(PodStart):
    """KubeSpawner's methods as each gpuspawner spawner of pods has them, before the mixin in the order of bases."""

    gpu_shared_memory_share = Float(
        0.5, min=0, max=1, help="The part of a workspace's memory that /dev/shm may take; 0: the runtime's 64 MiB."
    ).tag(config=True)
    gpu_grace_seconds = Integer(
        30, min=1, help="Between SIGTERM and SIGKILL when a workspace ends: time for programs to save."
    ).tag(config=True)
    gpu_restricted = Bool(
        default_value=True,
        help="Fill in what the restricted Pod Security Standard demands, where nothing else is set.",
    ).tag(config=True)
    gpu_placement = Enum(
        ["preferred", "required"],
        default_value="preferred",
        help="Whether a pod should run on the node of its grant, or must: then a pod that was faster sends it back.",
    ).tag(config=True)
    gpu_cluster = Dict(
        help="More of what the service is told of the cluster, by the names of ClusterSettings: "
        "{'context': 'other', 'probes_per_node': 8}. The rest follows KubeSpawner's own settings."
    ).tag(config=True)
    gpu_runtime_class = Unicode(
        help="The runtime class of pods with GPUs, where the cluster's default cannot use them."
    ).tag(config=True)

    image: str
    _gpu_image: tuple[str, str] | None = None
    """The template's image of the last start, and the image that it replaced."""

    async def _start_reflector(self, kind: str, reflector_class: Any, *args: Any, **kwargs: Any) -> Any:
        """Use our own watches, started once for all spawners: a cancelled start must not end them.

        A slow stop must not end them either. KubeSpawner would then make a new watch, and until its first list every
        pod would count as deleted and every start as ended. Our watches never give up.
        """
        await self._gpu_cluster.await_client()
        own_class = WATCHES.get(kind, reflector_class)
        once = {**kwargs, "replace": False} if kind in WATCHES else kwargs
        return await asyncio.shield(super()._start_reflector(kind, own_class, *args, **once))

    def _get_reflector_key(self, kind: str) -> Any:
        """Return the key of a watch. Each cluster has its own watches."""
        key = super()._get_reflector_key(kind)
        return key if self.gpu_in_cluster is None else (*key, self._gpu_attempt.cluster)

    def _get_pod_url(self, pod: Any) -> str:
        """Return a pod's address for the proxy, in any cluster."""
        return self._gpu_cluster.address(super()._get_pod_url(pod))

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        """Make the claim and remember it: the scheduler may observe the pod before the claim."""
        made = bool(await self._gpu_asked(super()._make_create_pvc_request, pvc, request_timeout))
        self._gpu_change_pod(claim=pvc.metadata.name if made else "")
        return made

    async def _ensure_namespace(self) -> None:
        await self._gpu_asked(super()._ensure_namespace)

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Make the pod unless a hook removed the lease from it. Repeat within the start's time limit.

        An existing pod is never killed with grace 0, as KubeSpawner would do: its container could run on unobserved, on
        the GPU that this start was granted.
        """
        manifest = self._gpu_as_json(pod)
        lost = find_contradiction(manifest, self._gpu_attempt.patch, self._gpu_attempt.pod.mark)
        if lost:
            raise StartEnded(f"This hub is set up wrongly: {lost}", reason="conflict", status=409)
        await self._gpu_pod_volumes.make_user_claims()
        await self._gpu_pod_volumes.wait_until_free(manifest)
        while not await self._gpu_is_made(pod, request_timeout):  # noqa: ASYNC110 - the cluster sends no event
            await asyncio.sleep(ASK_SECONDS)
        self._gpu_change_pod(made_at=time.monotonic())
        return True

    async def _gpu_is_made(self, pod: Any, request_timeout: float) -> bool:
        if self._gpu_attempt.lease and time.monotonic() - self._gpu_attempt.heard_at > FENCE_SECONDS:
            self._gpu_step(52, "The GPU service is away; the pod is made once it answers.")
            return False
        try:
            made = await asyncio.wait_for(self.api.create_namespaced_pod(self.namespace, pod), request_timeout)
        except (ClientError, OSError, asyncio.TimeoutError) as error:
            self._gpu_step(52, f"The cluster does not answer ({str(error) or 'time-out'}); asking it again.")
            return False
        except ApiException as error:
            if error.status == HTTPStatus.CONFLICT:
                return await self._gpu_is_mine_or_ends()
            said = message_of(error)
            if self._gpu_attempt.lease and (short_of := shortage(error.status, said)):
                raise NoRoom(short_of) from error
            if refusal(error.status, said):
                raise
            self._gpu_step(
                52, f"The cluster does not take the pod now ({error.status} {error.reason}); asking it again."
            )
            return False
        await self._gpu_claim(self._gpu_as_json(made))
        return True

    async def _gpu_claim(self, pod: Mapping[str, Any]) -> None:
        """Make the claim that a pod waits for. The pod owns it: the cluster deletes it with the pod."""
        claim = claim_of(self._gpu_attempt.patch, self._gpu_attempt.pod.mark)
        if not claim:
            return
        group, _, version = CLAIM_API.partition("/")
        objects = CustomObjectsApi(self.api.api_client)
        make = objects.create_namespaced_custom_object
        try:
            await self._gpu_asked(make, group, version, self.namespace, "resourceclaims", with_owner(claim, pod))
        except ApiException as error:
            if error.status == HTTPStatus.CONFLICT:  # the same claim: the first answer was lost
                return
            said = short(message_of(error))
            raise StartEnded(
                f"Its GPU cannot be claimed: {said} Your administrator must give the hub the rights of "
                "hub_config/kubernetes-claims-rbac.yaml; nothing was charged."
                if error.status == HTTPStatus.FORBIDDEN
                else f"Its GPU cannot be claimed: {said} Tell your administrator; nothing was charged.",
                reason="cannot-start",
                status=409,
            ) from error

    async def _gpu_is_mine_or_ends(self) -> bool:
        """A pod of this name exists: from our own request without an answer, or from an earlier start."""
        try:
            pod = self._gpu_as_json(await self._gpu_asked(self.api.read_namespaced_pod, self.pod_name, self.namespace))
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        if pod["metadata"].get("annotations", {}).get(START_MARK) == self._gpu_attempt.pod.mark:
            await self._gpu_claim(pod)
            return True
        hub = pod["metadata"].get("labels", {}).get(HUB_LABEL, self.gpu_hub_id)
        if hub != self.gpu_hub_id:
            where = f"{self.pod_name} in the namespace {self.namespace}"
            raise StartEnded(
                f"Another hub has a pod {where}, with the name of yours. Your administrator must write a "
                "c.KubeSpawner.pod_name_template that no other hub has, or delete that pod if its hub is gone.",
                reason="conflict",
                status=409,
            )
        self._gpu_step(52, "Your previous workspace's pod is still ending; this start waits for it.")
        await self._gpu_delete_pod()
        return False

    async def _make_delete_pod_request(self, *arguments: Any) -> bool:
        """Delete the pod. Return False, for another attempt, if the API server does not answer or is busy."""
        try:
            return bool(await super()._make_delete_pod_request(*arguments))
        except (ClientError, OSError) as error:
            self.log.warning("the cluster does not answer (%s): the end of %s waits", error, self._log_name)
        except ApiException as error:
            if refusal(error.status, message_of(error)):
                raise
            self.log.warning("the cluster is busy (%s): the end of %s waits", error.status, self._log_name)
        return False

    @default("delete_grace_period")
    def _gpu_delete_grace_period_default(self) -> int:
        return int(self.gpu_grace_seconds)

    async def load_user_options(self) -> None:
        """Apply profiles as KubeSpawner does, then the template's image: its user chose it."""
        if self._gpu_image is not None and self.image == self._gpu_image[0]:
            # A setting remains after its start, and the next template may have no image.
            self.image = self._gpu_image[1]
        request, asked = self._gpu_current_request(), self.user_options
        menu = self.gpu_catalog.menus.get(request.template)
        self.user_options = choices_of(menu, asked or {}) if menu else {}  # KubeSpawner's own options
        try:
            await super().load_user_options()
        except ValueError as error:  # a function as profile_list that no longer returns this profile
            message = f"This hub is set up wrongly: templates.{request.template}.profile: {error}"
            raise StartEnded(message, reason="conflict", status=409) from error
        finally:
            self.user_options = asked
        image = request.image
        self._gpu_image = (image, self.image) if image else None
        self.image = image or self.image

    def _gpu_patience_seconds(self) -> float:
        """Return the seconds that its pod may wait for a place. 0 if the catalog no longer has what was requested."""
        try:
            return self._gpu_pod_seconds(self._gpu_current_request())
        except RequestRefused:
            return 0.0

    def get_env(self) -> dict[str, str]:
        """Return the environment without the pod's annotations, with the pod's CPU and memory.

        JupyterHub shows KubeSpawner's settings for them, which are not the pod's.
        """
        request = self._gpu_current_request()
        return {
            **{name: value for name, value in super().get_env().items() if name not in ANNOTATIONS},
            "CPU_LIMIT": str(request.cpu_cores),
            "CPU_GUARANTEE": str(request.guaranteed_cpu_cores),
            "MEM_LIMIT": str(request.memory_bytes),
            "MEM_GUARANTEE": str(request.guaranteed_memory_bytes),
        }

    async def get_pod_manifest(self) -> Any:
        """Return KubeSpawner's manifest with the lease's patch. The administrator's hook is applied last."""
        pod = await super().get_pod_manifest()
        request = self._gpu_current_request()
        settings = PodSettings(
            cpu_cores=request.cpu_cores,
            memory_bytes=request.memory_bytes,
            guaranteed_cpu_cores=request.guaranteed_cpu_cores,
            guaranteed_memory_bytes=request.guaranteed_memory_bytes,
            shared_memory_bytes=int(request.memory_bytes * self.gpu_shared_memory_share),
            grace_seconds=self.gpu_grace_seconds,
            restricted=self.gpu_restricted,
            runtime_class=self.gpu_runtime_class,
            always_pull=request.own_image,
        )
        before = self._gpu_as_json(pod)
        try:
            template, claims = self._gpu_template(), self._gpu_pod_volumes.user_claims()
            own = with_template(before, template, self._gpu_volumes(), claims) if template else before
            after = with_lease(own, self._gpu_attempt.patch, settings, self._gpu_attempt.pod.mark)
        except Conflict as error:
            raise StartEnded(f"This hub is set up wrongly: {error}", reason="conflict", status=409) from error
        return apply_changes(pod, before, after, "V1Pod")

    def _gpu_know_by(self, pod: Mapping[str, Any]) -> None:
        """Take the lease from the pod if the hub ended before it saved the lease."""
        labels = pod["metadata"].get("labels", {})
        if not self._gpu_attempt.lease and labels.get(HUB_LABEL) == self.gpu_hub_id and LEASE_LABEL in labels:
            number = int(labels.get(ATTEMPT_LABEL, "0"))
            self._gpu_change(outcome="started", lease=labels[LEASE_LABEL], number=number)

    async def get_url(self) -> str:
        """Return the server's address. A starting hub calls this: then wait for a pod that was starting.

        Never raises: the hub would not check any other server then.
        """
        url = str(await super().get_url())
        if self._gpu_attempt.is_saved or not self._gpu_attempt.lease:
            return url
        begun = time.monotonic()
        waits_seconds = self._gpu_patience_seconds()
        node_seconds = 0.0 if isinstance(self.gpu_catalog.scheduler, PodQueues) else waits_seconds / NODE_WAIT_FACTOR
        limit, ready_at = self.start_timeout + waits_seconds, 0.0
        while time.monotonic() - begun < limit:
            pod = self._gpu_pod()
            if pod is None:
                break
            stage = self._gpu_stage(pod, time.monotonic() - begun, node_seconds)
            self._gpu_step(stage.progress, stage.words)
            if stage.fatal or stage.shortage == "lost":
                self._gpu_change(outcome="failed", message=stage.fatal or stage.words)
                break
            is_ready = super().is_pod_running(pod)
            ready_at = (ready_at or time.monotonic()) if is_ready else 0.0
            if is_ready:
                await self._gpu_cluster.find_address(pod)
            if is_ready and await self._gpu_answers(self._get_pod_url(pod)):
                self._gpu_change_pod(restarts=restarts(pod))
                self._gpu_attempt = self._gpu_attempt.started()
                self.orm_spawner.state = self.get_state()
                return str(url_path_join(self._get_pod_url(pod), self.server.base_url))
            if is_ready and time.monotonic() - ready_at >= self.http_timeout:
                self._gpu_change(outcome="failed", message=self._gpu_unanswered(self._get_pod_url(pod)))
                break
            await self._gpu_pod_changes(None, POLL_SECONDS if is_ready else EVENTS_SECONDS)
        return url

    async def poll(self) -> int | None:
        """Return whether the pod runs, and record for its user why it does not."""
        await self._start_watching_pods()
        if self.events_enabled:
            await self._start_watching_events()
        pod = self._gpu_pod()
        if pod is not None:
            self._gpu_know_by(pod)
            self._gpu_change_pod(last_seen=pod)
        known = self._gpu_attempt.is_saved and not self._gpu_attempt.output
        if pod is not None and known and (has_ended(pod) or self._gpu_is_restarted(pod)):
            await self._gpu_server.save_output()  # the pod is deleted next
        by_hub = self._gpu_attempt.is_stopped_by_hub
        status: int | None = 1
        if pod is not None and self._gpu_is_restarted(pod):
            pod = before_restart(pod)
            await self.stop()
        else:
            status = await super().poll()
        if status is not None:
            self._gpu_change(is_stopped_by_hub=by_hub)  # this poll may have stopped it, which is not the hub's stop
            if not self._gpu_attempt.message:
                last = pod or self._gpu_last_look()  # its state before that stop
                events = self._gpu_events_of(last)
                self._gpu_change(died_as=outcome_of(last, events), message=why_ended(last, events))
        return status

    def _gpu_is_restarted(self, pod: Mapping[str, Any]) -> bool:
        """Return whether the server has died and was restarted: its kernels are lost, and its user must know.

        Otherwise this would depend on whether the kubelet or a poll is first: KubeSpawner ends a dead server.
        """
        known = self._gpu_attempt.pod.restarts if self._gpu_attempt.is_saved else None
        if known is None:
            self._gpu_change_pod(restarts=restarts(pod))
            return False
        return restarts(pod) > known

    async def stop(self, now: bool = False) -> Any:  # noqa: ARG002 - the hub's signature
        """Stop with the configured grace, never without: an unobserved killed container could still use its GPU.

        If a node or an API server is away, the service ends the pod later. It keeps its GPUs until then.
        """
        try:
            await self._gpu_cluster.open_client()
            return await super().stop(now=False)
        except (TimeoutError, asyncio.TimeoutError, Unavailable):
            if not self._gpu_attempt.lease:
                raise
            self.log.warning("the pod of %s is not gone yet: the service sees to its end", self._log_name)


class GPUSpawner(KubePods, GPUSpawnerMixin, KubeSpawner):
    """KubeSpawner with GPU leases."""
