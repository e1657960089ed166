"""The service in this process, with a fake backend, a fake hub and a clock set by hand. The database is real."""

import asyncio
import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

from databases import Database

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import FakeBackend, fake_gpus, probe_text
from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import Gone, Unavailable
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import HOLDING, Key, Phase
from gpuspawner.core.outages import API_SERVER
from gpuspawner.service.app import Options, application, load, wire
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.engine.lease_documents import claimed_slots, lease_variables
from gpuspawner.service.fake import FakeHub, HandClock
from gpuspawner.service.process.startup_gate import StartupGate
from gpuspawner.service.settings import Settings
from gpuspawner.service.workspaces.presenter import present_workspace

SECRET = b"s" * 32

PREFIX = "/services/gpu/"


def open_gate(parts):
    """Return the application behind its startup gate, which is open."""
    gate = StartupGate(application(parts), parts)
    gate.waits_for = ""
    return gate


POLICY = {
    "mode": "enforce",
    "idle": {"below": "5%", "for": "5m", "sample": "60s", "grace": "3m"},
    "keep": {"times": 2, "each": "1h"},
    "extend": {"each": "1h", "total": "2h", "warn": ["30m", "10m"]},
}
IDLE_FOR, GRACE = 300.0, 180.0
"""Seconds of this policy from the last use to the warning, and from the warning to the end."""


def a_catalog(quota=None, policy=None, templates=None):
    entries = {
        "version": 1,
        "gpus": {
            "a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB"},
            "half": {"title": "Half an A100", "of": "a100", "shares": 2},
        },
        "templates": {
            "pytorch": {
                "title": "PyTorch",
                "gpus": {"a100": "1-8", "half": "1-2"},
                "bounds": {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"},
                "default": {"gpu": "a100", "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
            },
            **(templates or {}),
        },
        "policies": {"default": {**POLICY, **(policy or {})}},
    }
    if quota is not None:
        entries["quotas"] = {"each-user": {"each": "user", "gpus": {"hard": quota}}}
    return load_catalog(entries)


class Killed(BaseException):
    """The simulated process of the service was killed."""


class Life:
    """One simulated process of the service.

    It is killed after ``kill_at`` effects. With ``half`` the effect at which it is killed still happens.
    """

    def __init__(self, kill_at=None, *, half=False):
        self.left, self.half, self.over = kill_at, half, False
        self.begun = []

    def effect(self, act):
        """Run an effect that outlives the process, unless the process was killed."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                if self.half and not self.over:
                    act()
                self.over = True
        if self.over:
            raise Killed
        return act()


class Mortal:
    """A fake as one process of the service uses it. A killed process has no more effects."""

    def __init__(self, real, life, effects):
        self._real, self._life, self._effects = real, life, effects

    def __getattr__(self, name):
        value = getattr(self._real, name)
        if name not in self._effects:
            return value

        async def mortal(*arguments):
            def begin():
                self._life.begun.append(asyncio.ensure_future(value(*arguments)))
                return self._life.begun[-1]

            return await self._life.effect(begin)

        return mortal


class World:
    """A machine, a hub, and a service that a test can restart on the same store."""

    hub_id = "1" * 32
    secret, secret_made_at = SECRET, 0.0

    def __init__(self, store, *, gpus=2, quota=None, policy=None, templates=None, **settings):
        self.clock = HandClock()
        self.hub = FakeHub(self.clock)
        self.catalog, self.settings = a_catalog(quota, policy, templates), Settings(**settings)
        self.backend = self.make_backend(gpus)
        self.database, self.parts, self.probes = Database.of_world(store), None, 0
        self.boot()

    def make_backend(self, gpus):
        return FakeBackend(fake_gpus("a100", gpus))

    def make_scheduler(self, backend):
        """Return the scheduler of a service. None for the default one."""

    # The service

    def change_catalog(self, catalog):
        """Restart the service with another catalog."""
        self.catalog = catalog
        self.boot()

    def boot(self, life=None):
        """Restart the service: it reads its state from the store."""
        self.crash()
        self.life = life or Life()
        options = Options(
            self.database.url, self.secret, self.hub_id, "http://127.0.0.1:9/hub/api", "t", "http://127.0.0.1:9",
            PREFIX, None, secret_made_at=self.secret_made_at, store_password_file=self.database.password_file,
        )  # fmt: skip
        backend = Mortal(self.backend, self.life, {"end"})
        hub = Mortal(self.hub, self.life, {"stop", "start"})
        scheduler = self.make_scheduler(backend)
        self.parts = wire(options, self.catalog, backend, self.settings, self.clock, hub, scheduler)
        store, save = self.parts.store, self.parts.store.save
        store.save = lambda *a, **b: self.life.effect(lambda: save(*a, **b))
        claims, save_claim = store.preemptions, store.preemptions.save
        claims.save = lambda *a: self.life.effect(lambda: save_claim(*a))
        with contextlib.suppress(Killed), ThreadPoolExecutor(1) as beside:  # a test's own loop runs already
            store.open()
            beside.submit(asyncio.run, load(self.parts)).result()

    def crash(self):
        """End the service without a shutdown."""
        if self.parts is not None:
            self.life.over = True
            self.parts.store.close()

    @property
    def registry(self):
        return self.parts.registry

    @property
    def allocator(self):
        return self.parts.allocator

    async def round(self):
        """Observe the GPUs, run one round of the engine, and wait for its background work."""
        with contextlib.suppress(Killed):
            await self.parts.scheduler.observe(self.clock.now())
            await self.parts.engine.round()
        await self.settle()

    async def rounds(self, count):
        """Run rounds, one after another."""
        for _ in range(count):
            await self.round()

    async def hide_gpus(self, *also):
        """Make the list of GPUs and other calls of the backend fail, and observe the GPUs once."""
        answer = type(self.backend)._answer

        def answer_or_fail(call, lease_id=""):
            if call in {"fleet", *also}:
                raise Unavailable("No answer came.", API_SERVER)
            answer(self.backend, call, lease_id)

        self.backend._answer = answer_or_fail
        with contextlib.suppress(Unavailable):
            await self.parts.scheduler.observe(self.clock.now())

    def show_gpus(self):
        """Undo `hide_gpus`."""
        del self.backend._answer

    async def settle(self):
        """Wait until all background work has ended and all changes are stored."""
        engine, sampler = self.parts.engine, self.parts.sampler
        while tasks := [
            *(x for one in (engine._questions, engine._acts, sampler) for x in one._tasks.values()),
            *(x for x in self.life.begun if not x.done()),
            *self.asked(),
            *self.estimating(),
        ]:
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.registry.settled()

    def asked(self):
        """Return the running question to the scheduler."""
        task = self.allocator.syncs._task
        return [] if task is None else [task]

    def estimating(self):
        """Return the running computation of estimates."""
        task = self.allocator.estimator._running
        return [] if task is None or task.done() else [task]

    async def sample(self):
        """Take the samples that are due, judge them, and check the deadlines."""
        with contextlib.suppress(Killed):
            self.parts.sampler.start_due()
        await self.settle()
        with contextlib.suppress(Killed):
            await self.parts.engine.tick()
            await self.parts.preemptions.step()

    async def go_on(self, seconds, step=60.0):
        """Advance the clock, with a round and the due samples every ``step`` seconds."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.clock.advance(min(step, until - self.clock.now()))
            await self.sample()
            await self.round()

    # The spawner

    def key(self, user, server=""):
        return Key(self.hub_id, self.hub.add(user), server)

    async def ask(self, user, server="", start_id=None, boot_id="boot", **options):
        """Send the request of a spawner, a moment after the last one."""
        self.clock.advance(0.001)
        key, start_id, groups = self.key(user, server), start_id or uuid.uuid4().hex, self.hub.members.get(user, ())
        request = await self.allocator.resolver.request_of(key, user, options, groups, start_id=start_id)
        ask = StartRequest(key, user, request, options, start_id, boot_id)
        return await self.parts.attempts.acquire(ask)

    async def start(self, user, server="", **options):
        """Start a server in the hub, whose spawner then requests a lease."""
        self.hub.put(user, server)
        return await self.ask(user, server, **options)

    async def park(self, lease):
        """Park a request: its spawner in the hub no longer waits."""
        await self.parts.attempts.park(lease.id, lease.attempt)
        self.hub.forget(lease.user, lease.key.server)

    async def parked(self, user, **options):
        """Return a parked request for a free GPU, which the next round grants."""
        self.backend.complete = False
        await self.round()
        lease = await self.start(user, **options)
        await self.park(lease)
        self.backend.complete = True
        return lease

    async def acknowledge(self, lease):
        """Acknowledge the grant, as the spawner does."""
        heard = await self.parts.attempts.hear(lease.id, lease.attempt)
        if not await self.parts.engine.effects.end_older_attempts(heard):
            return None
        return (await self.parts.attempts.acknowledge(lease.id, lease.attempt))[0]

    async def create(self, lease):
        """Acknowledge the grant, and create the process of the workspace. Its server does not answer yet."""
        starting = await self.acknowledge(lease)
        self.backend.run(lease.id, lease.attempt, lease_variables(starting, SECRET))
        return starting

    async def up(self, user, server="", **options):
        """Start a workspace, and return its lease once it runs."""
        lease = await self.start(user, server, **options)
        if lease.phase is not Phase.RESERVED:
            await self.round()
            lease = self.registry.get(lease.id)
        await self.create(lease)
        self.hub.answer(user, server)
        await self.round()
        return self.registry.get(lease.id)

    async def come_up(self, lease):
        """Acknowledge the grant of a lease, and let its server answer."""
        await self.create(lease)
        self.hub.answer(lease.user, lease.key.server)
        await self.round()

    def lose(self, lease):
        """Let the process of a lease vanish, and its server in the hub."""
        self.hub.forget(lease.user, lease.key.server)
        self.backend.vanish(lease.id)

    async def stop(self, lease):
        """Stop a workspace in the name of its user."""
        await self.parts.engine.begin_stop(lease.id, Exit(ExitReason.STOPPED, lease.user, "enough"))

    async def hub_stops(self, lease, outcome="stopped", message=""):
        """Stop a server in the hub: its process ends, and the spawner reports the outcome."""
        self.hub.forget(lease.user, lease.key.server)
        self.backend.vanish(lease.id)
        await self.parts.attempts.release(lease.id, lease.attempt, outcome, message)

    # The workspaces

    def shows(self, lease, percent, *, problem="", text=None):
        """Set the next readings of the workspace's GPUs: a number, the text of nvidia-smi, or a problem."""
        self.probes += 1
        if (percent, problem, text) == (0, "", None):
            self.backend.probes.pop(lease.id, None)  # as a fake workspace reads of itself, its clock going on
            return
        percents = percent if isinstance(percent, dict) else {slot.gpu: percent for slot in lease.slots}
        result = probe_text(percents, clock_seconds=100.0 + self.probes, memory_mib=100, holders=list(percents))
        self.backend.probes[lease.id] = [ProbeResult(result if text is None else text, problem)]

    def change_process(self, lease, **changes):
        """Change what the backend reports of the process of a lease."""
        key = lease.id, lease.attempt
        self.backend.running[key] = replace(self.backend.running[key], **changes)

    # Queries

    def overused(self):
        """Return the GPUs whose leases and processes together use more than the whole GPU, with their shares."""
        users: dict[str, dict[str, Fraction]] = {}
        uses = [(x.id, x.slots) for x in self.parts.store.leases.live() if x.phase in HOLDING]
        for name, slots in uses + [(r.lease_id, claimed_slots(r)) for r in self.backend.running.values()]:
            for slot in slots:
                shares = users.setdefault(slot.gpu, {})
                shares[name] = max(shares.get(name, Fraction(0)), slot.share)
        return {gpu: shares for gpu, shares in users.items() if sum(shares.values()) > 1}

    def now_of(self, lease):
        """Return the stored state of a lease."""
        return self.parts.store.leases.get(lease.id)

    def view(self, lease):
        """Return what pages show of the stored state of a lease."""
        return present_workspace(self.parts, self.now_of(lease))

    def phase(self, lease):
        return self.now_of(lease).phase

    def streak(self, lease):
        return self.now_of(lease).streak

    def audit(self, lease):
        """Return the audited actions on a lease, the oldest first: (actor, action, reason)."""
        return [(x.actor, x.event.action, x.why) for x in reversed(self.parts.store.audit_log.latest(lease.id))]

    def did(self, lease):
        return [action for _, action, _ in self.audit(lease)]

    async def speaks(self, lease):
        """Return whether the service accepts the spawner's messages for this attempt."""
        try:
            await self.parts.attempts.hear(lease.id, lease.attempt)
        except Gone:
            return False
        return True
