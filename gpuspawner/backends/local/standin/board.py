"""The values of a simulated board in each format."""

from __future__ import annotations

import os
from collections import namedtuple

from gpuspawner.backends.local.records import FOLDER, MIB, Holder, SimulatedGpu, holders, own_gpus, recent_holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER, CUDA = "590.48.01", "13.1"
"""Versions of the captures that the formats are based on."""
SAMPLES, SAMPLE_SECONDS = 99, 1 / 6
"""Number and length of the samples in the buffer, by NVIDIA's documents and users' reports."""
IDLE_WATTS, FULL_WATTS = 60, 400
"""Arbitrary power of a data centre GPU. It follows the utilization between these values."""


class Worker(namedtuple("Worker", "pid name memory_mib")):
    """A process on a board."""

    __slots__ = ()
    pid: int
    name: str
    memory_mib: int


class Board(namedtuple("Board", "number gpu workers percent spells")):
    """A simulated GPU at one time. ``spells`` are its current and recent holders."""

    __slots__ = ()
    number: int
    gpu: SimulatedGpu
    workers: tuple[Worker, ...]
    percent: int
    spells: tuple[Holder, ...]

    def samples(self, now: float) -> tuple[int, ...]:
        """Return the utilization of the last seconds by sample, the newest first."""
        moments = [now - number * SAMPLE_SECONDS for number in range(SAMPLES)]
        return tuple(
            min(100, sum(s.percent for s in self.spells if s.since <= at and (s.until is None or at < s.until)))
            for at in moments
        )

    @property
    def bus_id(self) -> str:
        """PCI address by number."""
        return f"00000000:{self.number + 1:02X}:00.0"

    @property
    def total_mib(self) -> int:
        """Total memory."""
        return self.gpu.memory_bytes // MIB

    @property
    def used_mib(self) -> int:
        """Memory of its processes, at most all of it."""
        return min(self.total_mib, sum(worker.memory_mib for worker in self.workers))

    @property
    def free_mib(self) -> int:
        """Free memory."""
        return self.total_mib - self.used_mib

    @property
    def memory_percent(self) -> int:
        """Utilization of the memory: a tenth of the GPU's, as in matrix multiplications."""
        return self.percent // 10

    @property
    def watts(self) -> float:
        """Current power."""
        return IDLE_WATTS + (FULL_WATTS - IDLE_WATTS) * self.percent / 100

    @property
    def celsius(self) -> int:
        """Current temperature."""
        return 28 + self.percent // 3

    @property
    def clock_mhz(self) -> int:
        """Clock of graphics and multiprocessors."""
        return 1410 if self.percent else 210


def boards(environ: Mapping[str, str], vendor: str = "NVIDIA") -> tuple[Board, ...]:
    """Return the workspace's boards of a vendor, in the order of its GPUs."""
    folder = environ.get(FOLDER, "")
    found = []
    for number, gpu in enumerate(gpu for gpu in own_gpus(environ) if gpu.vendor == vendor):
        held = holders(folder, gpu.uuid)
        workers = tuple(Worker(one.pid, _program(one.pid), one.memory_bytes // MIB) for one in held)
        spells = (*held, *recent_holders(folder, gpu.uuid))
        found.append(Board(number, gpu, workers, min(100, sum(one.percent for one in held)), spells))
    return tuple(found)


def select_boards(all_boards: tuple[Board, ...], wanted: str | None) -> tuple[Board, ...]:
    """Return the boards that ``-i`` names by index, UUID or bus id, separated by commas. All boards for None."""
    if wanted is None:
        return all_boards
    names = {name.strip().lower() for name in wanted.split(",")}
    return tuple(b for b in all_boards if names & {str(b.number), b.gpu.uuid.lower(), b.bus_id.lower()})


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return "[Not Found]"
