"""Runs the parts of the service: one process, one event loop, one writer."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.backends.custom_resources.base import Resources
from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import named_groups
from gpuspawner.catalog.watched_file import LOOK_SECONDS, InForce
from gpuspawner.core.errors import Conflict, Superseded, Unavailable
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.administration.gpu_health import quarantine_round
from gpuspawner.service.administration.restriction_effects import refresh_class_members
from gpuspawner.service.api.base import is_spawner
from gpuspawner.service.app import Options, application, load, wire
from gpuspawner.service.clock import SteadyClock, WallWatch
from gpuspawner.service.custom_resources.controller import ROUND_SECONDS, Operator
from gpuspawner.service.custom_resources.relay import Relay, add_operating
from gpuspawner.service.engine.sampling.dcgm import LOOK_SECONDS as DCGM_SECONDS
from gpuspawner.service.engine.sampling.gpu_health import LOOK_SECONDS as HEALTH_SECONDS
from gpuspawner.service.engine.sampling.gpu_states import find_unmatched_kinds, find_unmeasured_kinds
from gpuspawner.service.forgetting import forget
from gpuspawner.service.loops import Health, Loops, cancel_all
from gpuspawner.service.metrics import api as metrics
from gpuspawner.service.process.connections import MOST_STRANGERS, PublicServer, listen, raise_descriptor_limit
from gpuspawner.service.process.standby import Heartbeat, stand_by
from gpuspawner.service.process.startup_gate import STARTING, StartupGate
from gpuspawner.service.quota_requests.api import LOOK_SECONDS as REQUESTS_SECONDS
from gpuspawner.service.quota_requests.api import remind
from gpuspawner.service.rules.catalog_reload import reload_of
from gpuspawner.service.settings import Settings
from gpuspawner.service.start.schedule_rounds import READY_SECONDS, ready_round
from gpuspawner.service.usage.alerts import ALERT_SECONDS, send_alerts
from gpuspawner.service.usage.closing import CLOSE_SECONDS, close_months
from gpuspawner.service.workspaces.notice_file import NOTICES_SECONDS, Notices

log = logging.getLogger("gpuspawner")

GROUPS_SECONDS = 60.0
"""How often the groups of the hub are read. Administrators see which groups of the catalog are missing."""
THIN_SECONDS = 600.0
COUNTED_SECONDS = 10.0
"""The greatest age of counters in metrics: less than the period of most scrapes."""
END_SECONDS = 20.0
"""How long the service waits at its end for its last writes. Kubernetes kills a process after 30 s."""
SET_BACK = (
    "This machine's time was set back by %s. JupyterHub waits by it: for as long it may not look whether its services "
    "and servers live. Restart the hub: workspaces run on."
)
"""Tornado's PeriodicCallback waits as long. The hub would not restart a service that ended meanwhile."""


class Service:
    """Runs the parts until the service is stopped or superseded, or its hub has ended."""

    def __init__(
        self,
        options: Options,
        catalog: Catalog | InForce,
        backend: Backend,
        settings: Settings,
        scheduler: Scheduler | None = None,
        resources: Resources | None = None,
    ) -> None:
        """Open nothing before :meth:`run`. ``resources`` are the custom resources, None without them."""
        self._options, self._settings = options, settings
        self.parts = wire(options, catalog, backend, settings, SteadyClock(), scheduler=scheduler, resources=resources)
        self._operator = None if resources is None else Operator(self.parts, resources)
        self._notices = Notices(self.parts, backend)
        self._reload = reload_of(self.parts)
        self.health = Health(self._waits_for)
        if self._operator:
            self.health.watch("the operator of custom resources", self._operator.stuck_seconds)
        self._relay = resources if isinstance(resources, Relay) else None
        self.parts.lacking.extend(one.lacking for one in (self._operator, self._relay) if one is not None)
        pages = application(self.parts, options.hub_auth, self.health)
        if self._relay and self._operator:
            add_operating(pages, self.parts, self._relay, self._operator)
        self._gate = StartupGate(pages, self.parts)
        self._heartbeat = Heartbeat(self.parts.store) if options.stands_by else None
        self._stopped = asyncio.Event()
        self._opened_at: float | None = None
        self._unmatched: tuple[str, ...] = ()
        self._loops_of = Loops(self.health, self.parts.registry.failures, self.stop)
        self._wall = WallWatch(self.parts.clock)

    def stop(self, why: str) -> None:
        """End the service soon."""
        if not self._stopped.is_set():
            log.warning("the service ends: %s", why)
            self._stopped.set()

    async def run(self) -> None:
        """Listen, answer 503 with the reason until the store is open and its epoch raised, and serve until stopped.

        So two services never serve at once, and the port is open while the service waits for its store.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, f"signal {number.name}")
        # Unauthenticated connections get half of the descriptors. The rest is for spawner, store and probes.
        most_strangers = min(MOST_STRANGERS, raise_descriptor_limit() // 2)
        server = PublicServer(self._gate, partial(is_spawner, self._options.secret), most_strangers)
        bound, stopped = asyncio.create_task(self._listen(server)), asyncio.create_task(self._stopped.wait())
        opened = asyncio.create_task(self._open())
        tasks = [bound, stopped, opened]
        tasks += [asyncio.create_task(self._loops_of.every(0.5, step)) for step in (self._look_for_hub, self._watch)]
        try:
            await asyncio.wait({opened, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if opened.done():
                opened.result()
            await asyncio.wait({bound, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if bound.done():
                bound.result()
            if not self._stopped.is_set():
                self._gate.waits_for = ""
                log.info("serving %s, epoch %s", self.parts.public_url, self.parts.store.epoch)
                tasks += [asyncio.create_task(one) for one in self._loops()]
                await stopped
        finally:
            ending = asyncio.create_task(self._end(tasks, server))
            done, _ = await asyncio.wait([ending], timeout=END_SECONDS)
            if not done:  # threads wait for the store, and Python would wait for them
                log.error("The store gives no answer. The service ends without its last changes.")
                logging.shutdown()
                os._exit(1)
            ending.result()

    async def _end(self, tasks: list[asyncio.Task[Any]], server: PublicServer) -> None:
        await cancel_all(tasks)
        await self.parts.sampler.close()
        await self.parts.engine.close()
        await self._notices.close()
        if self._operator is not None:
            await self._operator.close()
        await self.parts.allocator.syncs.close()
        await self.parts.allocator.estimator.close()
        await self.parts.registry.settled()
        with suppress(Unavailable, Superseded):
            await metrics.store_counters(self.parts)
        server.stop()
        if self._heartbeat is not None and self._opened_at is not None:
            await self._heartbeat.stop()
        self.parts.store.close()
        await self.parts.store.wait_for_threads()

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        period, every = self._settings.tick_seconds, self._loops_of.every
        operating = [] if self._operator is None or self._relay else [every(ROUND_SECONDS, self._operator.round)]
        return [
            *operating,
            every(self._settings.fleet_seconds, self._observe_fleet),
            every(period, self.parts.engine.round),
            every(min(period, 0.5), self._sample),
            every(min(period, 0.5), self.parts.engine.tick),
            every(min(period, 0.5), self.parts.preemptions.step),
            every(min(period, NOTICES_SECONDS), self._notices.look),
            every(GROUPS_SECONDS, self._look_for_groups),
            every(DCGM_SECONDS, self.parts.sampler.dcgm.look),
            every(HEALTH_SECONDS, partial(quarantine_round, self.parts)),
            every(THIN_SECONDS, partial(forget, self.parts)),
            every(CLOSE_SECONDS, self._close_months),
            every(ALERT_SECONDS, partial(send_alerts, self.parts)),
            every(REQUESTS_SECONDS, partial(remind, self.parts)),
            every(READY_SECONDS, partial(ready_round, self.parts)),
            every(COUNTED_SECONDS, partial(metrics.store_counters, self.parts)),
            every(LOOK_SECONDS, self._look_at_catalog),
            self.parts.notifier.run(),
        ]

    async def _open(self) -> None:
        while not self._stopped.is_set():
            after: int | None = None
            try:
                if self._heartbeat is not None:
                    after = await stand_by(self.parts.store, self._wait_for, self._stopped)
                    if self._stopped.is_set():
                        return
                    self._wait_for(STARTING)
                await self._reload.first()
                await self.parts.store.write(self.parts.store.open, after)
                await load(self.parts)
            except Unavailable as error:
                # A managed service that exits takes the hub with it: wait for the store instead.
                if not error.part and self._gate.waits_for != str(error):
                    log.error("%s", error)  # noqa: TRY400 - a traceback adds nothing
                self._wait_for(str(error))
                await asyncio.sleep(1.0)
            except Conflict as error:
                log.info("%s", error)  # another service works on the store
            except Superseded as error:
                self.stop(str(error))
            else:
                self._opened_at = asyncio.get_running_loop().time()
                return

    def _wait_for(self, why: str) -> None:
        self._gate.waits_for = why

    def _waits_for(self) -> str:
        """Return the name of the missing part that prevents every grant, "" if no part is missing."""
        if self._gate.waits_for or self.parts.store.trouble:
            return "its store"
        if self.parts.scheduler.fleet.observed_at == 0 or not self.parts.engine.observer.has_looked:
            return "its first look at GPUs and workspaces"
        return ""

    async def _listen(self, server: PublicServer) -> None:
        address = self._options.listen or self._options.service_url
        await listen(server, address, lambda: self._opened_at, by_hub=not self._options.stands_by)

    async def _observe_fleet(self) -> None:
        try:
            fleet = await self.parts.scheduler.observe(self.parts.clock.now())
        except Unavailable:
            self.parts.allocator.syncs.errors["not seen"] += 1
            raise
        self.parts.allocator.syncs.request()
        kinds = self.parts.catalog.gpus.values()
        before, self._unmatched = (
            self._unmatched,
            (*find_unmatched_kinds(kinds, fleet), *find_unmeasured_kinds(kinds, fleet)),
        )
        for sentence in self._unmatched:
            if sentence not in before:
                log.warning(sentence)

    async def _close_months(self) -> None:
        if self.parts.engine.observer.has_looked:  # what ended without a service is known now, and is not billed
            await close_months(self.parts)

    async def _look_at_catalog(self) -> None:
        if await self._reload.look():
            await self._observe_fleet()  # GPUs may have other kinds now

    async def _look_for_groups(self) -> None:
        await refresh_class_members(self.parts)
        if not named_groups(self.parts.catalog):
            return
        before = self.parts.members.find_missing()
        await self.parts.members.read_names()
        for sentence in self.parts.members.find_missing():
            if sentence not in before:
                log.warning(sentence)

    async def _sample(self) -> None:
        self.parts.sampler.start_due()

    async def _watch(self) -> None:
        if back_seconds := self._wall.set_back_seconds():
            log.warning(SET_BACK, show_duration(back_seconds))
        if self._opened_at is not None:
            await self.parts.store.read(self.parts.store.check_epoch)
            await self.parts.store.write(self.parts.store.try_to_write)
            if self._heartbeat is not None:
                await self._heartbeat.beat()

    async def _look_for_hub(self) -> None:
        # Apart from the store: a store that is away or hangs must not keep a service alive whose hub has ended.
        if self._options.hub_pid is not None and os.getppid() != self._options.hub_pid:
            self.stop("its hub is gone")
