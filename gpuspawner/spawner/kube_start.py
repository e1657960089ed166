"""How a pod starts: made once, watched at each change, ended at once on what cannot start."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError
from jupyterhub.utils import url_path_join
from kubernetes_asyncio.client import ApiException
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from gpuspawner.backends.kubernetes.names import HUB_LABEL
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.spawner.mixin import FENCE_SECONDS, GPUSpawnerMixin
from gpuspawner.spawner.pod import START_MARK, contradiction
from gpuspawner.spawner.pod_end import outcome_of, restarts, why_ended
from gpuspawner.spawner.pod_refused import refusal, shortage
from gpuspawner.spawner.pod_start import Verdict, judge, short
from gpuspawner.spawner.pod_watches import WATCHES
from gpuspawner.spawner.refusals import ended

LOOK_SECONDS = 0.025
"""How often a start looks at what the watch brought, and whether its server listens: 0.1 ms of work. KubeSpawner's own
look comes up to 5 s late."""
JUDGE_SECONDS = 0.5
"""How often a start reads its events where its pod did not change: they are looked for among all of the namespace."""
REQUEUE_SECONDS = 3.0
"""How long a start whose unschedulable pod was deleted waits for the service to move its lease."""
ASK_SECONDS = 1.0
"""Between two tries to make the pod."""
ANSWER_SECONDS = 1.0
SERVER_ERROR = 500


class NoRoom(Exception):
    """The cluster had no room for a pod of this start, which asks for a place again.

    ``why`` says what was short, where the service is to be told: it sees no pod that was never made, and none that its
    node threw out. ``node`` is the node that had none, "" where that has no part.
    """

    def __init__(self, why: str = "", node: str = "") -> None:
        """Take what the service is to be told; nothing where it sees by itself that there is no room."""
        super().__init__(why)
        self.why, self.node = why, node


class PodStart(GPUSpawnerMixin):
    """The start of a pod, over KubeSpawner's."""

    _gpu_mark = ""
    _gpu_claim = ""
    """The claim that this start made, or found made when it would have."""
    _gpu_made_at: float | None = None
    _gpu_reached = False
    _gpu_until = 0.0
    _gpu_last_pod: Mapping[str, Any] | None = None
    _gpu_restarts: int | None = None
    """How often the server had been started again when it answered first; None where that is not known."""

    async def _wait_for_grant(self, until: float) -> None:
        self._gpu_until = until
        await super()._wait_for_grant(until)

    async def _create(self) -> Any:
        """Make the pod and watch it: tell each step, end at once on what cannot start, queue again where no room is."""
        while True:
            self._gpu_mark, self._gpu_made_at, self._gpu_reached = uuid.uuid4().hex, None, False
            self._gpu_last_pod, self._gpu_claim = None, ""
            starting = asyncio.ensure_future(super()._create())
            try:
                return await self._watched(starting)
            except NoRoom as error:
                await _cancelled(starting)
                await self._ask_again(error)
            except ApiException as error:
                words = refusal(error.status, message_of(error))
                words = words or f"The cluster did not answer in time ({error.status} {error.reason}). Start it again."
                raise ended(words, reason="refused", status=409) from error
            except (ClientError, OSError) as error:
                words = f"The cluster does not answer ({str(error) or 'time-out'}). Start it again."
                raise ended(words, reason="unavailable", status=503) from error
            finally:
                await _cancelled(starting)

    async def _watched(self, starting: asyncio.Future[Any]) -> Any:
        """Return the server's address once it answers, or when the start's time is over."""
        limit, node_seconds = time.monotonic() + self._start_seconds(), self._node_seconds()
        seen, judged_at = "", 0.0
        verdict = Verdict(0, "")
        while True:
            await (asyncio.sleep(LOOK_SECONDS) if starting.done() else asyncio.wait({starting}, timeout=LOOK_SECONDS))
            pod, now = self._own_pod(), time.monotonic()
            running = pod is not None and super().is_pod_running(pod)
            if starting.done() and (now >= limit or starting.cancelled() or starting.exception() is not None):
                return starting.result()
            if (pod is None and seen) or self._heartbeat_over():
                self._end_without_pod(pod, verdict)
            version = pod["metadata"]["resourceVersion"] if pod is not None else ""
            if version != seen or now - judged_at >= JUDGE_SECONDS:
                before, seen, judged_at, self._gpu_last_pod = verdict, version, now, pod
                verdict = self._judged(pod, now - (self._gpu_made_at or now), node_seconds)
                self._step(verdict.progress, verdict.words)
                _end_on(verdict, before, pod)
            if pod is not None and running and (self._gpu_reached or starting.done()):
                url = self._get_pod_url(pod)
                if await self._answers(url):
                    self.pod_id, self._gpu_restarts = pod["metadata"]["uid"], restarts(pod)
                    return url

    def _judged(self, pod: Mapping[str, Any] | None, seconds: float, node_seconds: float) -> Verdict:
        """Return where this start stands, ``seconds`` after its pod was made."""
        trouble = getattr(self.pod_reflector, "trouble", "")
        if trouble:
            return Verdict(52, f"The cluster does not show its pods ({trouble}); asking it again.")
        events = self._events_of(pod)
        if pod is not None and _is_deleted(pod) and outcome_of(pod, events) == "preempted":
            return Verdict(55, why_ended(pod, events), shortage="lost")
        return judge(pod, events, seconds, self._gpu_claim, node_seconds)

    def _end_without_pod(self, pod: Mapping[str, Any] | None, verdict: Verdict) -> None:
        """The pod was deleted, or the service says that this start is over: for want of room, or in earnest."""
        if verdict.shortage:
            raise NoRoom
        last = self._last_look() if pod is None else None
        why = why_ended(last, self._events_of(last))
        if last is not None and outcome_of(last, self._events_of(last)) == "preempted":
            raise NoRoom(why, str(last["spec"].get("nodeName", "")))
        raise ended(f"{why or 'This start was ended from outside.'} Start it again.", reason="gone", status=409)

    def _heartbeat_over(self) -> bool:
        return self._gpu_heartbeat is not None and self._gpu_heartbeat.done()

    async def _ask_again(self, error: NoRoom) -> None:
        """Let the pod go, wait until the service has moved the lease, and wait for a place again."""
        self._step(30, f"{error.why or 'There was no room after all.'} You keep your place in the queue.")
        if self._gpu_heartbeat is not None:
            self._gpu_heartbeat.cancel()
        await self._delete_pod()
        if self._gpu_lease:
            await self._until_moved(error)
        if time.monotonic() >= self._gpu_until:
            self._gpu_outcome = "parked"
            message = "The cluster has no room after all. You keep your place in the queue; it starts by itself."
            raise ended(message, reason="queued", status=409)
        if not self._gpu_lease:
            return
        await self._wait_for_grant(self._gpu_until)
        self._gpu_heartbeat = asyncio.create_task(self._heartbeat())

    async def _until_moved(self, shortage: NoRoom) -> None:
        """Return once the service has moved the lease back to its place, or does not for long."""
        until, client = time.monotonic() + REQUEUE_SECONDS, self._client()
        while time.monotonic() < until:
            try:
                if shortage.why:
                    await client.requeue(self._gpu_lease, self._gpu_attempt, shortage.why, shortage.node)
                    return
                await client.heartbeat(self._gpu_lease, self._gpu_attempt)
            except Gone:
                return
            except (Conflict, Unavailable, RequestRefused) as error:
                self.log.info("the lease of %s is not known to be moved: %s", self._log_name, error)
            await asyncio.sleep(0.5)

    async def _delete_pod(self) -> None:
        """Delete the pod of this name with its grace, and wait until it is gone. The hub did not ask for it."""
        asked_by_hub = self._gpu_stop_called
        try:
            await self.stop()
        finally:
            self._gpu_stop_called = asked_by_hub

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        """Make the claim, and remember it: the scheduler may see the pod before it sees the claim."""
        made = bool(await self._asked(super()._make_create_pvc_request, pvc, request_timeout))
        self._gpu_claim = pvc.metadata.name if made else ""
        return made

    async def _ensure_namespace(self) -> None:
        await self._asked(super()._ensure_namespace)

    async def _asked(self, ask: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Ask the API server, again while it is away or busy, as long as this start may take."""
        while True:
            try:
                return await ask(*arguments)
            except (ClientError, OSError, asyncio.TimeoutError) as error:
                said = str(error) or "time-out"
            except ApiException as error:
                if refusal(error.status, message_of(error)):
                    raise
                said = f"{error.status} {error.reason}"
            self._step(51, f"The cluster does not answer ({said}); asking it again.")
            await asyncio.sleep(ASK_SECONDS)

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Make the pod, unless a hook took the lease off it; asks again as long as this start may take.

        An existing pod is never killed with grace 0, as KubeSpawner would: its container could outlive it unseen,
        on the GPU that this start was granted.
        """
        lost = contradiction(self.as_json(pod), self._gpu_patch, self._gpu_mark)
        if lost:
            raise ended(f"This hub is set up wrongly: {lost}", reason="conflict", status=409)
        while not await self._is_made(pod, request_timeout):  # noqa: ASYNC110 - the cluster is asked, nobody tells
            await asyncio.sleep(ASK_SECONDS)
        self._gpu_made_at = time.monotonic()
        return True

    async def _is_made(self, pod: Any, request_timeout: float) -> bool:
        if self._gpu_lease and time.monotonic() - self._gpu_heard_at > FENCE_SECONDS:
            self._step(52, "The GPU service is away; the pod is made once it answers.")
            return False
        try:
            await asyncio.wait_for(self.api.create_namespaced_pod(self.namespace, pod), request_timeout)
        except (ClientError, OSError, asyncio.TimeoutError) as error:
            self._step(52, f"The cluster does not answer ({str(error) or 'time-out'}); asking it again.")
            return False
        except ApiException as error:
            if error.status == 409:  # noqa: PLR2004 - HTTP's own number
                return await self._is_mine_or_ends()
            said = message_of(error)
            if self._gpu_lease and (short_of := shortage(error.status, said)):
                raise NoRoom(short_of) from error
            if refusal(error.status, said):
                raise
            self._step(52, f"The cluster does not take the pod now ({error.status} {error.reason}); asking it again.")
            return False
        return True

    async def _is_mine_or_ends(self) -> bool:
        """A pod of this name is there: made by a request of ours that was not answered, or left from before."""
        try:
            pod = self.as_json(await self._asked(self.api.read_namespaced_pod, self.pod_name, self.namespace))
        except ApiException as error:
            if error.status == 404:  # noqa: PLR2004 - HTTP's own number
                return False
            raise
        if pod["metadata"].get("annotations", {}).get(START_MARK) == self._gpu_mark:
            return True
        hub = pod["metadata"].get("labels", {}).get(HUB_LABEL, self.gpu_hub_id)
        if hub != self.gpu_hub_id:
            where = f"{self.pod_name} in the namespace {self.namespace}"
            raise ended(
                f"Another hub has a pod {where}, and this one takes it for its user's. Your administrator must write a "
                "c.KubeSpawner.pod_name_template that no other hub has, or delete that pod if its hub is no more.",
                reason="conflict",
                status=409,
            )
        self._step(52, "Your previous workspace's pod is still ending; this start waits for it.")
        await self._delete_pod()
        return False

    def is_pod_running(self, pod: Any) -> bool:
        """Note that the start has nothing left to make: it only waits for its pod, which the watch sees sooner."""
        self._gpu_reached = True
        return bool(super().is_pod_running(pod))

    def as_json(self, pod: Any) -> Any:
        """Return a model of the client as plain JSON of the API."""
        return self.api.api_client.sanitize_for_serialization(pod)

    def _pod(self) -> Any:
        reflector = self.pod_reflector
        return None if reflector is None else reflector.pods.get(f"{self.namespace}/{self.pod_name}")

    def _own_pod(self) -> Any:
        pod = self._pod()
        mine = pod is not None and pod["metadata"].get("annotations", {}).get(START_MARK) == self._gpu_mark
        return pod if mine else None

    async def _start_reflector(self, kind: str, reflector_class: Any, *args: Any, **kwargs: Any) -> Any:
        """Watch by our own watches, begun once for all spawners: one start that is cancelled must not end them.

        Nor does a stop that takes long, after which KubeSpawner makes the watch anew: until a new one has listed, every
        pod would be taken for gone, and each start for ended. Ours never gives up.
        """
        own_class = WATCHES.get(kind, reflector_class)
        once = {**kwargs, "replace": False} if kind in WATCHES else kwargs
        return await asyncio.shield(super()._start_reflector(kind, own_class, *args, **once))

    def _why_ended(self) -> str:
        """Return why the pod of this workspace ended, by how it looked last; "" where nothing tells."""
        last = self._last_look()
        return why_ended(last, self._events_of(last))

    def _last_look(self) -> Mapping[str, Any] | None:
        """Return how the pod of this workspace looked last."""
        gone = getattr(self.pod_reflector, "gone", {}).get(f"{self.namespace}/{self.pod_name}")
        last = self._gpu_last_pod
        if gone is not None and last is not None and gone["metadata"]["uid"] == last["metadata"]["uid"]:
            return gone  # type: ignore[no-any-return]
        return last

    def _events_of(self, pod: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
        """Return the events of this very pod, oldest first; none where the administrator switched events off."""
        if pod is None or self.event_reflector is None:
            return []
        uid = pod["metadata"]["uid"]
        own = [e for e in self.event_reflector.resources.values() if e["involvedObject"].get("uid") == uid]
        return sorted(own, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    async def _answers(self, url: str) -> bool:
        """Whether the server answers at all. The hub would look too, but seconds later."""
        if self.internal_ssl:
            return True  # with certificates that only the hub has at hand
        if not await _listens(url):
            return False
        address = url_path_join(url, self.server.base_url, "api")
        try:
            await AsyncHTTPClient().fetch(address, request_timeout=ANSWER_SECONDS, follow_redirects=False)
        except HTTPClientError as error:
            return bool(error.code < SERVER_ERROR)
        except OSError:
            return False
        return True


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _end_on(verdict: Verdict, before: Verdict, pod: Mapping[str, Any] | None) -> None:
    if verdict.shortage == "lost":
        raise NoRoom(verdict.words, str(pod["spec"].get("nodeName", "")) if pod is not None else "")
    if before.shortage and pod is not None and _is_deleted(pod):
        raise NoRoom  # the service deletes a pod that finds no room, and that is no failure
    if verdict.fatal:
        raise ended(verdict.fatal, reason="cannot-start", status=409)


async def _listens(url: str) -> bool:
    """Whether something takes connections there: a sixth of a request's work, and nearly all of the looks end so."""
    place = urlsplit(url)
    connecting = asyncio.open_connection(place.hostname, place.port or (443 if place.scheme == "https" else 80))
    try:
        _, writer = await asyncio.wait_for(connecting, ANSWER_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """End a task and take what it raises: its end is told elsewhere."""
    task.cancel()
    await asyncio.wait({task}, timeout=1.0)
    if task.done() and not task.cancelled():
        task.exception()


def message_of(error: ApiException) -> str:
    """Return what the API server said."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return short(str(error.reason))
