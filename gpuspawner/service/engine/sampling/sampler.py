"""The sampler: it probes every running workspace at its policy's period, and has the engine judge each sample."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from gpuspawner.backends.base import Backend, ProbeResult
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.evidence import Evidence, read_evidence
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import GpuState, Measure, Sample, Source
from gpuspawner.core.idle.verdicts import next_sample_seconds
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.observations import TakenSample
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.engine import LeaseEngine
from gpuspawner.service.engine.sampling.dcgm import Dcgm
from gpuspawner.service.engine.sampling.dcgm_values import SOURCE
from gpuspawner.service.loops import cancel_all
from gpuspawner.service.rules.policies import idle_policy_of, policy_of
from gpuspawner.service.store import ReadingRow

log = logging.getLogger("gpuspawner.sampler")

BECAUSE_CHARACTERS = 255
SOFT_CHARACTERS = 120
"""The longest stored text of one piece of soft evidence: the names of two notebooks."""
DEADLINE_PERIODS = 2.5
"""A probe's deadline in periods, if periods are shortened (FAST). A busy machine takes twice the time of a quiet one.
The pauses between its readings depend on its deadline, so a longer one would exceed the shortest periods."""
LONG_CHARACTERS = 16_384
"""The longest output of a probe that is read in the event loop. A longer one is read in a thread."""
SLEPT_SECONDS = 30.0
"""A larger difference between the two clocks is a suspension. A waiting probe starts up to 20 s late."""


@dataclass(frozen=True)
class _ProbedSample:
    """The result of one probe, and its start."""

    sample: Sample
    taken: TakenSample
    asked_at: float


class Sampler:
    """Probes each workspace that a policy judges, and has the engine judge each sample."""

    def __init__(self, allocator: Allocator, backend: Backend, engine: LeaseEngine, dcgm: Dcgm) -> None:
        """Probe through ``backend``, by the policies of the catalog in force. ``dcgm`` has the exporter's values."""
        self._registry, self._clock, self._settings = allocator.registry, allocator.clock, allocator.settings
        self._scheduler, self._in_force = allocator.scheduler, allocator.in_force
        self._backend, self._engine = backend, engine
        self.dcgm = dcgm
        self.doubts, self.monitors = SourceDisagreements(), MonitorWatch()
        self._tables: dict[str, _ProcessTables] = {}
        self._due_at: dict[str, float] = {}
        self._slots = asyncio.Semaphore(self._settings.probes_at_once)
        # A probe that failed may hang again until its deadline, so failed probes wait for each other only.
        self._slow_slots = asyncio.Semaphore(self._settings.probes_at_once)
        self._failed: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._newest: dict[str, dict[str, ReadingRow]] = {}
        self.counts: Counter[str] = Counter()

    def start_due(self) -> None:
        """Start a probe of every due workspace without a running probe. Return at once."""
        now = self._clock.now()
        up = {lease.id: lease for lease in self._registry if lease.phase in UP}
        policies: dict[str, IdlePolicy] = {}
        for name, lease in up.items():
            with self._registry.failures.isolating("choosing its policy", name):
                if policy := idle_policy_of(self._in_force.catalog, lease, now):
                    policies[name] = policy
        for gone in set(self._due_at) - set(policies):
            self._due_at.pop(gone)
            self._tables.pop(gone, None)
            self._newest.pop(gone, None)
            self._failed.discard(gone)
            self.doubts.forget(gone)
            self.monitors.forget(gone)
        new = [(name, policy.sample_seconds) for name, policy in policies.items() if name not in self._due_at]
        self._spread(new, now)
        for lease_id, policy in policies.items():
            if now >= self._due_at.get(lease_id, 0.0) and lease_id not in self._tasks:
                self._due_at[lease_id] = now + next_sample_seconds(up[lease_id].streak, policy)
                task = asyncio.create_task(self._sample(lease_id))
                self._tasks[lease_id] = task
                task.add_done_callback(partial(self._forget, lease_id))

    def _forget(self, lease_id: str, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(lease_id, None)

    def newest(self, lease_id: str) -> dict[str, ReadingRow]:
        """Return the newest reading of each GPU of a running workspace, by GPU id."""
        return self._newest.get(lease_id, {})

    async def close(self) -> None:
        """Cancel the probes under way."""
        await cancel_all(self._tasks.values())

    async def _sample(self, lease_id: str) -> None:
        try:
            async with self._slow_slots if lease_id in self._failed else self._slots:
                probed = await self._probe(lease_id)
            if probed is not None:
                await self._judge(lease_id, probed)
        except Unavailable as error:
            self._registry.failures.note_wait("sampling", lease_id, error)
        except Exception as error:  # noqa: BLE001 - recorded, with its traceback
            # A defect in the probe of one workspace must not end the sampling of others.
            self._registry.failures.note("sampling", lease_id, error)
        else:
            self._registry.failures.clear("sampling", lease_id)

    async def _probe(self, lease_id: str) -> _ProbedSample | None:
        lease = self._registry.get(lease_id)
        if lease is None:
            return None
        now = self._clock.now()
        policy = idle_policy_of(self._in_force.catalog, lease, now)
        if policy is None:
            return None
        leased, server_started = tuple(slot.gpu for slot in lease.slots), lease.server_started
        deadline = min(self._settings.probe_deadline_seconds, max(1.0, DEADLINE_PERIODS * policy.sample_seconds))
        result = await self._backend.probe(lease_id, lease.attempt, leased, deadline)
        tables = self._tables.get(lease_id) or _ProcessTables()
        (self._failed.add if result.problem else self._failed.discard)(lease_id)
        lease = self._registry.get(lease_id)
        if lease is None or lease.phase not in UP:
            return None
        at = self._clock.now()
        since = lease.sampled_at if lease.sampled_at is not None else at - policy.sample_seconds
        shared = frozenset(slot.gpu for slot in lease.slots if slot.share < 1)
        before = tables.previous(now - policy.sample_seconds)
        read = partial(
            _parsed,
            result,
            leased,
            before,
            interval_seconds=max(0.0, at - since),
            age_seconds=at - (lease.running_at or now),
            shared=shared,
            strangers=self._strangers(shared | frozenset(result.devices)),
        )
        sample, table = await asyncio.to_thread(read) if len(result.text) > LONG_CHARACTERS else read()
        if table is not None and table is not before and lease_id in self._due_at:  # it may have ended meanwhile
            self._tables[lease_id] = tables
            if tables.add(table, now) > SLEPT_SECONDS:
                sample = replace(sample, problem="the machine slept since the reading before")
        noted_at = self._engine.observer.last_activity(lease)
        sample = replace(
            sample,
            hub_idle_seconds=None if noted_at is None else self._clock.wall() - noted_at,
            sources=(*sample.sources, *self.dcgm.readings(leased, result, shared, since)),
        )
        mode = policy_of(self._in_force.catalog, lease, now).mode
        evidence = read_evidence(sample, policy)
        taken = TakenSample(evidence, policy, mode, at, server_started, sample.memory_kills, sample.kernels)
        return _ProbedSample(sample, taken, now)

    def _spread(self, new: Sequence[tuple[str, float]], now: float) -> None:
        """Spread the probes of these leases over their period, if they are more than can be probed at once.

        After a restart all leases are new, and would otherwise be probed at one moment of every minute.
        """
        if len(new) > self._settings.probes_at_once:
            for number, (lease_id, period_seconds) in enumerate(new):
                self._due_at[lease_id] = now + period_seconds * number / len(new)

    def _strangers(self, gpus: frozenset[str]) -> dict[str, str]:
        """Return the notes on processes without a lease on these GPUs. Without GPUs, the fleet is not searched."""
        return (
            {gpu.id: gpu.note for gpu in self._scheduler.fleet.gpus if gpu.foreign and gpu.id in gpus} if gpus else {}
        )

    async def _judge(self, lease_id: str, probed: _ProbedSample) -> None:
        """Judge and store a sample, and set the time of the next one."""
        sample, taken = probed.sample, probed.taken
        found = await self._engine.judge_sample(
            lease_id, taken, lambda lease: reading_rows(lease, sample, taken.evidence, taken.policy, taken.at)
        )
        if found is None:
            return
        lease, rows = found
        self._newest[lease_id] = {row.gpu: row for row in rows}
        self.monitors.see(lease_id, sample)
        self.doubts.see(lease, taken.evidence, taken.at)
        # Counted from the probe's start, and by its result.
        self._due_at[lease_id] = probed.asked_at + next_sample_seconds(lease.streak, taken.policy)
        if lease.streak.kind is not None:
            self.counts[lease.streak.kind.value] += 1


def _parsed(
    result: ProbeResult, leased: tuple[str, ...], previous: ProcessTable | None, **seen: Any
) -> tuple[Sample, ProcessTable | None]:
    """Return the sample of a probe. If its output cannot be read, the sample is unknown."""
    try:
        return parse_probe(result, leased, previous, **seen)
    except Exception:
        log.exception("what a probe told broke its reading")
        problem = "what the probe told is not understood"
        return Sample(leased, (), seen["interval_seconds"], seen["age_seconds"], problem=problem), previous


class _ProcessTables:
    """The process tables of one workspace: those of the last period, and one from before it."""

    def __init__(self) -> None:
        self._kept: deque[tuple[ProcessTable, float]] = deque()

    def previous(self, before: float) -> ProcessTable | None:
        """Return the newest table from ``before``, else the oldest, with the monitors of the newest of all.

        CPU use is averaged over a period. Over a few seconds, steady use would look like no use.
        """
        if not self._kept:
            return None
        while len(self._kept) > 1 and self._kept[1][1] <= before:
            self._kept.popleft()
        return replace(self._kept[0][0], monitor_state=self._kept[-1][0].monitor_state)

    def add(self, table: ProcessTable, at: float) -> float:
        """Keep a table. Return how long the machine was suspended since the last one.

        Its own clock went on then, and the service's did not. CPU use averaged over both would look like no use.
        """
        before, before_at = self._kept[-1] if self._kept else (table, at)
        self._kept.append((table, at))
        return table.clock_seconds - before.clock_seconds - (at - before_at)


def reading_rows(lease: Lease, sample: Sample, evidence: Evidence, policy: IdlePolicy, at: float) -> list[ReadingRow]:
    """Return the rows to store for a sample: one for each GPU, or one for a workspace without a GPU."""
    seen = {gpu.gpu: gpu for gpu in evidence.gpus}
    read = {reading.gpu: reading for reading in sample.gpus}
    told = [one for one in sample.soft if one.active is not False]
    soft = {one.name: {"active": one.active, "words": one.words[:SOFT_CHARACTERS]} for one in told}
    whole = ReadingRow(
        lease.id,
        at,
        min(sample.interval_seconds, 1.5 * policy.sample_seconds),
        gpu="",
        utilization_percent=None,
        memory_used_bytes=None,
        memory_total_bytes=None,
        kind=lease.streak.kind.value if lease.streak.kind is not None else "unknown",
        because=lease.streak.because[:BECAUSE_CHARACTERS],
        cpu_cores=sample.cpu_cores,
        ended_cpu_cores=sample.ended_cpu_cores,
        host_memory_bytes=sample.host_memory_bytes,
        soft=soft if sample.soft else None,
    )
    if not sample.leased:
        return [whole]
    rows = []
    for gpu in sample.leased:
        reading = read.get(gpu)
        sources = [one for one in sample.sources if one.gpu in {gpu, ""}]
        rows.append(
            replace(
                whole,
                gpu=gpu,
                utilization_percent=reading.highest_percent if reading else None,
                memory_used_bytes=reading.memory_used_bytes if reading else None,
                memory_total_bytes=reading.memory_total_bytes if reading else None,
                kind=seen[gpu].state.value if gpu in seen else "unknown",
                because=(sample.problem or seen[gpu].words)[:BECAUSE_CHARACTERS],
                shared=reading.shared if reading else False,
                holders=reading.holders if reading else None,
                holders_cpu_cores=reading.holders_cpu_cores if reading else None,
                possible_holders=reading.possible_holders if reading else 0,
                possible_cpu_cores=reading.possible_cpu_cores if reading else None,
                buffer_percent=reading.buffer_percent if reading else None,
                encoder_percent=reading.encoder_percent if reading else None,
                decoder_percent=reading.decoder_percent if reading else None,
                seen_seconds=reading.seen_seconds if reading else 0.0,
                persistence=reading.persistence if reading else None,
                sources=[asdict(one) for one in sources] or None,
            )
        )
    return rows


TOLD_SECONDS = 2 * 3600.0
"""How long the sources may disagree. Each measures at other moments, so a shorter disagreement is no fault."""


class SourceDisagreements:
    """Since when only DCGM exporter has seen work, by workspace.

    One of exporter and probe is wrong: a frozen exporter shows work for ever, and a forged nvidia-smi shows none. Work
    that only one of them saw counts all the same, and an administrator finds out which is right. The times are kept in
    memory, so they begin again after a restart.
    """

    def __init__(self) -> None:
        """Start without a disagreement."""
        self._since: dict[str, tuple[float, str]] = {}

    def see(self, lease: Lease, evidence: Evidence, at: float) -> None:
        """Note which sources saw work in a sample."""
        if evidence.problem:
            return
        intervals = [one for gpu in evidence.gpus for one in gpu.intervals if one.state is GpuState.BUSY]
        if intervals and all(one.source is Source.EXPORTER for one in intervals):
            self._since.setdefault(lease.id, (at, lease.user))
        else:
            self.forget(lease.id)

    def forget(self, lease_id: str) -> None:
        """Forget a workspace that has ended, or whose sources agree."""
        self._since.pop(lease_id, None)

    def sentences(self, now: float) -> tuple[str, ...]:
        """Return a sentence for administrators about each workspace with a disagreement for hours."""
        return tuple(
            f"{SOURCE} sees work in the workspace {lease_id} of {user}, and nvidia-smi in it has seen none for "
            f"{show_duration(now - since)}. One of both is wrong: look whether the exporter still renews its values, "
            "and whether the workspace has an nvidia-smi of its own."
            for lease_id, (since, user) in self._since.items()
            if now - since >= TOLD_SECONDS
        )


SAMPLES = 3
"""The monitor does not run if it is missing in this many samples. A Jupyter server takes a minute to start."""


class MonitorWatch:
    """Counts for each workspace the samples in a row in which no source covered all of the time."""

    def __init__(self) -> None:
        """Start without samples."""
        self._without: dict[str, int] = {}
        self._with: set[str] = set()

    def see(self, lease_id: str, sample: Sample) -> None:
        """Note the sources of a sample."""
        if sample.problem or not sample.gpus:
            return
        has_monitor = any(one.source is Source.MONITOR for one in sample.sources)
        is_averaged = any(one.measure is Measure.ENGINE for one in sample.sources)
        (self._with.add if has_monitor else self._with.discard)(lease_id)
        self._without[lease_id] = 0 if has_monitor or is_averaged else self._without.get(lease_id, 0) + 1

    def forget(self, lease_id: str) -> None:
        """Forget a workspace that has ended."""
        self._without.pop(lease_id, None)
        self._with.discard(lease_id)

    def runs(self, lease_id: str) -> bool | None:
        """Return whether the monitor runs, None if it is unknown, or not needed because DCGM exporter has activity."""
        if lease_id in self._with:
            return True
        return False if self._without.get(lease_id, 0) >= SAMPLES else None
