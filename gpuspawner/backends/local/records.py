"""Simulated GPUs: one file for each GPU and each holder in a folder, and the values of a GPU at one time.

The stand-in ``nvidia-smi`` imports this at each run, four times a sample. Files hold ``name=value`` lines, because
importing ``pathlib``, ``json`` and ``typing`` takes three times as long as this module.
"""

from __future__ import annotations

import fcntl
import os
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "GPUSPAWNER_SIMULATED_DIR"
"""The variable with the folder of simulated GPUs."""
GPUS = "GPUSPAWNER_GPUS"
"""The variable with a workspace's GPUs: UUIDs, separated by commas."""
HOLDERS = "holders"
ENDED = "ended"
"""Folder of processes that recently held a GPU, for the sample buffer of ``nvidia-smi``."""
MIB = 1024 * 1024


class SimulatedGpu(namedtuple("SimulatedGpu", "uuid name memory_bytes compute vendor", defaults=("NVIDIA",))):
    """A simulated GPU as described in its file."""

    __slots__ = ()
    uuid: str
    name: str
    memory_bytes: int
    compute: str
    vendor: str


class Holder(namedtuple("Holder", "pid percent memory_bytes since until", defaults=(0.0, None))):
    """A process that holds a simulated GPU: its utilization, since when and, once ended, until when.

    Times are seconds of the monotonic clock.
    """

    __slots__ = ()
    pid: int
    percent: int
    memory_bytes: int
    since: float
    until: float | None


def to_lines(values: Mapping[str, object]) -> str:
    """Return values as lines of a file. A line break in a value becomes a space, and an invalid character ``?``."""
    text = "".join(f"{name}={' '.join(str(value).splitlines())}\n" for name, value in values.items())
    return text.encode("utf-8", "replace").decode()


def own_gpus(environ: Mapping[str, str]) -> tuple[SimulatedGpu, ...]:
    """Return the simulated GPUs of an environment in its order, () without any."""
    folder = environ.get(FOLDER)
    uuids = environ.get(GPUS, "").split(",") if folder else []
    found = (_gpu(os.path.join(folder or "", os.path.basename(uuid))) for uuid in uuids)
    return tuple(gpu for gpu in found if gpu is not None)


def holders(folder: str | os.PathLike[str], uuid: str) -> tuple[Holder, ...]:
    """Return the live holders of a GPU by pid."""
    return _holders(os.path.join(folder, HOLDERS), uuid, locked=True)


def recent_holders(folder: str | os.PathLike[str], uuid: str) -> tuple[Holder, ...]:
    """Return the recent holders of a GPU."""
    return _holders(os.path.join(folder, ENDED), uuid, locked=False)


def _holders(folder: str, uuid: str, *, locked: bool) -> tuple[Holder, ...]:
    """Return a folder's valid records of a GPU. Workspaces of all users write there."""
    found = []
    for name in _names(folder):
        pid, _, gpu = name.partition(".")
        if gpu != uuid:
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                if locked and not _is_locked(file.fileno()):
                    continue  # its process has ended
                values = _from_lines(file)
                until = values.get("until")
            found.append(
                Holder(
                    int(pid),
                    int(values["percent"]),
                    int(values["memory_bytes"]),
                    float(values.get("since", 0.0)),
                    None if until is None else float(until),
                )
            )
        except (OSError, ValueError, KeyError):
            continue
    return tuple(sorted(found))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _gpu(path: str) -> SimulatedGpu | None:
    try:
        with open(path, encoding="utf-8") as file:
            values = _from_lines(file)
            return SimulatedGpu(
                values["uuid"], values["name"], int(values["memory_bytes"]), values["compute"], values["vendor"]
            )
    except (OSError, ValueError, KeyError):
        return None


def _from_lines(lines: Iterable[str]) -> dict[str, str]:
    """Return the values that :func:`to_lines` made. Raises ValueError for any other line."""
    return dict(line.rstrip("\n").split("=", 1) for line in lines)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


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
