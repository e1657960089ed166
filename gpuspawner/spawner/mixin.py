"""The mixin over any spawner class: asks for a lease, waits with progress, starts, reports the end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import isoformat
from traitlets import Float, Unicode

from gpuspawner.catalog import SSH, resolve
from gpuspawner.core.autoscale import PATIENCE, patience_seconds
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.release import Release
from gpuspawner.core.request import Request
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.client import LeaseClient
from gpuspawner.spawner.options import FormOptions
from gpuspawner.spawner.refusals import ended, log_in_one_line
from gpuspawner.spawner.unheard import hub_shuts_down, leave

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


class GPUSpawnerMixin(FormOptions):
    """What every gpuspawner spawner adds to the class it stands before in the order of bases."""

    user_options: dict[str, Any]
    start_timeout: int

    wait_in_hub_seconds = Float(
        120.0, min=0, help="How long start() waits for a GPU before the place is kept without it."
    ).tag(config=True)
    gpu_service_url = Unicode(help="Where the service is, with its prefix. Set by configure().").tag(config=True)
    gpu_hub_id = Unicode(help="This hub's id. Set by configure().").tag(config=True)
    gpu_boot_id = Unicode(help="This hub process. Set by configure().").tag(config=True)

    _gpu_lease = ""
    _gpu_attempt = 0
    _gpu_asked = False
    """Whether the service was asked for a lease, and did not refuse: it may have made one that was never heard of."""
    _gpu_outcome = ""
    _gpu_saved = False
    _gpu_stop_called = False
    _gpu_message = ""
    _gpu_patch: Mapping[str, Any] = {}
    _gpu_heard_at = 0.0
    _gpu_heartbeat: asyncio.Task[None] | None = None
    _gpu_start_timeout: int | None = None

    def __init__(self, **kwargs: Any) -> None:
        """Keep the steps of a start for its progress page."""
        super().__init__(**kwargs)
        log_in_one_line(self.log)
        self._gpu_steps: list[dict[str, Any]] = []
        self._gpu_stepped = asyncio.Event()

    def _client(self) -> LeaseClient:
        return LeaseClient(self.gpu_service_url, self.gpu_secret())

    def _step(self, progress: int, message: str) -> None:
        if self._gpu_steps and self._gpu_steps[-1]["message"] == message:
            return
        self._gpu_steps.append({"progress": progress, "message": message})
        self._gpu_stepped.set()
        self._gpu_stepped = asyncio.Event()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step of this start, those before the listener came included."""
        seen = 0
        while True:
            while seen < len(self._gpu_steps):
                yield self._gpu_steps[seen]
                seen += 1
            await self._gpu_stepped.wait()

    async def run_pre_spawn_hook(self) -> None:
        """Validate before anything else, and give the start the time to wait; then the administrator's own hook."""
        self._gpu_lease, self._gpu_attempt, self._gpu_outcome, self._gpu_patch = "", 0, "", {}
        self._gpu_stop_called, self._gpu_message, self._gpu_asked = False, "", False
        self._gpu_steps.clear()
        try:
            self._request()
        except RequestRefused as error:
            # The hub saved the options before anybody saw them: the next plain start must not meet them again.
            self.user_options = self.orm_spawner.user_options = {}
            raise ended(str(error), reason="refused", status=error.status) from error
        result = super().run_pre_spawn_hook()
        if asyncio.iscoroutine(result):
            await result
        try:
            request = self._request()
        except RequestRefused as error:
            message = f"This hub is set up wrongly: its pre_spawn_hook asks for what cannot be had: {error}"
            raise ended(message, reason="conflict", status=409) from error
        self._gpu_start_timeout = self.start_timeout
        node_seconds = patience_seconds(self.catalog.gpus.get(request.gpu or ""))
        self.start_timeout = int(self.start_timeout + self.wait_in_hub_seconds + FENCE_SECONDS + node_seconds)

    async def start(self) -> Any:
        """Wait for a lease, then start the server on its GPUs."""
        until = time.monotonic() + self.wait_in_hub_seconds
        self._gpu_outcome = "in flight"
        try:
            await self._wait_for_grant(until)
            if self._gpu_lease:
                self._gpu_heartbeat = asyncio.create_task(self._heartbeat())
            started = await self._create()
            self._gpu_outcome, self._gpu_saved = "started", True
        except asyncio.CancelledError:
            if self._gpu_outcome == "in flight":
                self._gpu_outcome = "cancelled"
            raise
        except Exception as error:
            if self._gpu_outcome == "in flight":
                self._gpu_outcome = "failed"
                self._gpu_message = getattr(error, "jupyterhub_message", "") or str(error)
            raise
        finally:
            if self._gpu_heartbeat is not None and self._gpu_outcome != "started":
                self._gpu_heartbeat.cancel()
            if self._gpu_start_timeout is not None:
                self.start_timeout, self._gpu_start_timeout = self._gpu_start_timeout, None
        return started

    async def _wait_for_grant(self, until: float) -> None:
        """Acquire, wait and acknowledge; park when the time is over. Every call may be repeated."""
        client, start_id, begun = self._client(), uuid.uuid4().hex, time.monotonic()
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
        self._gpu_asked = True
        while True:
            try:
                answer = await (
                    client.acquire(ask)
                    if answer is None
                    else client.wait(self._gpu_lease, self._gpu_attempt, self._place(answer), until - time.monotonic())
                )
                self._gpu_lease, self._gpu_attempt = answer["lease"]["id"], answer["attempt"]
                if answer["lease"]["phase"] not in WAITING:
                    answer = await client.acknowledge(self._gpu_lease, self._gpu_attempt)
                    self._gpu_heard_at = time.monotonic()
                    self._gpu_patch = answer["patch"]
                    self._step(50, f"{answer['lease']['words']}.")
                    return
                self._step(20, answer["lease"]["queue"]["sentence"])
            except RequestRefused as error:
                self._gpu_outcome, self._gpu_asked = "cancelled", False
                raise ended(str(error), reason="refused", status=error.status) from error
            except Gone as error:
                raise self._withdrawn(error) from error
            except Conflict as error:
                self._step(15, str(error))
                answer, trouble = None, error
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable as error:
                if not self._asks_for_gpu() and not self._gpu_lease and time.monotonic() - begun >= AWAY_SECONDS:
                    self._step(50, f"{error} Starting without it, and without a GPU.")
                    self._gpu_patch, self._gpu_heard_at = WITHOUT_GPU, time.monotonic()
                    return
                self._step(10, f"{error} This start tries again; your place, if you had one, stays.")
                trouble = error
                await asyncio.sleep(RETRY_SECONDS)
            if time.monotonic() >= until:
                await self._leave(client, answer, trouble)

    def _key(self) -> dict[str, str]:
        return {"hub": self.gpu_hub_id, "user_created": isoformat(self.user.orm_user.created), "server": self.name}

    def _request(self) -> Request:
        return resolve(self.catalog, self.user_options, self.user.name)

    def _asks_for_gpu(self) -> bool:
        return self._request().gpu is not None

    @staticmethod
    def _place(answer: Mapping[str, Any]) -> int | None:
        queue = answer["lease"]["queue"]
        return None if queue is None else int(queue["place"])

    def _withdrawn(self, error: Gone) -> Any:
        self._gpu_outcome = "gone"  # nothing of it is left to release
        return ended(str(error), reason="withdrawn", status=409)

    async def _leave(
        self, client: LeaseClient, answer: Mapping[str, Any] | None, trouble: Conflict | Unavailable | None
    ) -> None:
        """The hub's time for waiting is over: keep the place without it, and tell where it is shown."""
        if answer is None:
            self._gpu_outcome = "parked"
            if isinstance(trouble, Conflict):
                still = str(trouble).partition(";")[0].rstrip(".")
                raise ended(f"{still}. Press Start again in some minutes.", reason="ending", status=409)
            message = "The GPU service does not answer. Nothing is lost: press Start again in some minutes."
            raise ended(message, reason="unavailable", status=503)
        try:
            parked = await client.park(self._gpu_lease, self._gpu_attempt)
            if parked["lease"]["phase"] not in WAITING:
                return  # granted at the last moment
            answer = parked
        except Gone as error:
            raise self._withdrawn(error) from error
        except (Conflict, RequestRefused, Unavailable) as error:
            self.log.warning("the place of %s is not known to be parked: %s", self._log_name, error)
        self._gpu_outcome = "parked"
        queue = answer["lease"]["queue"] or {}
        message = f"{queue.get('sentence', 'Your place in the queue stays.')} It starts by itself."
        raise ended(message, reason="queued", status=409, link=answer["lease"]["page"], link_text="See your place")

    async def _heartbeat(self) -> None:
        """Speak for the start as long as the hub holds it pending: a server may take long to answer after start()."""
        client = self._client()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.pending != "spawn":
                return
            try:
                await client.heartbeat(self._gpu_lease, self._gpu_attempt)
                self._gpu_heard_at = time.monotonic()
            except Conflict as error:
                self.log.warning("this start of %s is over: %s", self._log_name, error)
                return
            except (Unavailable, RequestRefused) as error:
                self.log.warning("heartbeat of %s not heard: %s", self._log_name, error)

    async def _create(self) -> Any:
        """Start the server, if the grant is fresh, within the start's own limit."""
        if time.monotonic() - self._gpu_heard_at > FENCE_SECONDS:
            message = "The grant is too old to start on. Your place is kept; press Start again."
            raise ended(message, reason="fenced", status=503)
        limit = self._start_seconds()
        try:
            started = await asyncio.wait_for(super().start(), limit)
        except (TimeoutError, asyncio.TimeoutError) as error:
            last = self._gpu_steps[-1]["message"]
            message = (
                f"The server did not start within {show_duration(limit)}. Its last step was: {last} Start it again, or "
                "ask your administrator."
            )
            self._gpu_outcome, self._gpu_message = "failed", message
            raise ended(message, reason="timeout", status=504) from error
        self._step(80, "The server is starting; waiting until it answers.")
        return started

    def _start_seconds(self) -> float:
        """Return how long the start may take from its grant on: longer where a node is started for it."""
        return (self._gpu_start_timeout or self.start_timeout) + PATIENCE * self._node_seconds()

    def _node_seconds(self) -> float:
        """Return how long a node takes that is started for it; 0 where none is."""
        return float(self._gpu_patch.get("node_seconds", 0))

    def get_env(self) -> dict[str, str]:
        """Return the environment: what the template opens, then the lease's patch, as one, after everything else."""
        environment: dict[str, str] = {**super().get_env(), **self._opens(), **self._gpu_patch.get("environment", {})}
        prefix = self._gpu_patch.get("path_prefix", "")
        if prefix:
            path = environment.get("PATH") or os.environ.get("PATH", os.defpath)
            environment["PATH"] = f"{prefix}{os.pathsep}{path}"
        return environment

    def _opens(self) -> dict[str, str]:
        template = self.catalog.templates[self._request().template]
        url = template.default_url
        # In JupyterHub's own variable: the setting `default_url` would outlive this start, and the next may have none.
        # A page of the administrator's within the one that opens, as /lab/tree/first.ipynb, stays.
        page = {"JUPYTERHUB_DEFAULT_URL": url} if url and not self.default_url.startswith(url) else {}
        return {**page, SSH_VARIABLE: "1"} if SSH in template.opens else page

    def get_state(self) -> dict[str, Any]:
        """Add which lease the running server has."""
        state: dict[str, Any] = super().get_state()
        if self._gpu_saved:
            state["gpu_lease"], state["gpu_attempt"] = self._gpu_lease, self._gpu_attempt
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back which lease the running server has."""
        super().load_state(state)
        self._gpu_lease, self._gpu_attempt = state.get("gpu_lease", ""), state.get("gpu_attempt", 0)
        if self._gpu_lease:
            self._gpu_outcome, self._gpu_saved = "started", True

    def clear_state(self) -> None:
        """Save no lease any more. It is still known: local processes clear the state before the end is reported."""
        super().clear_state()
        self._gpu_saved = False

    async def stop(self, now: bool = False) -> Any:
        """Note that the hub stopped it: a server that ended by itself is never stopped."""
        self._gpu_stop_called = True
        return await super().stop(now=now)

    async def run_post_stop_hook(self) -> None:
        """After a stop or a failure: release what ended, never what is parked or in flight. Then the own hook."""
        outcome = self._outcome()
        if outcome is not None and self._gpu_lease:
            await self._release(Release(self._gpu_lease, self._gpu_attempt, outcome, self._gpu_message))
        elif outcome == "cancelled" and self._gpu_asked:
            await self._forget()
        result = super().run_post_stop_hook()
        if asyncio.iscoroutine(result):
            await result

    async def _release(self, release: Release) -> None:
        try:
            try:
                await self._client().release(release)
            except Unavailable:
                leave(Path(self.gpu_secret_file).parent, release)
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

    def _outcome(self) -> str | None:
        """Return how it ended, one of ``core.release.OUTCOMES``; None for what goes on without the hub."""
        if hub_shuts_down():
            return "shutdown" if self._gpu_outcome == "started" else None  # a start that it broke off keeps its place
        stopped = "stopped" if self._gpu_stop_called else "died"
        return {"started": stopped, "failed": "failed", "cancelled": "cancelled"}.get(self._gpu_outcome)


class LocalGPUSpawner(GPUSpawnerMixin, LocalProcessSpawner):
    """Workspaces as local processes: one machine, one team."""
