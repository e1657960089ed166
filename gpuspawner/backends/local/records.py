"""Simulated GPUs and their holders as files in a folder: one file for each GPU and each holder.

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
    """Return the values that :func:`written` wrote. Raises ValueError for any other line."""
    return dict(line.rstrip("\n").split("=", 1) for line in lines)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
