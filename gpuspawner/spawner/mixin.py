"""The mixin over any spawner class: request a lease, wait with progress, start the server, report its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.user import User
from jupyterhub.utils import isoformat
from traitlets import Float, default, observe
from traitlets.config import LoggingConfigurable

from gpuspawner.catalog import Catalog, PodQueues, Resolution, resolve_all, teams_of
from gpuspawner.catalog.pod_models import Volume
from gpuspawner.catalog.requests.visibility import named_groups
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.errors import RequestRefused, Unavailable
from gpuspawner.core.gpus.pools import NODE_WAIT_FACTOR, node_wait_seconds
from gpuspawner.core.leases.reports import ReleaseReport
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_duration
from gpuspawner.spawner.attempts import Attempt, variables_of, with_patch
from gpuspawner.spawner.client import LeaseClient, hub_shuts_down, send_spooled_later, spool_release
from gpuspawner.spawner.hub.settings import watch_hub
from gpuspawner.spawner.servers import LocalServer, with_time_limit
from gpuspawner.spawner.waiting import (
    GrantWait,
    StartEnded,
    Steps,
    explain_failure,
    log_in_one_line,
    send_heartbeats,
)
from gpuspawner.spawner.web.form import SpawnForm

FENCE_SECONDS = 20.0
"""Nothing is created unless a heartbeat was acknowledged within this time (design, section 6)."""

if TYPE_CHECKING:
    from jupyterhub.spawner import Spawner as _Base
else:
    _Base = LoggingConfigurable  # JupyterHub's Spawner refuses subclasses that do not start servers themselves


class GPUSpawnerMixin(_Base):
    """The mixin of every gpuspawner spawner, placed before the configured class in the order of bases."""

    user_options: dict[str, Any]
    start_timeout: int

    gpu_wait_in_hub_seconds = Float(
        120.0, min=0, help="How long start() waits for a GPU. Then start() ends, and the queue position is kept."
    ).tag(config=True)
    # configure() sets these on the class. They are not settings.
    gpu_read_catalog: Callable[[], Catalog]
    gpu_take_added: Callable[[LeaseClient], Awaitable[None]] | None = None
    gpu_service_prefix = "/services/gpu/"
    """Where browsers find the service."""
    gpu_service_url = ""
    """Where the service is, with its prefix."""
    gpu_secret_file = ""
    """The file with the secret shared with the service."""
    gpu_data_dir = ""
    """The hub's own folder."""
    gpu_hub_id = ""
    gpu_boot_id = ""
    """The ID of this hub process."""

    _gpu_heartbeat_task: asyncio.Task[None] | None = None
    _gpu_attempt = Attempt()
    """The record of this start. A new start replaces it as a whole."""

    def __init__(self, **kwargs: Any) -> None:
        """Keep the steps of a start for its progress page."""
        super().__init__(**kwargs)
        log_in_one_line(self.log)
        self._gpu_steps = Steps()

    @cached_property
    def _gpu_form(self) -> SpawnForm:
        return SpawnForm(self)

    @cached_property
    def _gpu_server(self) -> LocalServer:
        return LocalServer(self)

    @property
    def gpu_folder(self) -> Path:
        """The folder for files that are not secret: the output of servers, and undelivered reports."""
        return Path(self.gpu_data_dir) if self.gpu_data_dir else Path(self.gpu_secret_file).parent

    @property
    def gpu_catalog(self) -> Catalog:
        """The loaded catalog."""
        return self.gpu_read_catalog()

    async def gpu_follow_catalog(self) -> None:
        """Update the catalog from custom resources. While the service is away, earlier additions stay."""
        if self.gpu_take_added is not None:
            await self.gpu_take_added(LeaseClient(self.gpu_service_url, bytes.fromhex(self.gpu_secret())))

    def gpu_groups(self) -> frozenset[str]:
        """Return the hub's groups that the user is in now, where the catalog names any."""
        if not named_groups(self.gpu_catalog):
            return frozenset()
        return frozenset(group.name for group in self.user.orm_user.groups)

    def gpu_request(self, options: object) -> Request:
        """Resolve the options of the user. Only the service knows which of several teams was charged last.

        Raises:
            AllRefused: as :func:`gpuspawner.catalog.resolve`.
        """
        return self._gpu_resolution(options).must()

    def _gpu_resolution(self, options: object) -> Resolution:
        return resolve_all(self.gpu_catalog, options, self.user.name, **self._gpu_asker())

    def _gpu_asker(self) -> dict[str, Any]:
        groups = self.gpu_groups()
        return {"groups": groups, "last_team": next(iter(teams_of(self.gpu_catalog.rules, groups)), "")}

    def gpu_secret(self) -> str:
        """Return the secret shared with the service, as written in its file."""
        return Path(self.gpu_secret_file).read_text(encoding="ascii").strip()

    def gpu_actor(self) -> str:
        """Return the name of another person who starts the server. "" if its user does."""
        actor = getattr(self.handler, "current_user", None)
        return actor.name if isinstance(actor, User) and actor.name != self.user.name else ""

    @observe("handler")
    def _gpu_take_link(self, change: Mapping[str, Any]) -> None:
        self._gpu_form.take_link(getattr(change["new"], "request", None))

    @default("apply_user_options")
    def _gpu_apply_user_options_default(self) -> Any:
        # The mixin applies them; without a hook the hub warns at each start.
        return lambda _spawner, _options: None

    @default("options_form")
    def _gpu_options_form_default(self) -> Any:
        return type(self).gpu_render_form

    async def gpu_render_form(self) -> str:
        """Return the form as a hub page shows it, with the service's numbers of this moment."""
        return await self._gpu_form.render()

    def options_from_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a submitted form. A refused one shows the form again, with the reason."""
        return self._gpu_form.read(formdata)

    def options_from_query(self, _query: Mapping[str, list[str]]) -> dict[str, Any]:
        """Refuse, whatever the hub found: a GET never starts anything."""
        raise StartEnded("A link only fills in the form. Press Start there.", reason="refused", status=400)

    def _gpu_client(self) -> LeaseClient:
        client = LeaseClient(self.gpu_service_url, bytes.fromhex(self.gpu_secret()))
        if self.gpu_folder != Path(self.gpu_secret_file).parent:
            send_spooled_later(self.gpu_folder, client)
        return client

    def _gpu_step(self, progress: int, message: str, html: str = "", stop: str = "") -> None:
        self._gpu_steps.add(progress, message, html, stop)

    def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step of this start, including earlier steps, until ``start()`` ends."""
        return self._gpu_steps.follow()

    def _gpu_forget_steps(self) -> None:
        """End the progress of a start that is over. Later listeners follow the next start."""
        self._gpu_steps.end()
        self._gpu_steps = Steps()

    async def run_pre_spawn_hook(self) -> None:
        """Validate the options, run the administrator's own hook, and add the time to wait to the start's limit."""
        self._gpu_begin_attempt()
        await self.gpu_follow_catalog()
        try:
            self._gpu_current_request()
        except RequestRefused as error:
            # The hub saves options before they are validated. The next start without options must not use them again.
            self.user_options = self.orm_spawner.user_options = {}
            raise StartEnded(str(error), reason="refused", status=error.status) from error
        result = super().run_pre_spawn_hook()
        if asyncio.iscoroutine(result):
            await result
        try:
            request = self._gpu_current_request()
        except RequestRefused as error:
            message = f"This hub is set up wrongly: its pre_spawn_hook sets options that are not allowed: {error}"
            raise StartEnded(message, reason="conflict", status=409) from error
        self._gpu_change(own_timeout_seconds=self.start_timeout)
        pod_seconds = self._gpu_pod_seconds(request)
        self.start_timeout = int(
            self.start_timeout + self.http_timeout + self.gpu_wait_in_hub_seconds + FENCE_SECONDS + pod_seconds
        )

    def _gpu_pod_seconds(self, request: Request) -> float:
        """Return the seconds that its pod may wait for a new node or in a queue of the cluster."""
        return max(node_wait_seconds(self.gpu_catalog.gpus.get(request.gpu or "")), self._gpu_queue_seconds(request))

    def _gpu_queue_seconds(self, request: Request) -> float:
        """Return the seconds that its pod may wait in a queue of the cluster, or 0."""
        queues = self.gpu_catalog.scheduler
        return queues.wait_seconds if isinstance(queues, PodQueues) and request.gpu else 0.0

    def _gpu_change(self, **changes: Any) -> None:
        """Change fields of the record of this start."""
        self._gpu_attempt = replace(self._gpu_attempt, **changes)

    def _gpu_begin_attempt(self) -> None:
        """Replace the record of the last start, however it ended."""
        self._gpu_end_heartbeat()
        self._gpu_restore_timeout()
        self._gpu_attempt = Attempt()
        if self._gpu_steps.shown:
            self._gpu_forget_steps()

    def _gpu_end_heartbeat(self) -> None:
        if self._gpu_heartbeat_task is not None:
            self._gpu_heartbeat_task.cancel()
            self._gpu_heartbeat_task = None

    def _gpu_restore_timeout(self) -> None:
        own_seconds = self._gpu_attempt.own_timeout_seconds
        if own_seconds is not None:
            self.start_timeout = own_seconds
            self._gpu_change(own_timeout_seconds=None)

    async def start(self) -> Any:
        """Wait for a lease, then start the server on its GPUs."""
        self._gpu_change(outcome="in flight", waits_until=time.monotonic() + self.gpu_wait_in_hub_seconds)
        try:
            await self._gpu_wait_for_grant()
            if self._gpu_attempt.lease:
                self._gpu_heartbeat_task = asyncio.create_task(send_heartbeats(self))
            started = await self._gpu_create()
            self._gpu_attempt = self._gpu_attempt.started()
        except asyncio.CancelledError:
            self._gpu_attempt = self._gpu_attempt.broken_off("cancelled")
            raise
        except Exception as error:
            ended = explain_failure(self, error)
            message = getattr(ended or error, "jupyterhub_message", "") or str(error)
            self._gpu_attempt = self._gpu_attempt.broken_off("failed", message)
            if self._gpu_attempt.outcome == "failed":
                await self._gpu_server.save_output()
            if ended is None:
                raise
            raise ended from error
        finally:
            if self._gpu_attempt.outcome != "started":
                self._gpu_end_heartbeat()
            self._gpu_restore_timeout()
            self._gpu_steps.end()
        return started

    async def _gpu_wait_for_grant(self) -> None:
        """Return once the start has its lease. See `GrantWait.run`."""
        await GrantWait(self).run()

    def _gpu_key(self) -> dict[str, str]:
        return {"hub": self.gpu_hub_id, "user_created": isoformat(self.user.orm_user.created), "server": self.name}

    def _gpu_current_request(self) -> Request:
        """Return the request: the lease's request, or before that the request by the hub's catalog."""
        return self._gpu_attempt.request or self.gpu_request(self.user_options)

    def _gpu_asks_for_gpu(self) -> bool:
        return self._gpu_current_request().gpu is not None

    async def _gpu_create(self) -> Any:
        """Start the server if the grant is fresh, within the start's own limit."""
        if time.monotonic() - self._gpu_attempt.heard_at > FENCE_SECONDS:
            message = "The grant is too old for this start. Your place is kept. Press Start again."
            raise StartEnded(message, reason="fenced", status=503)
        limit = self._gpu_start_seconds()
        try:
            started = await with_time_limit(self._gpu_start_server(), limit)
        except (TimeoutError, asyncio.TimeoutError) as error:
            last = self._gpu_steps.shown[-1]["message"]
            message = (
                f"The server did not start within {show_duration(limit)}. Its last step was: {last} Start it again, or "
                "ask your administrator."
            )
            self._gpu_change(outcome="failed", message=message)
            raise StartEnded(message, reason="timeout", status=504) from error
        self._gpu_step(80, "The server is starting; waiting until it answers.")
        await self._gpu_server.wait_until_up(started)
        return started

    async def _gpu_start_server(self) -> Any:
        """Start the server with the class below. The output of a process on this machine is kept."""
        if not isinstance(self, LocalProcessSpawner) or not self._gpu_attempt.lease:
            return await super().start()
        own = self.popen_kwargs
        try:
            with self._gpu_server.output.kept(own) as self.popen_kwargs:
                return await super().start()
        finally:
            self.popen_kwargs = own

    def _gpu_start_seconds(self) -> float:
        """Return the limit of the start after its grant. It is longer for a new node or for a queue of the cluster."""
        waits_seconds = max(
            NODE_WAIT_FACTOR * self._gpu_node_seconds(), self._gpu_queue_seconds(self._gpu_current_request())
        )
        return (self._gpu_attempt.own_timeout_seconds or self.start_timeout) + waits_seconds

    def _gpu_node_seconds(self) -> float:
        """Return the seconds that a new node needs, or 0 if no node is started."""
        return float(self._gpu_attempt.patch.get("node_seconds", 0))

    def get_env(self) -> dict[str, str]:
        """Return the environment: the template's tools first, then everything else, then the lease's patch."""
        ours = variables_of(self._gpu_current_request(), self._gpu_template(), self._gpu_volumes(), self.default_url)
        environment = with_patch({**super().get_env(), **ours}, self._gpu_attempt.patch)
        self._gpu_change(environment=environment)
        return environment

    def _gpu_template(self) -> Template | None:
        """Return the template of the request, None if the catalog no longer has it."""
        return self.gpu_catalog.templates.get(self._gpu_current_request().template)

    def _gpu_volumes(self) -> dict[str, Volume]:
        """Return the volumes that the template adds for this user, by name."""
        template = self._gpu_template()
        if template is None or not template.volumes:
            return {}
        groups = {group.name for group in self.user.groups}
        return {name: one for name, one in template.volumes.items() if not one.groups or one.groups & groups}

    def get_state(self) -> dict[str, Any]:
        """Add the lease of the running server."""
        return {**super().get_state(), **self._gpu_attempt.to_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the lease of the running server."""
        super().load_state(state)
        self._gpu_attempt = Attempt.from_state(state)

    def clear_state(self) -> None:
        """Remove the saved lease."""
        super().clear_state()
        self._gpu_change(is_saved=False)

    async def stop(self, now: bool = False) -> Any:
        """Note that the hub stopped it. A server that ended by itself is never stopped."""
        self._gpu_change(is_stopped_by_hub=True)
        return await super().stop(now=now)

    async def poll_and_notify(self) -> Any:
        """Make the hub forget a server that it lists although nothing runs. Otherwise no stop would remove it.

        The hub registers what follows an end only once a start has succeeded. An error of its own before that, for
        example of its database, leaves a server of this kind.
        """
        status = await super().poll_and_notify()
        if status is not None and self.ready:
            self.log.warning("%s is listed although nothing runs: the hub forgets it", self._log_name)
            await self.user.stop(self.name)
        return status

    async def run_post_stop_hook(self) -> None:
        """Release a lease that ended, unless it is parked or in flight. Then run the administrator's own hook."""
        self._gpu_forget_steps()
        attempt = self._gpu_attempt
        end = attempt.end(hub_shuts_down=hub_shuts_down())
        if end is not None and attempt.lease:
            await self._gpu_server.save_end(end)
            output = self._gpu_attempt.output if end in {"failed", "died"} else ""
            await self._gpu_release(ReleaseReport(*attempt.key, end, self._gpu_attempt.message, output))
        elif end == "cancelled" and attempt.is_asked:
            await self._gpu_forget()
        result = super().run_post_stop_hook()
        if asyncio.iscoroutine(result):
            await result

    async def _gpu_release(self, release: ReleaseReport) -> None:
        try:
            try:
                await self._gpu_client().release(release)
            except Unavailable:
                spool_release(self.gpu_folder, release)
                self._gpu_client()  # sends spooled reports later
        except Exception as error:  # noqa: BLE001 - a stop must go on: the service observes the end itself
            self.log.warning("The end of %s was not reported: %s", self._log_name, error)

    async def _gpu_forget(self) -> None:
        """Withdraw a place in the queue that would start a server by itself although its user wants none."""
        try:
            await self._gpu_client().forget(self._gpu_key())
        except Exception as error:  # noqa: BLE001 - a deletion, or a stop, must go on
            self.log.warning("The place of %s in the queue was not withdrawn: %s", self._log_name, error)

    async def delete_forever(self) -> None:
        """Withdraw the place in the queue when the hub deletes this server or its user: it would start again."""
        await self._gpu_forget()
        result = super().delete_forever()
        if asyncio.iscoroutine(result):
            await result


class LocalGPUSpawner(GPUSpawnerMixin, LocalProcessSpawner):
    """Workspaces as local processes: one machine, one team."""


watch_hub(GPUSpawnerMixin)  # each class that a configuration can name imports this module
