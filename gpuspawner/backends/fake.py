"""A backend in memory, for tests of the backend's users."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.script import BEGIN, END
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import GpuHealth
from gpuspawner.core.units import MEBIBYTE


def fake_gpus(pool: str, count: int, memory_bytes: int = 80 * 1024 * MEBIBYTE) -> tuple[Gpu, ...]:
    """Return GPUs of one kind, named ``GPU-...`` by kind and index as a real one is."""
    code = f"{sum(pool.encode()) % 65536:04x}"
    return tuple(
        Gpu(
            id=f"GPU-fa4e0000-{code}-0000-0000-{index:012x}",
            pool=pool,
            node="node-1",
            index=index,
            model=f"{pool} (fake)",
            memory_bytes=memory_bytes,
            simulated=True,
        )
        for index in range(count)
    )


def probe_text(
    percents: Mapping[str, int | str],
    *,
    memory_mib: int = 0,
    persistence: str = "Enabled",
    holders: Iterable[str] = (),
    clock_seconds: float = 100.0,
    cpu_ticks: int = 0,
    soft: Iterable[str] = (),
) -> str:
    """Return the output of the probe script for a workspace of one process.

    Args:
        percents: utilization by UUID; a text like ``[N/A]`` for what nvidia-smi cannot tell.
        memory_mib: in use on each GPU.
        persistence: mode of all.
        holders: UUIDs that the process holds.
        clock_seconds: the script's clock; it must grow from probe to probe.
        cpu_ticks: hundredths of a second that the process has used since it started.
        soft: further lines, of softer evidence.
    """
    lines = [BEGIN, f"clock {clock_seconds:.2f} 100", f"process 100 1 1000 {cpu_ticks} 0"]
    lines += [f"device /simulated/{uuid}" for uuid in percents]
    lines += [f"open 100 /simulated/{uuid}" for uuid in holders]
    lines += [*soft, "reading 0"]
    lines += [
        f"smi {index}, {uuid}, Fake GPU, Disabled, {percent}, {memory_mib}, 81920, {persistence}"
        for index, (uuid, percent) in enumerate(percents.items())
    ]
    return "\n".join([*lines, END, ""])


@dataclass
class FakeBackend:
    """A backend whose state is set by a test.

    Args:
        gpus: the fleet.
        complete: the fleet is complete.
        unreachable: message of Unavailable that fleet and workspaces raise.
        away_part: the part that is unavailable.
        running: workspaces by (lease id, attempt).
        probes: next results of each lease. The last one repeats, and without any the GPUs are idle.
        probe_seconds: duration of a probe.
        unkillable: leases that ``end`` does not end.
        health: the health of GPUs by id.
        scripts: output of each lease's scripts.
        calls: the recorded calls.
    """

    gpus: tuple[Gpu, ...] = ()
    complete: bool = True
    unreachable: str = ""
    away_part: str = ""
    running: dict[tuple[str, int], Running] = field(default_factory=dict)
    probes: dict[str, list[ProbeResult]] = field(default_factory=dict)
    probe_seconds: float = 0.0
    unkillable: set[str] = field(default_factory=set)
    health: dict[str, GpuHealth] = field(default_factory=dict)
    scripts: dict[str, ProbeResult] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def run(self, lease_id: str, attempt: int = 1, environment: Mapping[str, str] | None = None) -> None:
        """Start a workspace."""
        self.running[lease_id, attempt] = Running(lease_id, attempt, (100,), 0.0, dict(environment or {}))

    def vanish(self, lease_id: str) -> None:
        """End a workspace like a crash."""
        self.running = {key: value for key, value in self.running.items() if key[0] != lease_id}

    def change_gpu(self, uuid: str, **changes: Any) -> None:
        """Change fields of one GPU: ``healthy``, ``foreign``, ``note``."""
        self.gpus = tuple(replace(gpu, **changes) if gpu.id == uuid else gpu for gpu in self.gpus)

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Ignore the kinds: a test sets the kind of each GPU."""

    async def fleet(self) -> Fleet:
        """Return the GPUs, or raise Unavailable."""
        self._answer("fleet")
        return Fleet(self.gpus, self.complete)

    async def workspaces(self) -> tuple[Running, ...]:
        """Return the running workspaces, or raise Unavailable."""
        self._answer("workspaces")
        return tuple(self.running[key] for key in sorted(self.running))

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Return the lease's next result, or a problem if the probe exceeds its deadline."""
        self.calls.append(("probe", lease_id))
        await asyncio.sleep(min(self.probe_seconds, deadline_seconds))
        if self.probe_seconds > deadline_seconds:
            return ProbeResult(problem=f"the probe did not end within {deadline_seconds:g} s")
        if (lease_id, attempt) not in self.running:
            return ProbeResult(problem="no process of the workspace was found")
        results = self.probes.get(lease_id)
        if not results:
            clock_seconds = 100.0 + len(self.calls)
            return ProbeResult(probe_text(dict.fromkeys(leased, 0), clock_seconds=clock_seconds))
        return results.pop(0) if len(results) > 1 else results[0]

    async def gpu_health(self) -> Mapping[str, GpuHealth]:
        """Return the health that a test set."""
        return self.health

    async def run_script(
        self,
        lease_id: str,
        attempt: int,  # noqa: ARG002 - part of the interface
        script: bytes,  # noqa: ARG002 - part of the interface
        deadline_seconds: float,  # noqa: ARG002 - part of the interface
    ) -> ProbeResult:
        """Return the output of a lease's scripts."""
        return self.scripts.get(lease_id, ProbeResult())

    async def end(
        self,
        lease_id: str,
        attempts: frozenset[int] | None = None,
        slots: tuple[Slot, ...] = (),  # noqa: ARG002 - part of the interface
    ) -> bool:
        """Remove the workspace, unless it is unkillable."""
        self._answer("end", lease_id)
        if lease_id in self.unkillable:
            return False
        ended = {key for key in self.running if key[0] == lease_id and (attempts is None or key[1] in attempts)}
        self.running = {key: value for key, value in self.running.items() if key not in ended}
        return True

    def patch(
        self,
        slots: tuple[Slot, ...],
        instead: tuple[GpuKind, ...] = (),  # noqa: ARG002 - part of the interface
        *,
        one_domain: bool = False,  # noqa: ARG002 - part of the interface
    ) -> dict[str, Any]:
        """Return the GPUs with the local backend's names."""
        uuids = ",".join(slot.gpu for slot in slots)
        return {"environment": {"CUDA_VISIBLE_DEVICES": uuids, "GPUSPAWNER_GPUS": uuids}, "path_prefix": ""}

    def _answer(self, call: str, lease_id: str = "") -> None:
        self.calls.append((call, lease_id))
        if self.unreachable:
            raise Unavailable(self.unreachable, self.away_part)
