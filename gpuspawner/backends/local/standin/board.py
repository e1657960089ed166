"""What a simulated board says of itself: the values behind every form."""

from __future__ import annotations

import os
from collections import namedtuple

from gpuspawner.backends.local.records import FOLDER, MIB, Holder, SimulatedGpu, holders, own_gpus, recent_holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER, CUDA = "590.48.01", "13.1"
"""Of the captures that the forms were taken from."""
SAMPLES, SAMPLE_SECONDS = 99, 1 / 6
"""Of the sample buffer: as many, and as long, as NVIDIA's documents and users' reports give."""
IDLE_WATTS, FULL_WATTS = 60, 400
"""Arbitrary, of the order of a data centre GPU: power follows the utilization between them."""


class Worker(namedtuple("Worker", "pid name memory_mib")):
    """A process on a board."""

    __slots__ = ()
    pid: int
    name: str
    memory_mib: int


class Board(namedtuple("Board", "number gpu workers percent spells")):
    """One simulated GPU at one instant. ``spells`` are what holds it, and what did until lately."""

    __slots__ = ()
    number: int
    gpu: SimulatedGpu
    workers: tuple[Worker, ...]
    percent: int
    spells: tuple[Holder, ...]

    def samples(self, now: float) -> tuple[int, ...]:
        """Return the utilization of the last seconds, sample by sample, the newest first."""
        moments = [now - number * SAMPLE_SECONDS for number in range(SAMPLES)]
        return tuple(
            min(100, sum(s.percent for s in self.spells if s.since <= at and (s.until is None or at < s.until)))
            for at in moments
        )

    @property
    def bus_id(self) -> str:
        """A PCI address, by the number."""
        return f"00000000:{self.number + 1:02X}:00.0"

    @property
    def total_mib(self) -> int:
        """All its memory."""
        return self.gpu.memory_bytes // MIB

    @property
    def used_mib(self) -> int:
        """What its processes hold, at most all of it."""
        return min(self.total_mib, sum(worker.memory_mib for worker in self.workers))

    @property
    def free_mib(self) -> int:
        """What is left."""
        return self.total_mib - self.used_mib

    @property
    def memory_percent(self) -> int:
        """How busy the memory is: a tenth of the utilization, as matrix work shows it."""
        return self.percent // 10

    @property
    def watts(self) -> float:
        """Power drawn now."""
        return IDLE_WATTS + (FULL_WATTS - IDLE_WATTS) * self.percent / 100

    @property
    def celsius(self) -> int:
        """Temperature now."""
        return 28 + self.percent // 3

    @property
    def clock_mhz(self) -> int:
        """Of graphics and multiprocessors."""
        return 1410 if self.percent else 210


def boards(environ: Mapping[str, str], vendor: str = "NVIDIA") -> tuple[Board, ...]:
    """Return the workspace's own boards of a vendor, in the order in which it got them."""
    folder = environ.get(FOLDER, "")
    found = []
    for number, gpu in enumerate(gpu for gpu in own_gpus(environ) if gpu.vendor == vendor):
        held = holders(folder, gpu.uuid)
        workers = tuple(Worker(one.pid, _program(one.pid), one.memory_bytes // MIB) for one in held)
        spells = (*held, *recent_holders(folder, gpu.uuid))
        found.append(Board(number, gpu, workers, min(100, sum(one.percent for one in held)), spells))
    return tuple(found)


def chosen(all_boards: tuple[Board, ...], wanted: str | None) -> tuple[Board, ...]:
    """Return the boards that ``-i`` names by index, UUID or bus id, with commas between; all for None."""
    if wanted is None:
        return all_boards
    names = {name.strip().lower() for name in wanted.split(",")}
    return tuple(b for b in all_boards if names & {str(b.number), b.gpu.uuid.lower(), b.bus_id.lower()})


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return "[Not Found]"
