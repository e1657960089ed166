"""The machine's real GPUs and MIG devices by its ``nvidia-smi``, and processes that use GPUs without a lease."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from gpuspawner.backends.local.processes import MAX_OUTPUT_BYTES, Process, TooMuchOutputError, kill_group, read_stream
from gpuspawner.backends.local.records import GPUS
from gpuspawner.backends.probes.gpu_tools import UUID, is_whole
from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.gpus.fleet import Gpu, GpuKind
from gpuspawner.core.outages import GpuHealth
from gpuspawner.core.units import MEBIBYTE

_GPU = re.compile(r"GPU [0-9]+: .* \(UUID: (GPU-[0-9A-Fa-f-]+)\)")
_DEVICE = re.compile(r" +MIG ([0-9][0-9a-z.+]*) +Device +([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)")
_MEMORY = re.compile(r"\.([0-9]{1,4})gb")


@dataclass(frozen=True)
class MigDevice:
    """A MIG device: its number on its GPU, and its profile like ``3g.40gb``."""

    uuid: str
    number: int
    profile: str

    @property
    def memory_bytes(self) -> int:
        """The memory that its profile names, 0 if unknown."""
        match = _MEMORY.search(self.profile)
        return int(match[1]) * 1000**3 if match else 0


def mig_devices(text: str) -> Mapping[str, tuple[MigDevice, ...]]:
    """Return the MIG devices by the GPU's UUID from the output of ``nvidia-smi -L``.

    Raises:
        Unavailable: A line is not understood. It might be a GPU in use.
    """
    found: dict[str, list[MigDevice]] = {}
    gpu = ""
    for line in filter(str.strip, text.splitlines()):
        if match := _GPU.fullmatch(line.rstrip()):
            gpu = match[1]
            found[gpu] = []
        elif gpu and (match := _DEVICE.fullmatch(line.rstrip())):
            found[gpu].append(MigDevice(match[3], int(match[2]), match[1]))
        else:
            raise Unavailable(
                f"nvidia-smi -L printed a line that is not understood: {quoted(line)}. Nothing is granted."
            )
    return {uuid: tuple(devices) for uuid, devices in found.items()}


FOREIGN_MIB = 500
"""More memory in use than this, on a GPU without a lease, is foreign use (design, section 7)."""


class GpuUsers:
    """The compute processes on this machine's GPUs, and the leases of its processes.

    Args:
        apps: UUID and pid of each compute process of the driver.
        processes: the processes of all leases.
    """

    def __init__(self, apps: Iterable[tuple[str, int]], processes: Iterable[Process]) -> None:
        # The environment of a lease's oldest process counts. Later processes may have written anything there.
        given: dict[tuple[str, int], frozenset[str]] = {}
        self._leases: dict[int, tuple[str, frozenset[str]]] = {}
        for one in sorted(processes, key=lambda process: process.start_ticks):
            own = given.setdefault((one.lease_id, one.attempt), frozenset(one.environment.get(GPUS, "").split(",")))
            self._leases[one.pid] = one.lease_id, own
        self._held = frozenset[str]().union(*given.values())
        self._pids: dict[str, list[int]] = {}
        for uuid, pid in apps:
            self._pids.setdefault(uuid, []).append(pid)

    def strangers_on(self, names: AbstractSet[str], uuid: str, used_mib: int | None) -> str:
        """Return the use of a GPU without a lease of it, in words, else "".

        ``names`` are those of the GPU, or its parts, in leases. The driver lists processes under ``uuid``. A listed
        process that is not visible here has ended or runs elsewhere. The memory in use then decides, as it does if the
        driver lists no process at all.
        """
        seen = [pid for pid in self._pids.get(uuid, ()) if Path(f"/proc/{pid}").exists()]
        for pid in seen:
            lease, own = self._leases.get(pid, ("", frozenset()))
            if not lease:
                return f"process {pid}, which no lease gave it to, computes on it"
            if not names & own:
                return f"process {pid} of workspace {lease}, which has other GPUs, computes on it"
        is_unlisted = not self._pids or (uuid in self._pids and not seen)
        if is_unlisted and not names & self._held and (used_mib or 0) > FOREIGN_MIB:
            return f"{used_mib} MiB of its memory are in use although no workspace has it"
        return ""


STAND_IN = Path(__file__).parent / "bin"
TIMEOUT_SECONDS = 30.0
"""Time limit of one ``nvidia-smi``. A cold driver takes 1 to 3 s for each GPU."""
MIG_ON, MIG_MARK = "Enabled", "-mig-"
"""The value of an active MIG mode, and the part that only names of MIG devices have."""
LOST = "[GPU is lost]"
"""The output of ``nvidia-smi`` for values of a GPU that the driver has lost."""
_AMOUNT = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")
_COMPUTE = re.compile(r"[0-9]{1,2}\.[0-9]")
_TERMINAL_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_GPU_COLUMN, _NVLINK, _NUMA_COLUMN = re.compile(r"GPU[0-9]{1,3}"), re.compile(r"NV[0-9]{1,3}"), "NUMA Affinity"
_VERSIONS = re.compile(r"^Driver Version *: ([0-9.]+)$\s*^CUDA Version *: ([0-9]+\.[0-9]+)$", re.MULTILINE)


class Fault(NamedTuple):
    """Why a GPU cannot be granted, and the remedy."""

    words: str
    remedy: str


NO_MIG_DEVICE = Fault("MIG mode is on without a MIG device", "create some by nvidia-smi mig -cgi, or turn the mode off")


@dataclass(frozen=True)
class Row:
    """A GPU in the list of ``nvidia-smi``. None means unknown.

    ``unread`` is the text in place of the memory's size. ``ecc_errors`` counts uncorrectable memory errors since the
    driver was loaded.
    """

    index: int
    uuid: str
    name: str
    mig: str
    total_mib: int | None
    used_mib: int | None
    unread: str = ""
    ecc_errors: int | None = None

    @property
    def fault(self) -> Fault | None:
        """Why it cannot be granted in this state."""
        if self.ecc_errors:
            errors = f"{self.ecc_errors} memory errors that could not be corrected"
            return Fault(f"it had {errors} since its driver was loaded", "reset it once no workspace uses it")
        if self.total_mib is not None:
            return None
        if self.unread == LOST:
            return Fault("the driver has lost it", "look for its Xid in dmesg, then reset it or restart the machine")
        return Fault(f"nvidia-smi cannot read it ({quoted(self.unread)})", "it may need a reset")


class DriverVersion(NamedTuple):
    """The driver's own version, and the highest version of CUDA that it supports. "" is unknown."""

    driver: str = ""
    cuda: str = ""


UNKNOWN_DRIVER = DriverVersion()


def find() -> str | None:
    """Return the machine's own ``nvidia-smi``, None if it is missing. The stand-in does not count."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = [folder for folder in folders if folder and Path(folder).resolve() != STAND_IN.resolve()]
    return shutil.which("nvidia-smi", path=os.pathsep.join(own))


def has_devices(folder: Path = Path("/dev")) -> bool:
    """Return whether this machine or container has NVIDIA devices. If they cannot be read, they are unknown."""
    return any(folder.glob("nvidia[0-9]*"))


async def listing(command: str) -> list[Row]:
    """Return the GPUs. Raises Unavailable with the output of ``nvidia-smi`` if it fails or is not understood."""
    text = await _run(
        command,
        "--query-gpu=index,uuid,name,mig.mode.current,memory.total,memory.used,ecc.errors.uncorrected.volatile.total",
        "--format=csv,noheader,nounits",
    )
    rows = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7 or not is_whole(cells[0]) or not UUID.fullmatch(cells[1]):  # noqa: PLR2004
            raise Unavailable(f"nvidia-smi printed a GPU that is not understood: {quoted(line)}. Nothing is granted.")
        total_mib, used_mib, ecc_errors = map(_number, cells[4:])
        unread = cells[4] if total_mib is None else ""
        rows.append(Row(int(cells[0]), cells[1], cells[2], cells[3], total_mib, used_mib, unread, ecc_errors))
    return rows


HEALTH = (
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
)
"""The values of ``nvidia-smi`` for the fields of GpuHealth, in their order. It does not print Xid codes."""


async def health(command: str) -> Mapping[str, GpuHealth]:
    """Return the health of each GPU by UUID. Raises Unavailable if ``nvidia-smi`` fails."""
    text = await _run(command, f"--query-gpu=uuid,{','.join(HEALTH)}", "--format=csv,noheader,nounits")
    found = {}
    for line in text.splitlines():
        uuid, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) == len(HEALTH) and UUID.fullmatch(uuid):
            celsius, watts, limit, clock = (float(one) if _AMOUNT.fullmatch(one) else None for one in cells[:4])
            found[uuid] = GpuHealth(celsius, watts, limit, clock, _number(cells[4]), _number(cells[5]))
    return found


async def driver_version(command: str) -> DriverVersion:
    """Return the driver's versions, unknown if ``nvidia-smi`` does not print them. Raises Unavailable."""
    match = _VERSIONS.search(await _run(command, "-q", "-d", "COMPUTE"))
    return DriverVersion(match[1], match[2]) if match else UNKNOWN_DRIVER


async def compute_capabilities(command: str) -> Mapping[str, str]:
    """Return each GPU's compute capability by UUID. Drivers before 510 do not have it."""
    try:
        text = await _run(command, "--query-gpu=uuid,compute_cap", "--format=csv,noheader")
    except Unavailable:
        return {}
    pairs = (line.split(", ") for line in text.splitlines() if line.count(", ") == 1)
    return {uuid: compute for uuid, compute in pairs if _COMPUTE.fullmatch(compute)}


def domains_of(text: str) -> Mapping[int, tuple[str, ...]]:
    """Return the NVLink domain and the NUMA domain of each GPU by index, from the output of ``nvidia-smi topo -m``.

    All GPUs of an NVLink domain are linked to each other directly. Where links form a mesh without all pairs, a GPU is
    in the first domain whose GPUs it is linked to. A link that is not printed is unknown.
    """
    header, *lines = _TERMINAL_STYLE.sub("", text).splitlines() or [""]
    columns = [cell.strip() for cell in header.split("\t")]
    linked, found = list[list[int]](), dict[int, tuple[str, ...]]()
    for line in lines:
        cells = dict(zip(columns, (cell.strip() for cell in line.split("\t")), strict=False))
        name = cells.get("", "")
        if not _GPU_COLUMN.fullmatch(name):
            continue
        links = (key for key, value in cells.items() if _NVLINK.fullmatch(value))
        peers = {int(key[3:]) for key in links if _GPU_COLUMN.fullmatch(key)}
        index, numa = int(name[3:]), cells.get(_NUMA_COLUMN, "")
        domain = next((one for one in linked if peers.issuperset(one)), None)
        if domain is not None:
            domain.append(index)
        elif peers:
            linked.append([index])
        found[index] = (f"NUMA {numa}",) if numa not in {"", "N/A"} else ()
    nvlink = {index: (f"NVLink {number}",) for number, one in enumerate(linked) if len(one) > 1 for index in one}
    return {index: (*nvlink.get(index, ()), *numa) for index, numa in found.items()}


async def read_domains(command: str, rows: Iterable[Row]) -> Mapping[str, tuple[str, ...]]:
    """Return the NVLink and NUMA domains by UUID, without the GPUs that ``nvidia-smi`` does not print."""
    try:
        found = domains_of(await _run(command, "topo", "-m"))
    except Unavailable:
        return {}
    return {row.uuid: found[row.index] for row in rows if row.index in found}


async def compute_processes(command: str) -> list[tuple[str, int]]:
    """Return UUID and pid of each compute process that the driver lists. Raises Unavailable."""
    text = await _run(command, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits")
    pairs = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return [(uuid.strip(), int(pid)) for uuid, pid in pairs if is_whole(pid.strip())]


async def read_mig_devices(command: str, rows: Iterable[Row]) -> Mapping[str, tuple[MigDevice, ...]]:
    """Return the MIG devices of GPUs in MIG mode, by the GPU's UUID. Raises Unavailable."""
    if not any(row.mig == MIG_ON for row in rows):
        return {}
    return mig_devices(await _run(command, "-L"))


def to_gpus(
    rows: Iterable[Row],
    apps: Iterable[tuple[str, int]],
    processes: Iterable[Process],
    kinds: Iterable[GpuKind],
    node: str,
    mig: Mapping[str, tuple[MigDevice, ...]] | None = None,
    driver: DriverVersion = UNKNOWN_DRIVER,
) -> tuple[Gpu, ...]:
    """Return the GPUs of the fleet, matched to kinds, with notes on those that cannot be granted.

    A GPU in MIG mode is replaced by its MIG devices (``mig`` by the GPU's UUID), which are granted whole. ``driver``
    matters for kinds that ask for one.
    """
    users, kinds, gpus = GpuUsers(apps, processes), list(kinds), []
    for row in rows:
        devices = (mig or {}).get(row.uuid, ()) if row.mig == MIG_ON else ()
        if not devices:
            gpus.append(_gpu(row, None, users.strangers_on({row.uuid}, row.uuid, row.used_mib), kinds, driver, node))
            continue
        # The driver does not list which process uses which MIG device.
        strangers = users.strangers_on({device.uuid for device in devices}, row.uuid, None)
        gpus += [_gpu(row, device, strangers, kinds, driver, node) for device in devices]
    return tuple(gpus)


def kind_and_note(name: str, kinds: Sequence[GpuKind], driver: DriverVersion) -> tuple[str, str]:
    """Return the kind of a GPU, or "" and why the driver is too old for the kind of this name."""
    found = matching_kind(name, [kind for kind in kinds if kind.fits_driver(*driver)])
    old = "" if found else matching_kind(name, kinds)
    return found, next((kind.old_driver_words(*driver) for kind in kinds if kind.name == old), "")


def matching_kind(name: str, kinds: Iterable[GpuKind]) -> str:
    """Return the first kind whose ``match`` fits the name, ignoring case, spaces and dashes. Else "".

    MIG devices never count as whole GPUs: their ``match`` names them (``*-MIG-1g.10gb``).
    """
    plain = _plain(name)
    whole = [k for k in kinds if k.match and not k.of and (MIG_MARK in _plain(k.match)) == (MIG_MARK in plain)]
    return next((k.name for k in whole if fnmatchcase(plain, _plain(k.match))), "")


def find_fault(row: Row, devices: Sequence[MigDevice]) -> Fault | None:
    """Return why a GPU with these MIG devices cannot be granted in this state."""
    return NO_MIG_DEVICE if row.mig == MIG_ON and not devices else row.fault


def _gpu(
    row: Row, device: MigDevice | None, foreign: str, kinds: list[GpuKind], driver: DriverVersion, node: str
) -> Gpu:
    """Return a GPU, or one of its MIG devices."""
    fault = row.fault if device else find_fault(row, ())
    model = f"{row.name} MIG {device.profile}" if device else row.name
    pool, old = kind_and_note(model, kinds, driver)
    return Gpu(
        id=device.uuid if device else row.uuid,
        pool=pool,
        node=node,
        index=row.index,
        model=model,
        memory_bytes=device.memory_bytes if device else (row.total_mib or 0) * MEBIBYTE,
        healthy=fault is None,
        foreign=bool(foreign),
        note="; ".join(filter(None, (f"{fault.words}: {fault.remedy}" if fault else "", foreign, old))),
    )


async def _run(command: str, *arguments: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:  # the driver is being replaced
        raise Unavailable(f"nvidia-smi could not be started ({error.strerror}). Nothing is granted.") from None
    try:
        output = await asyncio.wait_for(_output_of(process), TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        raise Unavailable(f"nvidia-smi did not answer in {TIMEOUT_SECONDS:.0f} s. Nothing is granted.") from None
    except TooMuchOutputError:
        raise Unavailable(f"nvidia-smi printed more than {MAX_OUTPUT_BYTES} bytes. Nothing is granted.") from None
    finally:
        await kill_group(process)
    text = output.decode(errors="replace")
    if process.returncode != 0:
        said = quoted(text.strip().split("\n")[0])
        raise Unavailable(f"nvidia-smi failed with exit code {process.returncode}: {said}. Nothing is granted.")
    return text


async def _output_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = await read_stream(process.stdout)
    await process.wait()
    return output


def _plain(name: str) -> str:
    return name.replace(" ", "-").lower()


def _number(text: str) -> int | None:
    return int(text) if is_whole(text) else None
