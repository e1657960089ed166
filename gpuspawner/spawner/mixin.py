"""The mixin over any spawner class: asks for a lease, waits with progress, starts, reports the end."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import isoformat
from traitlets import Float, Unicode

from gpuspawner.catalog import SSH, PodQueues, default_url
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.gpus.autoscale import PATIENCE, patience_seconds
from gpuspawner.core.leases.release import Release
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.attempt import Attempt
from gpuspawner.spawner.client import LeaseClient
from gpuspawner.spawner.refusals import ended_start, log_in_one_line
from gpuspawner.spawner.server_output import ServerOutput
from gpuspawner.spawner.steps import Steps
from gpuspawner.spawner.unheard import hub_shuts_down, leave, tell_later
from gpuspawner.spawner.within import within

HEARTBEAT_SECONDS = 10.0
FENCE_SECONDS = 20.0
"""Nothing is created unless a heartbeat was acknowledged within this (design, section 6)."""
RETRY_SECONDS = 1.0
AWAY_SECONDS = 10.0
"""With the service away for this long, a request without a GPU starts without a lease: it is adopted later."""
WITHOUT_GPU = {"environment": {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}}
WAITING = frozenset({"queued", "parked"})
SSH_VARIABLE = "GPUSPAWNER_SSH"
"""Set in workspaces whose template opens SSH: `gpuspawner.workspace` lets nobody in without it."""

REPOSITORY_VARIABLE = "GPUSPAWNER_REPOSITORY"
"""Which repository `gpuspawner.workspace` clones into the home."""
TOOLS_VARIABLE = "GPUSPAWNER_TOOLS"
"""Which packages `gpuspawner.workspace` makes kernels of: JSON, the template's name and packages by tool."""


class GPUSpawnerMixin(ServerOutput):
    """What every gpuspawner spawner adds to the class it stands before in the order of bases."""

    user_options: dict[str, Any]
    start_timeout: int

    wait_in_hub_seconds = Float(
        120.0, min=0, help="How long start() waits for a GPU before the place is kept without it."
    ).tag(config=True)
    gpu_service_url = Unicode(help="Where the service is, with its prefix. Set by configure().").tag(config=True)
    gpu_hub_id = Unicode(help="This hub's id. Set by configure().").tag(config=True)
    gpu_boot_id = Unicode(help="This hub process. Set by configure().").tag(config=True)

    _gpu_heartbeat: asyncio.Task[None] | None = None

    def __init__(self, **kwargs: Any) -> None:
        """Keep the steps of a start for its progress page."""
        super().__init__(**kwargs)
        log_in_one_line(self.log)
        self._gpu_steps = Steps()

    def _client(self) -> LeaseClient:
        client = LeaseClient(self.gpu_service_url, bytes.fromhex(self.gpu_secret()))
        if self.gpu_folder != Path(self.gpu_secret_file).parent:
            tell_later(self.gpu_folder, client)
        return client

    def _step(self, progress: int, message: str, html: str = "", stop: str = "") -> None:
        self._gpu_steps.tell(progress, message, html, stop)

    def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step of this start, those before the listener came included, until ``start()`` ends."""
        return self._gpu_steps.follow()

    def _forget_steps(self) -> None:
        """Let who follows a start that is over go: who comes from now on follows the next one."""
        self._gpu_steps.end()
        self._gpu_steps = Steps()

    async def run_pre_spawn_hook(self) -> None:
        """Validate before anything else, and give the start the time to wait; then the administrator's own hook."""
        self._begin_attempt()
        await self.gpu_follow_catalog()
        try:
            self._request()
        except RequestRefused as error:
            # The hub saved the options before anybody saw them: the next plain start must not meet them again.
            self.user_options = self.orm_spawner.user_options = {}
            raise ended_start(str(error), reason="refused", status=error.status) from error
        result = super().run_pre_spawn_hook()
        if asyncio.iscoroutine(result):
            await result
        try:
            request = self._request()
        except RequestRefused as error:
            message = f"This hub is set up wrongly: its pre_spawn_hook asks for what cannot be had: {error}"
            raise ended_start(message, reason="conflict", status=409) from error
        self._attempt = self._attempt.with_own_timeout(self.start_timeout)
        pod_seconds = self._pod_seconds(request)
        self.start_timeout = int(
            self.start_timeout + self.http_timeout + self.wait_in_hub_seconds + FENCE_SECONDS + pod_seconds
        )

    def _pod_seconds(self, request: Request) -> float:
        """Return for how long its pod may wait for a node that is started for it, or in a queue of the cluster."""
        return max(patience_seconds(self.catalog.gpus.get(request.gpu or "")), self._queue_seconds(request))

    def _queue_seconds(self, request: Request) -> float:
        """Return for how long its pod may wait in a queue of the cluster; 0 where it waits in none."""
        queues = self.catalog.scheduler
        return queues.wait_seconds if isinstance(queues, PodQueues) and request.gpu else 0.0

    def _begin_attempt(self) -> None:
        """Replace all that is known of the start before, which may have ended anywhere."""
        self._end_heartbeat()
        self._restore_timeout()
        self._attempt = Attempt()
        if self._gpu_steps.told:
            self._forget_steps()

    def _end_heartbeat(self) -> None:
        if self._gpu_heartbeat is not None:
            self._gpu_heartbeat.cancel()
            self._gpu_heartbeat = None

    def _restore_timeout(self) -> None:
        own_seconds = self._attempt.own_timeout_seconds
        if own_seconds is not None:
            self.start_timeout, self._attempt = own_seconds, self._attempt.with_own_timeout(None)

    async def start(self) -> Any:
        """Wait for a lease, then start the server on its GPUs."""
        self._attempt = self._attempt.in_flight(time.monotonic() + self.wait_in_hub_seconds)
        try:
            await self._wait_for_grant()
            if self._attempt.lease:
                self._gpu_heartbeat = asyncio.create_task(self._heartbeat())
            started = await self._create()
            self._attempt = self._attempt.started()
        except asyncio.CancelledError:
            self._attempt = self._attempt.broken_off("cancelled")
            raise
        except Exception as error:
            message = getattr(error, "jupyterhub_message", "") or str(error)
            self._attempt = self._attempt.broken_off("failed", message)
            if self._attempt.outcome == "failed":
                output = await self._shown_output()
                self._attempt = self._attempt.with_output(output)
            raise
        finally:
            if self._attempt.outcome != "started":
                self._end_heartbeat()
            self._restore_timeout()
            self._gpu_steps.end()
        return started

    async def _wait_for_grant(self) -> None:
        """Acquire, wait and acknowledge; park when the time is over. Every call may be repeated."""
        client, start_id, begun, until = self._client(), uuid.uuid4().hex, time.monotonic(), self._attempt.waits_until
        ask = {
            **self._key(),
            "user": self.user.name,
            "by": self.gpu_actor(),
            "options": self.user_options or {},
            "start_id": start_id,
            "boot_id": self.gpu_boot_id,
        }
        self._step(5, "Asking for a GPU" if self._asks_for_gpu() else "Asking for a place")
        answer: dict[str, Any] | None = None
        trouble: Conflict | Unavailable | None = None
        self._attempt = self._attempt.asked()
        while True:
            try:
                answer = await (
                    client.acquire(ask)
                    if answer is None
                    else client.wait(*self._attempt.key, self._place(answer), until - time.monotonic())
                )
                self._attempt = self._attempt.leased(answer["lease"]["id"], answer["attempt"])
                if answer["lease"]["phase"] not in WAITING:
                    answer = await client.acknowledge(*self._attempt.key)
                    self._attempt = self._attempt.granted(
                        Request.from_json(answer["request"]), answer["patch"], time.monotonic()
                    )
                    self._step(50, f"{answer['lease']['words']}.")
                    return
                self._step(20, answer["lease"]["queue"]["sentence"])
            except RequestRefused as error:
                self._attempt = self._attempt.refused()
                raise ended_start(str(error), reason="refused", status=error.status) from error
            except Gone as error:
                raise self._withdrawn(error) from error
            except Conflict as error:
                self._step(15, str(error))
                answer, trouble = None, error
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable as error:
                if not self._asks_for_gpu() and not self._attempt.lease and time.monotonic() - begun >= AWAY_SECONDS:
                    self._step(50, f"{error} Starting without it, and without a GPU.")
                    self._attempt = self._attempt.granted(self._request(), WITHOUT_GPU, time.monotonic())
                    return
                self._step(10, f"{error} This start tries again; your place, if you had one, stays.")
                trouble = error
                await asyncio.sleep(RETRY_SECONDS)
            if time.monotonic() >= until:
                await self._leave(client, answer, trouble)

    def _key(self) -> dict[str, str]:
        return {"hub": self.gpu_hub_id, "user_created": isoformat(self.user.orm_user.created), "server": self.name}

    def _request(self) -> Request:
        """Return what is asked for: what the lease says once there is one, else what the hub's catalog makes of it."""
        return self._attempt.request or self.gpu_request(self.user_options)

    def _asks_for_gpu(self) -> bool:
        return self._request().gpu is not None

    @staticmethod
    def _place(answer: Mapping[str, Any]) -> int | None:
        queue = answer["lease"]["queue"]
        return None if queue is None else queue["place"]

    def _withdrawn(self, error: Gone) -> Any:
        self._attempt = self._attempt.withdrawn()
        return ended_start(str(error), reason="withdrawn", status=409)

    async def _leave(
        self, client: LeaseClient, answer: Mapping[str, Any] | None, trouble: Conflict | Unavailable | None
    ) -> None:
        """The hub's time for waiting is over: keep the place without it, and tell where it is shown."""
        if answer is None:
            self._attempt = self._attempt.parked()
            if isinstance(trouble, Conflict):
                still = str(trouble).partition(";")[0].rstrip(".")
                raise ended_start(f"{still}. Press Start again in some minutes.", reason="ending", status=409)
            message = f"{trouble} Nothing was started: press Start again in some minutes."
            raise ended_start(message, reason="unavailable", status=503)
        try:
            parked = await client.park(*self._attempt.key)
            if parked["lease"]["phase"] not in WAITING:
                return  # granted at the last moment
            answer = parked
        except Gone as error:
            raise self._withdrawn(error) from error
        except (Conflict, RequestRefused, Unavailable) as error:
            self.log.warning("the place of %s is not known to be parked: %s", self._log_name, error)
        self._attempt = self._attempt.parked()
        queue = answer["lease"]["queue"] or {}
        message = f"{queue.get('sentence', 'Your place in the queue stays.')} It starts by itself."
        raise ended_start(
            message, reason="queued", status=409, link=answer["lease"]["page"], link_text="See your place"
        )

    async def _heartbeat(self) -> None:
        """Speak for the start as long as the hub holds it pending: a server may take long to answer after start()."""
        client = self._client()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.pending != "spawn":
                return
            try:
                await client.heartbeat(*self._attempt.key)
                self._attempt = self._attempt.heard(time.monotonic())
            except Conflict as error:
                self.log.warning("this start of %s is over: %s", self._log_name, error)
                return
            except (Unavailable, RequestRefused) as error:
                self.log.warning("heartbeat of %s not heard: %s", self._log_name, error)

    async def _create(self) -> Any:
        """Start the server, if the grant is fresh, within the start's own limit."""
        if time.monotonic() - self._attempt.heard_at > FENCE_SECONDS:
            message = "The grant is too old to start on. Your place is kept; press Start again."
            raise ended_start(message, reason="fenced", status=503)
        limit = self._start_seconds()
        try:
            started = await within(self._start_server(), limit)
        except (TimeoutError, asyncio.TimeoutError) as error:
            last = self._gpu_steps.told[-1]["message"]
            message = (
                f"The server did not start within {show_duration(limit)}. Its last step was: {last} Start it again, or "
                "ask your administrator."
            )
            self._attempt = self._attempt.failed(message)
            raise ended_start(message, reason="timeout", status=504) from error
        self._step(80, "The server is starting; waiting until it answers.")
        await self._until_up(started)
        return started

    def _start_seconds(self) -> float:
        """Return how long the start may take from its grant on: longer where a node is started for it, or it queues."""
        waits_seconds = max(PATIENCE * self._node_seconds(), self._queue_seconds(self._request()))
        return (self._attempt.own_timeout_seconds or self.start_timeout) + waits_seconds

    def _node_seconds(self) -> float:
        """Return how long a node takes that is started for it; 0 where none is."""
        return float(self._attempt.patch.get("node_seconds", 0))

    def get_env(self) -> dict[str, str]:
        """Return the environment: what the template opens, then the lease's patch, as one, after everything else."""
        patch = self._attempt.patch
        ours = {**self._opens(), **self._brought()}
        environment: dict[str, str] = {**super().get_env(), **ours, **patch.get("environment", {})}
        prefix = patch.get("path_prefix", "")
        if prefix:
            path = environment.get("PATH") or os.environ.get("PATH", os.defpath)
            environment["PATH"] = f"{prefix}{os.pathsep}{path}"
        self._attempt = self._attempt.with_environment(environment)
        return environment

    def _opens(self) -> dict[str, str]:
        opens = self._request().opens or ()
        url = default_url(opens)
        # In JupyterHub's own variable: the setting `default_url` would outlive this start, and the next may have none.
        # A page of the administrator's within the one that opens, as /lab/tree/first.ipynb, stays.
        page = {"JUPYTERHUB_DEFAULT_URL": url} if url and not self.default_url.startswith(url) else {}
        return {**page, SSH_VARIABLE: "1"} if SSH in opens else page

    def _brought(self) -> dict[str, str]:
        """Return what the user brings along or ticked. A tool that its template has no more is left out."""
        request = self._request()
        template = self.catalog.templates.get(request.template)
        offered = template.tools if template else {}
        tools = {name: offered[name] for name in request.tools if name in offered}
        ours = {REPOSITORY_VARIABLE: request.repository} if request.repository else {}
        told = json.dumps({"template": request.template, "tools": tools})
        return {**ours, TOOLS_VARIABLE: told} if tools else ours

    def get_state(self) -> dict[str, Any]:
        """Add which lease the running server has."""
        return {**super().get_state(), **self._attempt.to_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back which lease the running server has."""
        super().load_state(state)
        self._attempt = Attempt.from_state(state)

    def clear_state(self) -> None:
        """Save no lease any more."""
        super().clear_state()
        self._attempt = self._attempt.cleared()

    async def stop(self, now: bool = False) -> Any:
        """Note that the hub stopped it: a server that ended by itself is never stopped."""
        self._attempt = self._attempt.stopped(by_hub=True)
        return await super().stop(now=now)

    async def run_post_stop_hook(self) -> None:
        """After a stop or a failure: release what ended, never what is parked or in flight. Then the own hook."""
        self._forget_steps()
        attempt = self._attempt
        end = attempt.end(hub_shuts_down=hub_shuts_down())
        if end is not None and attempt.lease:
            await self._take_end(end)
            output = self._attempt.output if end in {"failed", "died"} else ""
            await self._release(Release(*attempt.key, end, self._attempt.message, output))
        elif end == "cancelled" and attempt.is_asked:
            await self._forget()
        result = super().run_post_stop_hook()
        if asyncio.iscoroutine(result):
            await result

    async def _release(self, release: Release) -> None:
        try:
            try:
                await self._client().release(release)
            except Unavailable:
                leave(self.gpu_folder, release)
                self._client()  # has it told later
        except Exception as error:  # noqa: BLE001 - a stop must go on: the service sees the end by itself
            self.log.warning("the end of %s was not reported: %s", self._log_name, error)

    async def _forget(self) -> None:
        """Withdraw a place in the queue that would start a server by itself, though its user wants none."""
        try:
            await self._client().forget(self._key())
        except Exception as error:  # noqa: BLE001 - a deletion, or a stop, must go on
            self.log.warning("the place of %s in the queue was not withdrawn: %s", self._log_name, error)

    async def delete_forever(self) -> None:
        """The hub deletes this server, or its user: a place in the queue would start it again by itself."""
        await self._forget()
        result = super().delete_forever()
        if asyncio.iscoroutine(result):
            await result


class LocalGPUSpawner(GPUSpawnerMixin, LocalProcessSpawner):
    """Workspaces as local processes: one machine, one team."""
