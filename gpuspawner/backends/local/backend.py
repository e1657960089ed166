"""The local backend: workspaces are processes of this machine."""

from __future__ import annotations

import asyncio
import glob
import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.local import nvidia, processes, records, simulated
from gpuspawner.backends.local.nvidia import GpuUsers
from gpuspawner.backends.local.processes import Process, run_script
from gpuspawner.backends.probes.script import script as probe_script
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.gpus.vendors import NVIDIA, Vendor, vendor_of
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import GpuHealth

DEVICES = "/dev/nvidia[0-9]*"
"""Device files of real GPUs, without nvidiactl and nvidia-uvm, which all GPUs share."""
NO_PROCESS = ProbeResult(problem="the workspace has no process")


class LocalBackend:
    """Processes of this machine, with its own GPUs or, without any, the simulated ones of the catalog.

    The choice is made once. GPUs that stop answering are unknown and never become simulated ones.

    Args:
        kinds: the catalog's GPU kinds, in its order.
        simulated_counts: number of simulated GPUs of each kind.
        data_dir: folder of the simulated GPUs' files.
        readings: readings of one probe. More readings miss fewer bursts, but each runs ``nvidia-smi`` for 0.1 s.
        pause_seconds: longest pause between readings. A short deadline shortens it.
        grace_seconds: time between SIGTERM and SIGKILL when a workspace is ended.
    """

    def __init__(
        self,
        kinds: Iterable[GpuKind],
        simulated_counts: Mapping[str, int],
        data_dir: Path,
        *,
        readings: int = 3,
        pause_seconds: float = 1.0,
        grace_seconds: float = 5.0,
    ) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._counts = dict(simulated_counts)
        self._of_simulated = {name: self._kinds[name] for name in self._counts}
        self._folder = Path(data_dir).resolve() / "simulated-gpus"
        self._readings, self._pause_seconds, self._grace_seconds = readings, pause_seconds, grace_seconds
        self._simulates: bool | None = None
        self._command: str | None = None
        self._probing: set[tuple[str, int]] = set()
        self._parents: dict[str, str] = {}
        self._domains: tuple[list[str], Mapping[str, tuple[str, ...]]] = [], {}
        """The GPUs' UUIDs, and their NVLink and NUMA domains by UUID, once all are known. Both change only with the
        hardware."""
        self._vendors: dict[str, Vendor] = {}
        """Vendors of the simulated GPUs by UUID. Real ones of this machine are NVIDIA's."""

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match GPUs to these kinds. Simulated GPUs keep their kind."""
        self._kinds = {kind.name: kind for kind in kinds}

    async def fleet(self) -> Fleet:
        """Return the GPUs of this machine. Raises Unavailable if they cannot be read."""
        if self._simulates is None:
            self._simulates = await self._must_simulate()
        gpus = await self._simulated() if self._simulates else await self._real()
        return Fleet(gpus, complete=True)

    async def workspaces(self) -> tuple[Running, ...]:
        """Return the running workspaces from ``/proc``."""
        found: dict[tuple[str, int], list[Process]] = {}
        for process in await asyncio.to_thread(processes.scan):
            found.setdefault((process.lease_id, process.attempt), []).append(process)
        running = []
        for key, alive in sorted(found.items()):
            own = [process for process in alive if not process.probes] or alive  # a probe's leftovers must end too
            running.append(Running(*key, tuple(p.pid for p in own), processes.age_seconds(own[0]), own[0].environment))
        return tuple(running)

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe with the environment, and as the user, of the workspace's oldest process."""
        key = lease_id, attempt
        if key in self._probing:
            return ProbeResult(problem="the last probe has not ended yet")
        self._probing.add(key)
        try:
            own = await self._own_processes(key)
            if not own:
                return NO_PROCESS
            devices = {gpu: self._parents[gpu] for gpu in leased if gpu in self._parents}
            shown = tuple(devices.get(gpu, gpu) for gpu in leased)
            vendor = self._vendors.get(leased[0], NVIDIA) if leased else NVIDIA
            parameters = self._parameters(own, shown, vendor, deadline_seconds)
            result = await run_script(own[0].pid, probe_script(), parameters, deadline_seconds, "the probe")
            # Tools of other vendors print no UUIDs. They list the workspace's own GPUs in order.
            return replace(result, devices=devices, counted=vendor is not NVIDIA)
        finally:
            self._probing.discard(key)

    async def gpu_health(self) -> Mapping[str, GpuHealth]:
        """Return the health of this machine's real GPUs by ``nvidia-smi``."""
        return await nvidia.health(self._command) if self._command and not self._simulates else {}

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script with the environment, and as the user, of the workspace's oldest process."""
        own = await self._own_processes((lease_id, attempt))
        if not own:
            return NO_PROCESS
        return await run_script(own[0].pid, script, {}, deadline_seconds, "the script")

    async def _own_processes(self, key: tuple[str, int]) -> list[Process]:
        """Return the processes of a lease's attempt, oldest first, without those of a probe."""
        found = await asyncio.to_thread(processes.scan)
        return [one for one in found if (one.lease_id, one.attempt) == key and not one.probes]

    async def end(
        self,
        lease_id: str,
        attempts: frozenset[int] | None = None,
        slots: tuple[Slot, ...] = (),  # noqa: ARG002 - part of the interface
    ) -> bool:
        """End each process of these attempts, including those that left their session or ignore SIGTERM."""
        return await processes.end(
            lambda process: process.lease_id == lease_id and (attempts is None or process.attempt in attempts),
            self._grace_seconds,
        )

    def patch(
        self,
        slots: tuple[Slot, ...],
        instead: tuple[GpuKind, ...] = (),  # noqa: ARG002 - part of the interface
        *,
        one_domain: bool = False,  # noqa: ARG002 - part of the interface
    ) -> dict[str, Any]:
        """Return the variables that show a workspace its own GPUs only, and the stand-in's folder for its PATH."""
        uuids = ",".join(dict.fromkeys(slot.gpu for slot in slots))
        environment = {
            "CUDA_VISIBLE_DEVICES": uuids,  # empty: CUDA sees no GPU
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA and nvidia-smi then number GPUs alike
            "NVIDIA_VISIBLE_DEVICES": uuids or "void",
            records.GPUS: uuids,
        }
        if not self._simulates:
            return {"environment": environment, "path_prefix": ""}
        environment |= {records.FOLDER: str(self._folder), "GPUSPAWNER_PYTHON": sys.executable}
        return {"environment": environment, "path_prefix": str(nvidia.STAND_IN)}

    async def _must_simulate(self) -> bool:
        self._command = nvidia.find()
        if not self._counts or nvidia.has_devices():
            return False
        try:
            return self._command is None or not await nvidia.listing(self._command)
        except Unavailable:
            return True

    async def _simulated(self) -> tuple[Gpu, ...]:
        kinds = [self._of_simulated[name] for name, count in self._counts.items() for _ in range(count)]
        own_index = [index for count in self._counts.values() for index in range(count)]
        gpus = tuple(
            Gpu(
                id=uuid_of(self._folder, kind.name, own),
                pool=kind.name,
                node=platform.node(),
                index=index,
                model=f"{kind.title} (simulated)",
                memory_bytes=kind.memory_bytes,
                simulated=True,
            )
            for index, (kind, own) in enumerate(zip(kinds, own_index, strict=True))
        )
        self._vendors = {gpu.id: self._vendor_of(gpu) for gpu in gpus}
        try:
            simulated.create(
                self._folder,
                [
                    records.SimulatedGpu(
                        gpu.id,
                        gpu.model,
                        gpu.memory_bytes,
                        self._of_simulated[gpu.pool].compute,
                        self._vendor_of(gpu).name,
                    )
                    for gpu in gpus
                ],
            )
        except OSError as error:
            raise Unavailable(f"the simulated GPUs' files cannot be written: {error}") from None
        apps = [(gpu.id, holder.pid) for gpu in gpus for holder in records.holders(self._folder, gpu.id)]
        users = GpuUsers(apps, await asyncio.to_thread(processes.scan) if apps else ())
        notes = {gpu.id: users.strangers_on({gpu.id}, gpu.id, None) for gpu in gpus}
        return tuple(replace(gpu, foreign=bool(notes[gpu.id]), note=notes[gpu.id]) for gpu in gpus)

    def _vendor_of(self, gpu: Gpu) -> Vendor:
        return vendor_of(self._of_simulated[gpu.pool].resource) or NVIDIA

    async def _real(self) -> tuple[Gpu, ...]:
        self._command = nvidia.find() or self._command  # a new driver may have it elsewhere
        if self._command is None:
            if nvidia.has_devices():
                raise Unavailable("This machine has NVIDIA devices but no nvidia-smi to read them. Nothing is granted.")
            return ()
        rows, apps = await nvidia.listing(self._command), await nvidia.compute_processes(self._command)
        mig = await nvidia.read_mig_devices(self._command, rows)
        self._parents = {device.uuid: uuid for uuid, devices in mig.items() for device in devices}
        found = await asyncio.to_thread(processes.scan)
        kinds = self._kinds.values()
        is_asked = any(kind.driver or kind.cuda for kind in kinds)
        driver = await nvidia.driver_version(self._command) if is_asked else nvidia.UNKNOWN_DRIVER
        gpus = nvidia.to_gpus(rows, apps, found, kinds, platform.node(), mig, driver)
        domains = await self._read_domains(self._command, rows) if len(rows) > 1 else {}
        return tuple(replace(gpu, domains=domains.get(gpu.id, ())) for gpu in gpus)

    async def _read_domains(self, command: str, rows: list[nvidia.Row]) -> Mapping[str, tuple[str, ...]]:
        """Return the domains of GPUs by UUID. Unknown ones are read again at the next look."""
        if self._domains[0] == (uuids := [row.uuid for row in rows]):
            return self._domains[1]
        found = await nvidia.read_domains(command, rows)
        if found.keys() >= set(uuids):
            self._domains = uuids, found
        return found

    def _parameters(
        self, own: list[Process], leased: tuple[str, ...], vendor: Vendor, deadline_seconds: float
    ) -> dict[str, str]:
        # A quarter of the deadline is for pauses: a probe longer than a short period (FAST) leaves time unobserved.
        pause_seconds = min(self._pause_seconds, deadline_seconds / (4 * self._readings))
        return {
            "GPUSPAWNER_PROBE_GPUS": ",".join(dict.fromkeys(leased)),
            "GPUSPAWNER_PROBE_READINGS": str(self._readings if leased else 0),
            "GPUSPAWNER_PROBE_PAUSE": f"{pause_seconds:.2f}",
            "GPUSPAWNER_PROBE_DEVICES": f"{glob.escape(str(self._folder))}/GPU-*" if self._simulates else DEVICES,
            "GPUSPAWNER_PROBE_VENDOR": vendor.name,
            "GPUSPAWNER_PROBE_PIDS": " ".join(str(process.pid) for process in own),
        }


def uuid_of(folder: Path, kind: str, index: int) -> str:
    """Return the UUID of a simulated GPU, which is always the same and recognizable.

    Another hub on this machine has a folder of its own and so other GPUs. Otherwise each hub would count the other's
    workspaces as its own.
    """
    digest = hashlib.sha256(f"{folder}\0{kind}".encode()).hexdigest()
    return f"GPU-51a00000-{digest[:4]}-{digest[4:8]}-{digest[8:12]}-{index:012x}"
