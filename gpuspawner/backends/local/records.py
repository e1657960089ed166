"""What simulated GPUs are and who holds them, as it stands in their folder: one file a GPU, one a holder.

The stand-in ``nvidia-smi`` imports this each time that somebody looks, four times a sample. What is used here starts
in a third of the time that ``pathlib``, ``json`` and ``typing`` take to be imported: a file holds ``name=value`` lines.
"""

from __future__ import annotations

import fcntl
import os
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "GPUSPAWNER_SIMULATED_DIR"
"""The variable that names the folder of simulated GPUs."""
GPUS = "GPUSPAWNER_GPUS"
"""The variable that names a workspace's GPUs: UUIDs with commas between."""
HOLDERS = "holders"
ENDED = "ended"
"""Beside HOLDERS: what held a GPU until lately, for the sample buffer of ``nvidia-smi``."""
MIB = 1024 * 1024


class SimulatedGpu(namedtuple("SimulatedGpu", "uuid name memory_bytes compute vendor", defaults=("NVIDIA",))):
    """One simulated GPU, as its file describes it."""

    __slots__ = ()
    uuid: str
    name: str
    memory_bytes: int
    compute: str
    vendor: str


class Holder(namedtuple("Holder", "pid percent memory_bytes since until", defaults=(0.0, None))):
    """A process that holds a simulated GPU: what it says to do there, since when and, once ended, until when.

    Both are seconds of the monotonic clock.
    """

    __slots__ = ()
    pid: int
    percent: int
    memory_bytes: int
    since: float
    until: float | None


def written(values: Mapping[str, object]) -> str:
    """Return values as the lines of a file: a line end within one as a space, and half a character as ``?``."""
    text = "".join(f"{name}={' '.join(str(value).splitlines())}\n" for name, value in values.items())
    return text.encode("utf-8", "replace").decode()


def own_gpus(environ: Mapping[str, str]) -> tuple[SimulatedGpu, ...]:
    """Return the simulated GPUs that an environment gives, in its order; none where it gives no simulated GPU."""
    folder = environ.get(FOLDER)
    uuids = environ.get(GPUS, "").split(",") if folder else []
    found = (_gpu(os.path.join(folder or "", os.path.basename(uuid))) for uuid in uuids)
    return tuple(gpu for gpu in found if gpu is not None)


def holders(folder: str | os.PathLike[str], uuid: str) -> tuple[Holder, ...]:
    """Return the live processes that say what they do on a GPU, by pid."""
    return _holders(os.path.join(folder, HOLDERS), uuid, locked=True)


def recent_holders(folder: str | os.PathLike[str], uuid: str) -> tuple[Holder, ...]:
    """Return what held a GPU until lately."""
    return _holders(os.path.join(folder, ENDED), uuid, locked=False)


def _holders(folder: str, uuid: str, *, locked: bool) -> tuple[Holder, ...]:
    """Read a folder's records of a GPU, those that are no record left out: workspaces of all users write there."""
    found = []
    for name in _names(folder):
        pid, _, gpu = name.partition(".")
        if gpu != uuid:
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                if locked and not _is_locked(file.fileno()):
                    continue  # a dead process's
                told = _read(file)
            until = told.get("until")
            found.append(
                Holder(
                    int(pid),
                    int(told["percent"]),
                    int(told["memory_bytes"]),
                    float(told.get("since", 0.0)),
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
            told = _read(file)
        return SimulatedGpu(told["uuid"], told["name"], int(told["memory_bytes"]), told["compute"], told["vendor"])
    except (OSError, ValueError, KeyError):
        return None


def _read(lines: Iterable[str]) -> dict[str, str]:
    """Return what :func:`written` wrote. Raises ValueError where a line is anything else."""
    return dict(line.rstrip("\n").split("=", 1) for line in lines)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
