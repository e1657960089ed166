"""The GPUs of this machine, as its ``nvidia-smi`` lists them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from gpuspawner.adoption.discovered_gpus import Finding, FoundGpus, literal
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.nvidia import MIB, MIG_ON, MigDevice, Row
from gpuspawner.core.errors import Unavailable

WHERE = "this machine"
NO_TOOL = (
    "No nvidia-smi is on this machine's PATH. Where it has an NVIDIA GPU, install its driver and run this again. To "
    "try gpuspawner without one, add to the catalog, for example: gpus: {a100: {memory: 80GiB}}, simulated: {a100: 4}, "
    "and gpus: {a100: 1-4} to a template. For a cluster's GPUs: gpuspawner server init --kubernetes."
)
NO_GPUS = "nvidia-smi lists no GPU. Where there is one, look for the reason in dmesg, and run this again."


def find() -> Finding:
    """Return the GPUs of this machine.

    Raises:
        Unavailable: its ``nvidia-smi`` fails; says why.
    """
    command = nvidia.find()
    if command is None:
        told = NO_TOOL
        if nvidia.has_devices():
            told = "This machine has NVIDIA devices (/dev/nvidia*), and no nvidia-smi is on the PATH. Add its folder."
        return Finding(WHERE, (), (told,))
    try:
        rows, parts, compute = asyncio.run(_asked(command))
    except Unavailable as error:
        raise Unavailable(str(error).replace("Nothing is granted.", "Nothing was written.")) from error
    return of_rows(rows, parts, compute)


async def _asked(command: str) -> tuple[list[Row], Mapping[str, tuple[MigDevice, ...]], Mapping[str, str]]:
    rows = await nvidia.listing(command)
    return rows, await nvidia.read_mig_devices(command, rows), await nvidia.compute_capabilities(command)


def of_rows(
    rows: Sequence[Row], parts: Mapping[str, tuple[MigDevice, ...]], compute: Mapping[str, str] | None = None
) -> Finding:
    """Return the GPUs of these rows of ``nvidia-smi``, MIG devices and compute capabilities."""
    capability = {row.name: compute[row.uuid] for row in rows if compute and row.uuid in compute}
    whole: Counter[tuple[str, int]] = Counter()
    slices: Counter[tuple[str, str, int]] = Counter()
    told = []
    for row in rows:
        devices = parts.get(row.uuid, ())
        slices.update((row.name, device.profile, device.memory_bytes) for device in devices)
        is_offered = bool(devices)
        if row.mig != MIG_ON and row.total_mib is not None:
            whole[row.name, row.total_mib] += 1
            is_offered = True
        if (fault := nvidia.find_fault(row, devices)) is not None:
            left_out = "" if is_offered else " It is not in the catalog."
            told.append(f"GPU {row.index} ({row.name}): {fault.words}.{left_out} Remedy: {fault.remedy}.")
    found = [
        FoundGpus(name, literal(name), count, count, total * MIB, compute=capability.get(name, ""))
        for (name, total), count in _merged(whole).items()
    ]
    found += [
        FoundGpus(name, literal(f"{name} MIG {profile}"), count, count, size, profile, compute=capability.get(name, ""))
        for (name, profile, size), count in slices.items()
    ]
    if not found:
        told.append(NO_GPUS)
    return Finding(WHERE, tuple(found), tuple(told))


def _merged(whole: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return GPUs of one name as one: what is told of their memory differs by some MiB. The least counts."""
    least: dict[str, int] = {}
    for name, total in whole:
        least[name] = min(total, least.get(name, total))
    return {(name, total): sum(n for (other, _), n in whole.items() if other == name) for name, total in least.items()}
