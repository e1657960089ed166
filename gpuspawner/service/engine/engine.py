"""The lease engine: observes hub and backend, commits the next step of each lease, and carries out its effect.

``core.leases.steps`` decides. Each lease has its own task with its own back-off, so that a lease that hangs or fails
blocks no other. An effect is carried out only after the lease that requires it is stored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpuspawner.backends.base import Backend
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.idle.verdicts import LEAST_GRACE_SECONDS
from gpuspawner.core.leases import exits, steps
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.observations import Effect, Running, TakenSample
from gpuspawner.core.leases.step_results import Step
from gpuspawner.core.queue.class_holds import leases_reaching_into_holds
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.allocation.start_attempts import StartAttempts
from gpuspawner.service.engine.effects import EffectRunner, KeyedExecutor
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.hub_state import GroupMembers, HubServers
from gpuspawner.service.engine.lease_documents import HubIdentity
from gpuspawner.service.engine.observations import LeaseObserver
from gpuspawner.service.engine.recovery import Availability, read_release_spool
from gpuspawner.service.failures import OF_ALL, step_each
from gpuspawner.service.store import AuditLine, ReadingRow

log = logging.getLogger("gpuspawner.engine")

QUESTIONS_AT_ONCE = 8
"""Questions about single servers that the hub gets at the same time. Arbitrary: the hub is one process, and one that
hangs gets this many before the service knows."""
ACTS_AT_ONCE = 64
"""Starts, stops and ends of processes at the same time. Arbitrary: more than the allowed starts, so that no stop waits
for them, and few enough for the APIs of hub and cluster."""
STEP = "stepping a lease"
"""The name of the step of a lease in the log, the metric and the console."""
HOLDS_SECONDS = 30.0
"""How often the engine computes which workspaces run into a class hold. Arbitrary: users are warned an hour before."""


class QuietLease(NamedTuple):
    """A lease that needs no step before ``wake_at``, unless the lease or its observation changes."""

    lease: Lease
    signature: tuple[object, ...]
    wake_at: float


class LeaseEngine:
    """Steps each lease, and starts and ends workspaces."""

    def __init__(
        self,
        allocator: Allocator,
        hub: HubClient,
        members: GroupMembers,
        backend: Backend,
        identity: HubIdentity,
        data: Path | None = None,
    ) -> None:
        """Start without an observation. ``data`` is the folder that spawner and service share, None without one."""
        self._registry, self._allocator, self._clock = allocator.registry, allocator, allocator.clock
        self._backend, self._data = backend, data
        self.attempts = StartAttempts(allocator)
        self._servers = HubServers(hub, allocator.observed, allocator.clock, allocator.settings)
        self.effects = EffectRunner(allocator, hub, self._servers, members, backend)
        self.observer = LeaseObserver(allocator, hub, self._servers, self.effects, backend, identity)
        self.availability = Availability(allocator.registry, allocator.clock)
        self._held_at = -math.inf
        self._hub_silent_since: float | None = None
        self._quiet: dict[str, QuietLease] = {}
        self._questions = KeyedExecutor(QUESTIONS_AT_ONCE, self._clock.now)
        self._acts = KeyedExecutor(ACTS_AT_ONCE, self._clock.now)
        self._driving: set[Hashable] = set()

    async def round(self) -> None:
        """Observe everything once, and step each lease. A round never waits for the hub."""
        failures = self._registry.failures
        if self._data is not None:
            await read_release_spool(
                self._data, self.attempts
            )  # first: the reports have the reason of missing workspaces
        if not await self.observer.look_at_backend():
            return
        if self._servers.is_due():
            self._acts.offer("the list of the hub's servers", self._list_servers)
        await self._allocator.end_what_is_not_offered()
        for one in self.observer.find_orphans():
            self._acts.offer(("orphan", one.lease_id), partial(self._end_unknown, one))
        live = list(self._registry)
        names = {lease.id for lease in live}
        self.effects.start_sent &= {(lease.id, lease.granted_at) for lease in live}
        self._quiet = {name: quiet for name, quiet in self._quiet.items() if name in names}
        failures.forget_others(names)
        with suppress(Unavailable):  # noted by each lease's step
            await self.step_all(STEP, live)
        with failures.isolating("taking expired grants back"):
            await self._allocator.granting.lapse_expired()
        self._allocator.syncs.request()
        with failures.isolating("looking ahead"):
            await self._allocator.look_ahead()

    async def _list_servers(self) -> None:
        leased = {lease.key for lease in self._registry}  # read before the list, which may still show ended servers
        if await self._servers.list_servers():
            await self.observer.recovery.adopt(self._servers.servers or {}, leased)
            self._allocator.syncs.request()  # parked leases wait for this answer

    async def _end_unknown(self, one: Running) -> None:
        """End an orphan without a live lease, if the hub still lacks its server."""
        user = await self.observer.orphans.forgotten_user(one)
        if user is not None:
            await self.end_unknown(one.lease_id, user, exits.ORPHANED.message)

    async def end_unknown(self, lease_id: str, user: str, why: str) -> None:
        """End the processes of a lease that is not live. The write checks the epoch before processes are ended."""
        stopped = events.Stopped(ExitReason.ORPHANED.value, why)
        await self._registry.save(audit=[AuditLine(self._clock.now(), lease_id, user, "gpuspawner", stopped)])
        log.info("ending the remaining processes of %s of %s: %s", lease_id, user, why)
        await self._backend.end(lease_id)

    async def tick(self) -> None:
        """Step running workspaces by the last observation: their deadlines, notices and lost time."""
        failures = self._registry.failures
        news: dict[str, Any] = {}
        with failures.isolating("looking who runs into a class"):
            if failures.may_try("looking who runs into a class") and self._find_class_holds():
                news["holds_known"] = True
        with suppress(Unavailable):  # noted by each lease's step
            await self.step_all(STEP, (lease for lease in self._registry if lease.phase in UP), **news)
        for what, look in (
            ("noting lost time", self.availability.look),
            ("giving back what a budget cut", self._allocator.bounds.catch_up),
        ):
            if not failures.may_try(what):
                continue
            try:
                with failures.isolating(what):
                    await look()
            except Unavailable as error:
                failures.note_wait(what, OF_ALL, error)

    def _find_class_holds(self) -> bool:
        """Compute from time to time which workspaces run into a class hold. Return whether it was done now."""
        now = self._clock.now()
        if now - self._held_at < HOLDS_SECONDS:
            return False
        seen = self._allocator.observed.snapshot()
        if not seen.fleet.complete:  # no workspace would run into a hold, and all would be warned a second time
            return False
        self.observer.held = leases_reaching_into_holds(seen) if seen.rules.holds else {}
        self._held_at = now
        return True

    # Stepping

    async def step_all(self, name: str, leases: Iterable[Lease], **news: Any) -> None:
        """Step each lease once, all at the same time, so that the steps are written together.

        Args:
            name: the name of the step, for the log, the metric and the console.
            leases: the leases.
            news: further fields of their observations. With news, no lease is skipped as quiet.

        Raises:
            Superseded: a newer service owns the store.
            Unavailable: some of it is not stored now.
        """
        some = [lease for lease in leases if news or not self._is_quiet(lease)]
        await step_each(name, some, partial(self._move, **news), self._registry.failures)

    async def carry_out_notices(self, is_over: Callable[[str], bool]) -> None:
        """End the workspaces whose notice of a stronger claim has expired, and spare those whose claim is over.

        Args:
            is_over: returns whether a claim, by its id, no longer needs the GPUs of workspaces under its notice.

        Raises:
            Unavailable: some of it is not stored now.
        """

        def move(lease: Lease) -> asyncio.Future[None] | None:
            claim = lease.notice.preemption if lease.notice is not None else ""
            return self._move(lease, claim_is_over=is_over(claim))

        under_notice = [x for x in self._registry if x.phase in UP and x.notice is not None and x.notice.preemption]
        await step_each("notice of a claim", under_notice, move, self._registry.failures)

    def _move(self, lease: Lease, **news: Any) -> asyncio.Future[None] | None:
        found, stored = self._advance(lease, **news)
        self._offer(found)
        return stored

    def _advance(
        self, lease: Lease, readings: Callable[[Lease], list[ReadingRow]] = lambda _: [], **news: Any
    ) -> tuple[Step, asyncio.Future[None] | None]:
        """Commit the next step of a lease. Return it, and the future of its write, None without a change."""
        seen = self.observer.observe(lease, **news)
        found = steps.step(lease, seen, self.observer.rules_of(lease), self._clock.now())
        if lease.phase is Phase.STARTING and found.lease.phase is Phase.RUNNING and not seen.processes:
            # The hub has the server, so it uses its GPUs. Without a process, its activity is unknown, never idle.
            log.error("no process of %s's workspace is seen: may the service read its environment?", lease.user)
        rows = readings(found.lease)
        if found.lease == lease and not found.notes and not rows:
            if found.effect is None and lease.phase in UP | WAITING:
                self._quiet[lease.id] = QuietLease(lease, self.observer.signature(lease), found.wake_at)
            return found, None
        return found, self._allocator.commits.commit(lease, found, rows)

    def _is_quiet(self, lease: Lease) -> bool:
        """Return whether neither a lease nor its observation changed since it needed no step."""
        quiet = self._quiet.get(lease.id)
        if quiet is None or quiet.lease is not lease:
            return False
        return self._clock.now() < quiet.wake_at and quiet.signature == self.observer.signature(lease)

    def _offer(self, found: Step) -> None:
        """Start a task that carries out an effect. Each state of a lease has one task at a time."""
        lease, effect = found.lease, found.effect
        if effect is None:
            return
        if lease.phase is Phase.STOPPING:
            if lease.hub_gone or self._allocator.observed.hub_answers:
                self._acts.offer(state_key(lease), partial(self.drive, lease.id))
        elif effect is not Effect.ASK_SERVER:
            self._acts.offer(state_key(lease), partial(self._drive, lease.id))
        elif self._allocator.observed.hub_answers and not self._servers.in_doubt:
            self._questions.offer(state_key(lease), partial(self._ask, lease.id))

    async def _ask(self, lease_id: str) -> None:
        if not self._servers.in_doubt:  # the hub may have failed to answer while this question waited
            await self._drive(lease_id)

    async def drive(self, lease_id: str) -> None:
        """Step a lease until it waits. A failed effect is tried again at a later round."""
        try:
            await self._drive(lease_id)
        except (Unavailable, Conflict) as error:
            log.warning("the stop of %s waits: %s", lease_id, error)

    async def _drive(self, lease_id: str) -> None:
        """Step, commit, carry out the effect, and step with its outcome, until no effect is left."""
        lease = self._registry.get(lease_id)
        key = None if lease is None else state_key(lease)
        if key is None or key in self._driving:
            return
        self._driving.add(key)
        try:
            await self._drive_on(lease_id)
        finally:
            self._driving.discard(key)

    async def _drive_on(self, lease_id: str) -> None:
        outcome, asked = None, None
        while True:
            await self._registry.stored(lease_id)
            lease = self._registry.get(lease_id)
            if lease is None or asked not in {None, state_key(lease)}:
                return  # it changed while the effect was carried out
            found, stored = self._advance(lease, outcome=outcome)
            if stored is not None:
                await asyncio.gather(stored, *([] if found.lease.live else [self._allocator.grant_waiting()]))
            if found.effect is None or (outcome is not None and outcome.effect is found.effect):
                return
            asked = state_key(found.lease)
            outcome = await self.effects.carry_out(found.lease, found.effect)
            if outcome is None:
                return

    # Stops, samples, and times in which users could not react

    def begin_stop(
        self, lease_id: str, how: Exit, still: Callable[[Lease], bool] = lambda _: True
    ) -> asyncio.Future[None]:
        """Begin a stop if ``still`` is true for the newest lease. The result is done once the stop is stored.

        Raises:
            Conflict: the lease has ended or is stopping, or the reason for the stop no longer holds.
        """
        lease = self._registry.get(lease_id)
        if lease is None or lease.phase is Phase.STOPPING or not still(lease):
            raise Conflict("This workspace is not to be stopped any more.")
        return self._allocator.commits.finish(lease, how, evidence=True)

    async def judge_sample(
        self, lease_id: str, taken: TakenSample, rows: Callable[[Lease], list[ReadingRow]]
    ) -> tuple[Lease, list[ReadingRow]] | None:
        """Judge a sample, and store it with the step in one write, so that a crash cannot lose the warning.

        Args:
            lease_id: the sampled lease.
            taken: the sample.
            rows: returns the readings of the judged lease to store.

        Returns:
            The judged lease and its readings, None if the lease ended or has another server now.
        """
        await self._catch_up()
        lease = self._registry.get(lease_id)
        if lease is None or lease.phase not in UP or lease.server_started != taken.server_started:
            return None
        kept: list[ReadingRow] = []

        def readings(after: Lease) -> list[ReadingRow]:
            kept.extend(rows(after))
            return kept

        found, stored = self._advance(lease, readings, sample=taken)
        self._offer(found)
        if stored is not None:
            await stored
        return found.lease, kept

    async def follow_catalog(self) -> None:
        """Judge each workspace by the catalog in force, after a full idle period from now on.

        Raises:
            Unavailable: the store does not answer.
        """
        up = [lease for lease in self._registry if lease.phase in UP]
        await self.step_all("following the catalog", up, catalog_changed=True)

    async def _catch_up(self) -> None:
        """After an outage of store or hub, resume as after a restart, because users could not press Keep.

        A hub that does not answer for less than a minute does not count.
        """
        now, since, answers = self._clock.now(), self._hub_silent_since, self._allocator.observed.hub_answers
        self._hub_silent_since = None if answers else (now if since is None else since)
        hub_was_away = answers and since is not None and now - since >= LEAST_GRACE_SECONDS
        if self._registry.failed_to_write or hub_was_away:
            self._registry.failed_to_write = False  # true again if this fails
            await self.resume()

    async def resume(self) -> None:
        """After a restart, leave users enough time of each grace period and each notice to react.

        Raises:
            Unavailable: the store does not answer.
        """
        now = self._clock.now()

        def resumed(lease: Lease) -> asyncio.Future[None] | None:
            found = steps.resume(lease, self.observer.rules_of(lease), now)
            if found.lease == lease and not found.retold:
                return None
            return self._allocator.commits.commit(lease, found)

        up = [lease for lease in self._registry if lease.phase in UP]
        await step_each("going on after a restart", up, resumed, self._registry.failures)

    async def close(self) -> None:
        """Cancel the running effects. Each of them can be repeated."""
        await self._questions.close()
        await self._acts.close()


def state_key(lease: Lease) -> Hashable:
    """Return the key of the effects of a lease. It changes with the lease, so that an older task blocks no new one."""
    return lease.id, lease.phase, lease.attempt, lease.granted_at, lease.hub_gone
