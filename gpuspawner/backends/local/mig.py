"""MIG devices: the parts of a GPU in MIG mode, as ``nvidia-smi -L`` lists them below it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuspawner.core.errors import Unavailable, quoted

_GPU = re.compile(r"GPU [0-9]+: .* \(UUID: (GPU-[0-9A-Fa-f-]+)\)")
_DEVICE = re.compile(r" +MIG ([0-9][0-9a-z.+]*) +Device +([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)")
_MEMORY = re.compile(r"\.([0-9]{1,4})gb")


@dataclass(frozen=True)
class MigDevice:
    """One of them: its number on its GPU, and its profile, such as ``3g.40gb``."""

    uuid: str
    number: int
    profile: str

    @property
    def memory_bytes(self) -> int:
        """What its profile names; 0 where that names none."""
        match = _MEMORY.search(self.profile)
        return int(match[1]) * 1000**3 if match else 0


def mig_devices(text: str) -> Mapping[str, tuple[MigDevice, ...]]:
    """Return each GPU's MIG devices, by the GPU's UUID, from what ``nvidia-smi -L`` printed.

    Raises:
        Unavailable: a line says what nobody expects. One that was passed over might be a GPU that somebody has.
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
            raise Unavailable(f"nvidia-smi -L lists what is not understood: {quoted(line)}. Nothing is granted.")
    return {uuid: tuple(devices) for uuid, devices in found.items()}
