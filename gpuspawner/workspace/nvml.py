"""A workspace's GPUs by NVML, through nvidia-ml-py. It starts no process and makes no context on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_GPUS, MOST_EVENTS = 64, 100
PERCENTS = range(101)

Samples = list[tuple[int, int]]
"""Microseconds of the wall clock, and percent."""


class AwayError(Exception):
    """NVML does not answer at present, or not at all."""


class GpuError(Exception):
    """NVML does not answer about one GPU at present. The message is NVML's."""


@dataclass(frozen=True)
class Health:
    """The health of a GPU by NVML. Values that the driver does not report are None.

    ``ecc_errors`` counts uncorrectable memory errors since the driver was loaded. ``xid`` is the code of the newest
    critical error since the observation began.
    """

    memory_bytes: int | None = None
    celsius: int | None = None
    watts: float | None = None
    ecc_errors: int | None = None
    xid: int | None = None

    @property
    def fault(self) -> str:
        """The GPU's fault in words, or ""."""
        xid = f"Xid {self.xid}" if self.xid is not None else ""
        ecc = f"{self.ecc_errors} uncorrectable ECC errors" if self.ecc_errors else ""
        return " and ".join(filter(None, (xid, ecc)))


def join_engines(gpu: Samples, engines: Iterable[Samples]) -> Samples:
    """Return a GPU's samples, each with the highest sample of its engines at the same time.

    A GPU that only encodes or decodes video has almost no utilization in its own samples.
    """
    joined = []
    others = [one for samples in engines for one in samples]
    before = 0
    for stamp, percent in sorted(gpu):
        highest = max([percent, *(other for at, other in others if before < at <= stamp and other in PERCENTS)])
        joined.append((stamp, highest))
        before = stamp
    return joined


class Nvml:
    """The workspace's GPUs by UUID, while NVML answers. It keeps their device files open.

    ``problems`` are NVML's messages about unavailable GPUs.
    """

    def __init__(self, wanted: Sequence[str] | None) -> None:
        """Open the GPUs with these UUIDs. None: all GPUs of this workspace.

        Raises:
            AwayError: There is no nvidia-ml-py or no library of the driver, or it refuses.
        """
        try:
            import pynvml  # noqa: PLC0415 - an extra, and a third of a megabyte
        except ImportError as error:
            raise AwayError(str(error)) from error
        self._nvml: Any = pynvml
        self.problems: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._xids: dict[str, int] = {}
        try:
            pynvml.nvmlInit()
            names = wanted if wanted is not None else range(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise AwayError(str(error)) from error
        for name in names[:MOST_GPUS]:
            try:
                if isinstance(name, str):
                    self._handles[name] = pynvml.nvmlDeviceGetHandleByUUID(name)
                else:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(name)
                    self._handles[pynvml.nvmlDeviceGetUUID(handle)] = handle
            except pynvml.NVMLError as error:
                self.problems[str(name)] = str(error)
        with contextlib.suppress(pynvml.NVMLError):  # without events no Xid is told
            self._events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The observed GPUs."""
        return tuple(self._handles)

    def samples(self, uuid: str) -> Samples:
        """Return a GPU's sample buffer, including its encoder and decoder. The buffer of some drivers is always empty.

        Raises:
            GpuError: The GPU no longer answers.
        """
        nvml = self._nvml
        try:
            gpu = self._buffer(self._handle(uuid), nvml.NVML_GPU_UTILIZATION_SAMPLES)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NotFound):
            return []
        except nvml.NVMLError as error:
            raise GpuError(str(error)) from error
        engines = []
        for kind in (nvml.NVML_ENC_UTILIZATION_SAMPLES, nvml.NVML_DEC_UTILIZATION_SAMPLES):
            with contextlib.suppress(nvml.NVMLError):
                engines.append(self._buffer(self._handles[uuid], kind))
        return join_engines(gpu, engines)

    def _handle(self, uuid: str) -> Any:
        if uuid in self.problems:
            raise GpuError(self.problems[uuid])
        return self._handles[uuid]

    def _buffer(self, handle: Any, kind: int) -> Samples:
        of, found = self._nvml.nvmlDeviceGetSamples(handle, kind, 0)
        if of != self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            return []
        return [(one.timeStamp, one.sampleValue.uiVal) for one in found]

    def rate(self, uuid: str) -> int | None:
        """Return the highest of a GPU's utilization rates: its own, its encoder's and its decoder's.

        None if the driver does not report its own rate, for example for a GPU with MIG.

        Raises:
            GpuError: The GPU no longer answers.
        """
        nvml, handle = self._nvml, self._handle(uuid)
        try:
            highest = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return None
        except nvml.NVMLError as error:
            raise GpuError(str(error)) from error
        for ask in ("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"):
            highest = max(highest, int(self._optional(uuid, ask, 0, lambda told: told[0])))
        return highest

    def millijoules(self, uuid: str) -> int | None:
        """Return a GPU's energy since its driver was loaded, or None if the driver does not report it."""
        told: int | None = self._optional(uuid, "nvmlDeviceGetTotalEnergyConsumption", None, int)
        return told

    def health(self, uuid: str, before: Health) -> Health:
        """Return a GPU's memory in use, temperature, power, ECC errors and newest Xid, perhaps from ``before``."""
        nvml = self._nvml
        return Health(
            self._optional(uuid, "nvmlDeviceGetMemoryInfo", None, lambda told: int(told.used)),
            self._optional(uuid, "nvmlDeviceGetTemperature", None, int, nvml.NVML_TEMPERATURE_GPU),
            self._optional(uuid, "nvmlDeviceGetPowerUsage", None, lambda milliwatts: milliwatts / 1000),
            self._optional(
                uuid,
                "nvmlDeviceGetTotalEccErrors",
                None,
                int,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            self._newest_xid(uuid, before.xid),
        )

    def _optional(self, uuid: str, ask: str, otherwise: Any, read: Any, *arguments: Any) -> Any:
        """Return NVML's answer about a GPU, or another value if the driver does not report it."""
        try:
            return read(getattr(self._nvml, ask)(self._handles[uuid], *arguments))
        except self._nvml.NVMLError:
            return otherwise

    def _newest_xid(self, uuid: str, before: int | None) -> int | None:
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # no further event
                break
            # Use the handle: the UUID of a lost GPU cannot be read.
            of = [name for name, handle in self._handles.items() if _address(handle) == _address(event.device)]
            self._xids.update(dict.fromkeys(of, int(event.eventData)))
        return self._xids.get(uuid, before)

    def close(self) -> None:
        """Release the GPUs."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
