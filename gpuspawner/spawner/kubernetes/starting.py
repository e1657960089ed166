"""The start of a pod: it is made once and watched for each change. A start that cannot succeed ends at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import ClientError
from jupyterhub.utils import url_path_join
from kubernetes_asyncio.client import ApiException
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from gpuspawner.catalog import Cluster
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.gpus.fleet import qualified_node_name
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.kubernetes.clusters import OtherCluster
from gpuspawner.spawner.kubernetes.manifests import START_MARK
from gpuspawner.spawner.kubernetes.pod_ends import (
    PodServer,
    message_of,
    outcome_of,
    refusal,
    restarts,
    why_ended,
)
from gpuspawner.spawner.kubernetes.pod_states import Stage, stage_of
from gpuspawner.spawner.kubernetes.volumes import PodVolumes
from gpuspawner.spawner.servers import LocalServer, is_known, listens
from gpuspawner.spawner.waiting import StartEnded, linked, send_heartbeats

if TYPE_CHECKING:
    from gpuspawner.spawner.mixin import GPUSpawnerMixin as _Base
else:
    # It stands before the mixin in the order of bases. `jupyterhub --help-all` lists each base that is a Configurable,
    # with all its settings again: only the mixin as a whole is one.
    from traitlets import HasTraits as _Base

POLL_SECONDS = 0.025
"""Interval between checks whether the server of a running pod listens. KubeSpawner's own check is up to 5 s late."""
EVENTS_SECONDS = 0.5
"""Interval between readings of events if the pod has not changed: they are among all events of the namespace."""
REQUEUE_SECONDS = 3.0
"""Time that a start with a deleted unschedulable pod waits until the service moves its lease."""
ASK_SECONDS = 1.0
"""Interval between attempts to make the pod."""
ANSWER_SECONDS = 1.0


class NoRoom(Exception):
    """The cluster had no room for a pod of this start, which queues again.

    ``why`` is the shortage, to report it to the service: the service observes neither a pod that was never made nor an
    evicted pod. ``node`` is the node without room, or "".
    """

    def __init__(self, why: str = "", node: str = "") -> None:
        """Take the report for the service. Empty if the service observes the shortage itself."""
        super().__init__(why)
        self.why, self.node = why, node


class PodStart(_Base):
    """The start of a pod, over KubeSpawner's."""

    _gpu_own_api: Any = None

    def _gpu_change_pod(self, **changes: Any) -> None:
        """Change fields of the record of this start's pod."""
        self._gpu_attempt = self._gpu_attempt.with_pod(**changes)

    @cached_property
    def _gpu_server(self) -> LocalServer:
        return PodServer(self)

    @cached_property
    def _gpu_pod_volumes(self) -> PodVolumes:
        return PodVolumes(self)

    @cached_property
    def _gpu_cluster(self) -> OtherCluster:
        return OtherCluster(self)

    @property
    def api(self) -> Any:
        """The API client of the workspace's cluster. For the hub's own cluster it is KubeSpawner's."""
        return self._gpu_own_api if self.gpu_in_cluster is None else self._gpu_cluster.api

    @api.setter
    def api(self, client: Any) -> None:
        self._gpu_own_api = client

    @property
    def gpu_in_cluster(self) -> Cluster | None:
        """The other cluster of this workspace, or None for the hub's own."""
        return self.gpu_catalog.clusters.get(self._gpu_attempt.cluster) if self._gpu_attempt.cluster else None

    def get_env(self) -> dict[str, str]:
        """Return the environment, with the hub's address for the other cluster."""
        return self._gpu_cluster.with_hub(super().get_env())

    async def _gpu_create(self) -> Any:
        """Make the pod and watch it: report each step, end a start that cannot succeed, queue again without room."""
        while True:
            self._gpu_attempt = self._gpu_attempt.with_new_pod(uuid.uuid4().hex)
            try:
                await self._gpu_cluster.open_client()
            except Unavailable as error:
                raise StartEnded(f"{error} Start it again.", reason="unavailable", status=503) from error
            if self.gpu_catalog.clusters:
                self._pvc_exists = False  # KubeSpawner remembers it, but each cluster has its own volume
            starting = asyncio.ensure_future(super()._gpu_create())
            try:
                return await self._gpu_watched(starting)
            except NoRoom as error:
                await _cancelled(starting)
                await self._gpu_ask_again(error)
            except ApiException as error:
                words = refusal(error.status, message_of(error))
                words = words or f"The cluster did not answer in time ({error.status} {error.reason}). Start it again."
                raise StartEnded(words, reason="refused", status=409) from error
            except (ClientError, OSError) as error:
                words = f"The cluster does not answer ({str(error) or 'time-out'}). Start it again."
                raise StartEnded(words, reason="unavailable", status=503) from error
            finally:
                await _cancelled(starting)

    async def _gpu_watched(self, starting: asyncio.Future[Any]) -> Any:
        """Return the server's address once it answers, or KubeSpawner's result at the end of the start's time."""
        limit, node_seconds = time.monotonic() + self._gpu_start_seconds(), self._gpu_node_seconds()
        seen, looked_at, ready_at = "", 0.0, 0.0
        stage, running = Stage(0, ""), False
        while True:
            # There is no event for a server that begins to listen: while its pod runs the server is polled.
            await self._gpu_pod_changes(starting, POLL_SECONDS if running else EVENTS_SECONDS)
            pod, now = self._gpu_own_pod(), time.monotonic()
            running = pod is not None and super().is_pod_running(pod)
            if starting.done() and (now >= limit or starting.cancelled() or starting.exception() is not None):
                return starting.result()
            if (pod is None and seen) or self._gpu_heartbeat_over():
                self._gpu_end_without_pod(pod, stage)
            version = pod["metadata"]["resourceVersion"] if pod is not None else ""
            if version != seen or now - looked_at >= EVENTS_SECONDS:
                before, seen, looked_at = stage, version, now
                self._gpu_change_pod(last_seen=pod)
                stage = self._gpu_stage(pod, now - (self._gpu_attempt.pod.made_at or now), node_seconds)
                html = linked(stage.words, stage.link, stage.link_text) if stage.link else ""
                self._gpu_step(stage.progress, stage.words, html, stage.stop)
                _end_on(stage, before, pod)
            if not running:
                ready_at = 0.0
            elif pod is not None and (self._gpu_attempt.pod.is_awaited or starting.done()):
                await self._gpu_cluster.find_address(pod)
                url = self._get_pod_url(pod)
                if await self._gpu_is_up(url, is_first_look=not ready_at):
                    self.pod_id = pod["metadata"]["uid"]
                    self._gpu_change_pod(restarts=restarts(pod))
                    return url
                ready_at = ready_at or now
                if time.monotonic() - ready_at >= self.http_timeout:
                    raise StartEnded(self._gpu_unanswered(url), reason="timeout", status=504)

    async def _gpu_pod_changes(self, starting: asyncio.Future[Any] | None, seconds: float) -> None:
        """Return when the pod of this start changes, when ``starting`` ends, or after these seconds."""
        reflector = self.pod_reflector
        if reflector is None:  # KubeSpawner makes it in the first start
            seconds = POLL_SECONDS
        change = asyncio.ensure_future(
            (reflector.next_change(self._gpu_pod_key()) if reflector else asyncio.Event()).wait()
        )
        other = {starting} if starting is not None and not starting.done() else set()
        try:
            await asyncio.wait({change, *other}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    def _gpu_stage(self, pod: Mapping[str, Any] | None, seconds: float, node_seconds: float) -> Stage:
        """Return the stage of this start, ``seconds`` after its pod was made."""
        trouble = getattr(self.pod_reflector, "trouble", "")
        if trouble:
            return Stage(52, f"The cluster does not show its pods ({trouble}); asking it again.")
        events = self._gpu_events_of(pod)
        if pod is not None and _is_deleted(pod) and outcome_of(pod, events) == "preempted":
            return Stage(55, why_ended(pod, events), shortage="lost")
        if (blocked := self._gpu_pod_volumes.blocked_stage(pod, events, seconds)) is not None:
            return blocked
        waits_in, answer_seconds = self._gpu_attempt.patch.get("waits_in", ""), self.http_timeout
        return stage_of(pod, events, seconds, self._gpu_attempt.pod.claim, node_seconds, waits_in, answer_seconds)

    def _gpu_unanswered(self, url: str) -> str:
        """Return why a start ends whose pod is ready but whose server never answered."""
        return (
            f"Its pod is ready, but its server did not answer at {urlsplit(url).netloc} within "
            f"{show_duration(self.http_timeout)} (c.Spawner.http_timeout). Its page shows the server's last output. "
            "If the server only needs longer, ask your administrator to raise that time."
        )

    def _gpu_end_without_pod(self, pod: Mapping[str, Any] | None, stage: Stage) -> None:
        """The pod was deleted or the service ended this start: raise NoRoom for a shortage, or else end the start."""
        if stage.shortage:
            raise NoRoom
        last = self._gpu_last_look() if pod is None else None
        why = why_ended(last, self._gpu_events_of(last))
        if last is not None and outcome_of(last, self._gpu_events_of(last)) == "preempted":
            raise NoRoom(why, str(last["spec"].get("nodeName", "")))
        raise StartEnded(f"{why or 'This start was ended from outside.'} Start it again.", reason="gone", status=409)

    def _gpu_heartbeat_over(self) -> bool:
        return self._gpu_heartbeat_task is not None and self._gpu_heartbeat_task.done()

    async def _gpu_ask_again(self, error: NoRoom) -> None:
        """Delete the pod, wait until the service has moved the lease, and wait for a place again."""
        self._gpu_step(30, f"{error.why or 'There was no room after all.'} You keep your place in the queue.")
        self._gpu_end_heartbeat()
        await self._gpu_delete_pod()
        if self._gpu_attempt.lease:
            await self._gpu_until_moved(error)
        if time.monotonic() >= self._gpu_attempt.waits_until:
            self._gpu_change(outcome="parked")
            message = "The cluster has no room after all. You keep your place in the queue; it starts by itself."
            raise StartEnded(message, reason="queued", status=409)
        if not self._gpu_attempt.lease:
            return
        await self._gpu_wait_for_grant()
        self._gpu_heartbeat_task = asyncio.create_task(send_heartbeats(self))

    async def _gpu_until_moved(self, shortage: NoRoom) -> None:
        """Return once the service has moved the lease back to its place, or after a limit."""
        until, client = time.monotonic() + REQUEUE_SECONDS, self._gpu_client()
        while time.monotonic() < until:
            try:
                if shortage.why:
                    node = shortage.node and qualified_node_name(self._gpu_attempt.cluster, shortage.node)
                    await client.requeue(*self._gpu_attempt.key, shortage.why, node)
                    return
                await client.heartbeat(*self._gpu_attempt.key)
            except Gone:
                return
            except (Conflict, Unavailable, RequestRefused) as error:
                self.log.info("the lease of %s is not known to be moved: %s", self._log_name, error)
            await asyncio.sleep(0.5)

    async def _gpu_delete_pod(self) -> None:
        """Delete the pod of this name with its grace and wait until it is gone. The hub did not request it."""
        by_hub = self._gpu_attempt.is_stopped_by_hub
        try:
            await self.stop()
        finally:
            self._gpu_change(is_stopped_by_hub=by_hub)

    async def _gpu_asked(self, ask: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Call the API server, repeatedly while it is away or busy, within the start's time limit."""
        while True:
            try:
                return await ask(*arguments)
            except (ClientError, OSError, asyncio.TimeoutError) as error:
                said = str(error) or "time-out"
            except ApiException as error:
                if refusal(error.status, message_of(error)):
                    raise
                said = f"{error.status} {error.reason}"
            self._gpu_step(51, f"The cluster does not answer ({said}); asking it again.")
            await asyncio.sleep(ASK_SECONDS)

    def is_pod_running(self, pod: Any) -> bool:
        """Note that the start has made everything. It only waits for its pod, and the watch is faster."""
        self._gpu_change_pod(is_awaited=True)
        return bool(super().is_pod_running(pod))

    def _gpu_as_json(self, pod: Any) -> Any:
        """Return a model of the client as plain JSON of the API."""
        return self.api.api_client.sanitize_for_serialization(pod)

    def _gpu_pod(self) -> Any:
        reflector = self.pod_reflector
        return None if reflector is None else reflector.pods.get(self._gpu_pod_key())

    def _gpu_pod_key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    def _gpu_own_pod(self) -> Any:
        pod = self._gpu_pod()
        mine = pod is not None and pod["metadata"].get("annotations", {}).get(START_MARK) == self._gpu_attempt.pod.mark
        return pod if mine else None

    def _gpu_last_look(self) -> Mapping[str, Any] | None:
        """Return the last observed state of this workspace's pod."""
        gone = getattr(self.pod_reflector, "gone", {}).get(self._gpu_pod_key())
        last = self._gpu_attempt.pod.last_seen
        if gone is not None and last is not None and gone["metadata"]["uid"] == last["metadata"]["uid"]:
            return gone  # type: ignore[no-any-return]
        return last

    def _gpu_events_of(self, pod: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
        """Return the events of this pod, oldest first. Empty if the administrator disabled events."""
        if pod is None or self.event_reflector is None:
            return []
        uid = pod["metadata"]["uid"]
        own = [e for e in self.event_reflector.resources.values() if e["involvedObject"].get("uid") == uid]
        return sorted(own, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    async def _gpu_is_up(self, url: str, *, is_first_look: bool) -> bool:
        """Return whether the hub may connect to the server at this address.

        Also true at the first check if the address is a name that does not resolve, for example of a new Service: the
        hub then tries it for ``http_timeout``, as it does with KubeSpawner.
        """
        return await self._gpu_answers(url) or (is_first_look and not await is_known(url))

    async def _gpu_answers(self, url: str) -> bool:
        """Return whether the server answers. The hub would check too, but seconds later."""
        if self.internal_ssl:
            return True  # only the hub has the certificates
        if not await listens(url):
            return False
        address = url_path_join(url, self.server.base_url, "api")
        try:
            await AsyncHTTPClient().fetch(address, request_timeout=ANSWER_SECONDS, follow_redirects=False)
        except HTTPClientError as error:
            return bool(error.code < HTTPStatus.INTERNAL_SERVER_ERROR) and not self._gpu_cluster.is_no_answer(
                error.code
            )
        except OSError:
            return False
        return True


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _end_on(stage: Stage, before: Stage, pod: Mapping[str, Any] | None) -> None:
    if stage.shortage == "lost":
        raise NoRoom(stage.words, str(pod["spec"].get("nodeName", "")) if pod is not None else "")
    if before.shortage and pod is not None and _is_deleted(pod):
        raise NoRoom  # the service deletes a pod without room; this is no failure
    if stage.fatal:
        raise StartEnded(stage.fatal, reason="cannot-start", status=409, link=stage.link, link_text=stage.link_text)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and take its exception, which is reported elsewhere."""
    task.cancel()
    await asyncio.wait({task}, timeout=1.0)
    if task.done() and not task.cancelled():
        task.exception()
