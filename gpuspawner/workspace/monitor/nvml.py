"""The driver's samples by NVML, through nvidia-ml-py: no process is started, and no context made on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

MOST_GPUS = 64


class AwayError(Exception):
    """NVML can't be asked at present, or not at all."""


class Nvml:
    """The workspace's GPUs by UUID, while NVML lets itself be asked. It keeps their device files open."""

    def __init__(self, wanted: Sequence[str] | None) -> None:
        """Open those that are wanted, by UUID; None: all that this workspace sees.

        Raises:
            AwayError: there is no nvidia-ml-py, no library of the driver, or it refuses.
        """
        try:
            import pynvml  # noqa: PLC0415 - an extra, and a third of a megabyte
        except ImportError as error:
            raise AwayError(str(error)) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise AwayError(str(error)) from error
        self._handles: dict[str, Any] = {}
        try:
            if wanted is None:
                seen = [
                    pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(min(pynvml.nvmlDeviceGetCount(), MOST_GPUS))
                ]
                self._handles = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in seen}
            else:
                self._handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in wanted[:MOST_GPUS]}
        except pynvml.NVMLError as error:
            self.close()
            raise AwayError(str(error)) from error

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs that are followed."""
        return tuple(self._handles)

    def samples(self, uuid: str) -> list[tuple[int, int]]:
        """Return all that stands in a GPU's sample buffer: microseconds of the wall clock, and percent.

        None stands there where the driver keeps none, as of a GPU that is divided by MIG.

        Raises:
            AwayError: it can't be asked any more.
        """
        nvml = self._nvml
        try:
            kind, found = nvml.nvmlDeviceGetSamples(self._handles[uuid], nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NotFound):
            return []
        except nvml.NVMLError as error:
            raise AwayError(str(error)) from error
        if kind != nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            return []
        return [(one.timeStamp, one.sampleValue.uiVal) for one in found]

    def millijoules(self, uuid: str) -> int | None:
        """Return the energy that a GPU used since its driver was loaded, None where it does not tell."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[uuid]))
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Let go of the GPUs."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
