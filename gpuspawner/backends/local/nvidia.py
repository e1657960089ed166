"""The machine's real GPUs, through its own ``nvidia-smi``."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpuspawner.backends.local.processes import Process
from gpuspawner.backends.local.reap import kill_group
from gpuspawner.backends.local.simulated import GPUS
from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.gpus import Gpu, GpuKind

MIB = 1024 * 1024
STAND_IN = Path(__file__).parent / "bin"
TIMEOUT_SECONDS = 30.0
"""For one ``nvidia-smi``. A cold driver takes 1 to 3 s for each GPU."""
FOREIGN_MIB = 500
"""Memory in use above this on a GPU that no workspace has is somebody else's (design, section 7)."""
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Row:
    """One GPU as ``nvidia-smi`` lists it; None for what it does not tell."""

    index: int
    uuid: str
    name: str
    mig: str
    total_mib: int | None
    used_mib: int | None


def find() -> str | None:
    """Return the machine's own ``nvidia-smi``, None where there is none. The stand-in is no answer."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = [folder for folder in folders if folder and Path(folder).resolve() != STAND_IN.resolve()]
    return shutil.which("nvidia-smi", path=os.pathsep.join(own))


def has_devices(folder: Path = Path("/dev")) -> bool:
    """Whether this machine, or this container, was given NVIDIA devices: then those that cannot be read are unknown."""
    return any(folder.glob("nvidia[0-9]*"))


async def listing(command: str) -> list[Row]:
    """Return the GPUs. Raises Unavailable with what ``nvidia-smi`` said where it fails or says what nobody expects."""
    text = await _run(
        command,
        "--query-gpu=index,uuid,name,mig.mode.current,memory.total,memory.used",
        "--format=csv,noheader,nounits",
    )
    rows = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not _is_whole(cells[0]) or not _UUID.fullmatch(cells[1]):  # noqa: PLR2004
            raise Unavailable(f"nvidia-smi lists a GPU that is not understood: {quoted(line)}. Nothing is granted.")
        rows.append(Row(int(cells[0]), cells[1], cells[2], cells[3], _mib(cells[4]), _mib(cells[5])))
    return rows


async def compute_processes(command: str) -> list[tuple[str, int]]:
    """Return UUID and pid of every compute process on the GPUs, as far as the driver tells. Raises Unavailable."""
    text = await _run(command, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits")
    pairs = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return [(uuid.strip(), int(pid)) for uuid, pid in pairs if _is_whole(pid.strip())]


def to_gpus(
    rows: Iterable[Row],
    apps: Iterable[tuple[str, int]],
    processes: Iterable[Process],
    kinds: Iterable[GpuKind],
    node: str,
) -> tuple[Gpu, ...]:
    """Return the GPUs as the fleet shows them: matched to kinds, marked where they cannot be granted, and why."""
    users, kinds = Users(apps, processes), list(kinds)
    return tuple(_gpu(row, users.strangers_on(row.uuid, row.used_mib), kinds, node) for row in rows)


class Users:
    """Who computes on this machine's GPUs, and who may: tells strangers.

    Args:
        apps: UUID and pid of each compute process that the driver tells.
        processes: those of all leases.
    """

    def __init__(self, apps: Iterable[tuple[str, int]], processes: Iterable[Process]) -> None:
        """Take what is seen now."""
        # What the oldest process of each was started with stands: its later ones may write there what they like.
        given: dict[tuple[str, int], frozenset[str]] = {}
        self._leases: dict[int, tuple[str, frozenset[str]]] = {}
        for one in sorted(processes, key=lambda process: process.start_ticks):
            own = given.setdefault((one.lease_id, one.attempt), frozenset(one.environment.get(GPUS, "").split(",")))
            self._leases[one.pid] = one.lease_id, own
        self._held = frozenset[str]().union(*given.values())
        self._pids: dict[str, list[int]] = {}
        for uuid, pid in apps:
            self._pids.setdefault(uuid, []).append(pid)

    def strangers_on(self, uuid: str, used_mib: int | None) -> str:
        """Return who uses a GPU that no lease gave them, in words, or an empty text.

        A process that is listed and cannot be seen here has ended, or lives where we cannot look: the memory in use
        tells which, as it does where the driver lists no process at all.
        """
        seen = [pid for pid in self._pids.get(uuid, ()) if Path(f"/proc/{pid}").exists()]
        for pid in seen:
            lease, own = self._leases.get(pid, ("", frozenset()))
            if not lease:
                return f"process {pid}, which no lease gave it to, computes on it"
            if uuid not in own:
                return f"process {pid} of workspace {lease}, which has other GPUs, computes on it"
        told_nothing = not self._pids or (uuid in self._pids and not seen)
        if told_nothing and uuid not in self._held and (used_mib or 0) > FOREIGN_MIB:
            return f"{used_mib} MiB of it are in use although no workspace has it"
        return ""


def matching(name: str, kinds: Iterable[GpuKind]) -> str:
    """Return the first kind whose ``match`` fits the name; spaces and dashes are alike, and so is case. Else ""."""
    plain = _plain(name)
    return next((k.name for k in kinds if k.match and not k.of and fnmatchcase(plain, _plain(k.match))), "")


def _gpu(row: Row, foreign: str, kinds: list[GpuKind], node: str) -> Gpu:
    unwell = ""
    if row.mig == "Enabled":
        unwell = "MIG mode is on, and its slices are not offered yet"
    elif row.total_mib is None:
        unwell = "nvidia-smi cannot read it: it may need a reset"
    return Gpu(
        id=row.uuid,
        pool=matching(row.name, kinds),
        node=node,
        index=row.index,
        model=row.name,
        memory_bytes=(row.total_mib or 0) * MIB,
        healthy=not unwell,
        foreign=bool(foreign),
        note="; ".join(filter(None, (unwell, foreign))),
    )


async def _run(command: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        raise Unavailable(f"nvidia-smi did not answer in {TIMEOUT_SECONDS:.0f} s. Nothing is granted.") from None
    finally:
        await kill_group(process)
    text = output.decode(errors="replace")
    if process.returncode != 0:
        said = quoted(text.strip().split("\n")[0])
        raise Unavailable(f"nvidia-smi failed with exit code {process.returncode}: {said}. Nothing is granted.")
    return text


def _plain(name: str) -> str:
    return name.replace(" ", "-").lower()


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10  # noqa: PLR2004 (more digits than any pid or index)


def _mib(text: str) -> int | None:
    return int(text) if _is_whole(text) else None
