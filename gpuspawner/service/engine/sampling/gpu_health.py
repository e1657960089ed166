"""The health of all GPUs: read from ``nvidia-smi`` on one machine and from DCGM exporter, and kept for an hour.

An exporter names GPUs by UUID and node. A cluster that only counts its GPUs names them itself, so its GPUs are found by
their node alone.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.outages import GROWTH_SECONDS, GpuHealth, find_fault
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.sampling.dcgm import ask

log = logging.getLogger("gpuspawner.gpu_health")

LOOK_SECONDS = 30.0
FIELDS = {
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": "limit_watts",
    "DCGM_FI_DEV_SM_CLOCK": "clock_mhz",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "corrected_errors",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrected_errors",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
}
"""The metrics of DCGM exporter, and the fields of GpuHealth. The exporter's default list has most of them."""
WHOLE_NUMBERS = frozenset({"corrected_errors", "uncorrected_errors", "xid"})
QUERY = f'{{__name__=~"{"|".join(FIELDS)}"}}'
HIGHEST = 1e9
"""DCGM writes a number far above this where it has no value."""


@dataclass(frozen=True)
class HealthReading:
    """The newest health of a GPU.

    ``gpu`` is its id in the fleet, "" if its node only counts its GPUs. ``index`` is its number on the node, -1 if the
    exporter has none. ``fault`` is the reason to quarantine it, or "".
    """

    uuid: str
    gpu: str
    node: str
    index: int
    health: GpuHealth
    at: float = 0.0
    fault: str = ""


def parse_exported_health(body: bytes) -> list[HealthReading]:
    """Return the readings in an answer of Prometheus, without ``gpu``. Values of MIG instances are left out.

    Raises:
        Unavailable: the body is not an answer of Prometheus.
    """
    found: dict[str, HealthReading] = {}
    try:
        for one in json.loads(body)["data"]["result"]:
            labels, value = one["metric"], float(one["value"][1])
            uuid, field = str(labels.get("UUID", "")), FIELDS[labels["__name__"]]
            if not uuid or labels.get("GPU_I_ID") or not math.isfinite(value) or not 0 <= value < HIGHEST:
                continue
            index = int(labels["gpu"]) if str(labels.get("gpu", "")).isdecimal() else -1
            before = found.get(uuid, HealthReading(uuid, "", str(labels.get("Hostname", "")), index, GpuHealth()))
            changed: dict[str, Any] = {field: int(value) if field in WHOLE_NUMBERS else value}
            found[uuid] = replace(before, health=replace(before.health, **changed))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Unavailable(f"What Prometheus answered is not understood ({type(error).__name__}).") from error
    return list(found.values())


class GpuHealthWatch:
    """Reads the health of all GPUs, and keeps the readings of the last hour in memory."""

    def __init__(self, backend: Backend, in_force: InForce, clock: Clock, fleet: Callable[[], Fleet]) -> None:
        """Read nothing yet."""
        self._backend, self._in_force, self._clock, self._fleet = backend, in_force, clock, fleet
        self._kept: dict[str, list[HealthReading]] = {}

    def readings(self) -> list[HealthReading]:
        """Return the newest reading of each GPU."""
        return [kept[-1] for kept in self._kept.values()]

    def reading_of(self, uuid: str | None) -> HealthReading | None:
        """Return the newest reading of a GPU."""
        kept = self._kept.get(uuid or "")
        return kept[-1] if kept else None

    def health_since(self, uuid: str, at: float) -> list[GpuHealth]:
        """Return the health of a GPU at the looks since a time, of those in memory, the oldest first."""
        return [one.health for one in self._kept.get(uuid, ()) if one.at >= at]

    async def look(self) -> None:
        """Read once. Sources that do not answer leave the earlier readings until they are an hour old."""
        now = self._clock.now()
        fleet = self._fleet()
        new: dict[str, HealthReading] = {}
        for one in await self._exported():
            new[one.uuid] = replace(one, at=now)
            if gpu := fleet.by_id.get(one.uuid):
                new[one.uuid] = replace(one, gpu=gpu.id, node=gpu.node, index=gpu.index, at=now)
        for uuid, health in (await self._own()).items():
            if gpu := fleet.by_id.get(uuid):
                exported = new.get(uuid)
                both = health if exported is None else _joined(health, exported.health)
                new[uuid] = HealthReading(uuid, gpu.id, gpu.node, gpu.index, both, now)
        for uuid, reading in new.items():
            kept = [one for one in self._kept.get(uuid, ()) if one.at > now - GROWTH_SECONDS]
            self._kept[uuid] = [*kept, replace(reading, fault=find_fault(reading.health, (one.health for one in kept)))]
        self._kept = {uuid: kept for uuid, kept in self._kept.items() if kept[-1].at > now - GROWTH_SECONDS}

    async def _own(self) -> Mapping[str, GpuHealth]:
        try:
            return await self._backend.gpu_health()
        except Unavailable as error:
            log.info("the health of GPUs can't be read: %s", error)
            return {}

    async def _exported(self) -> Iterable[HealthReading]:
        exporter = self._in_force.catalog.exporter
        if exporter is None:
            return ()
        try:
            body, _ = await ask(exporter, self._clock, QUERY)
            return parse_exported_health(body)
        except Unavailable as error:
            log.info("the health of GPUs can't be read: %s", error)
            return ()


def _joined(own: GpuHealth, exported: GpuHealth) -> GpuHealth:
    """Return the machine's own values, and the exporter's values if the machine has no value."""
    return GpuHealth(
        **{name: value if (value := getattr(own, name)) is not None else getattr(exported, name) for name in vars(own)}
    )
