"""A workspace's GPUs by NVML, through nvidia-ml-py. It starts no process and makes no context on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuspawner.workspace.gpm import GpmReader, NoValueError

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


class MigDevice(NamedTuple):
    """A MIG device: its GPU's UUID and handle, and its GPU instance there."""

    gpu_uuid: str
    gpu: Any
    instance: int


class Nvml:
    """The workspace's GPUs and MIG devices by UUID, while NVML answers. It keeps their device files open.

    ``problems`` are NVML's messages about unavailable GPUs. ``without_gpm`` says why GPUs have no GPM.
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
        self.without_gpm: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._mig: dict[str, MigDevice] = {}
        self._in_mig_mode: set[str] = set()
        self._gpm: dict[str, GpmReader] = {}
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
                    self._add(name, pynvml.nvmlDeviceGetHandleByUUID(name))
                else:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(name)
                    self._add(pynvml.nvmlDeviceGetUUID(handle), handle)
            except pynvml.NVMLError as error:
                self.problems[str(name)] = str(error)
        with contextlib.suppress(pynvml.NVMLError):  # without events no Xid is told
            self._events = pynvml.nvmlEventSetCreate()
            for uuid in self._handles.keys() - self._mig.keys():
                handle = self._handles[uuid]
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def _add(self, uuid: str, handle: Any) -> None:
        """Observe a GPU with the MIG devices that this workspace sees of it, or one MIG device. Raises NVMLError."""
        nvml = self._nvml
        if len(self._handles) >= MOST_GPUS:
            return
        is_mig = self._ask(handle, "nvmlDeviceIsMigDeviceHandle", otherwise=False, read=bool)
        if is_mig:
            gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            self._mig[uuid] = MigDevice(nvml.nvmlDeviceGetUUID(gpu), gpu, nvml.nvmlDeviceGetGpuInstanceId(handle))
        self._handles[uuid] = handle
        if is_mig or not self._ask(handle, "nvmlDeviceGetMigMode", otherwise=False, read=lambda modes: bool(modes[0])):
            self._open_gpm(uuid)
            return
        self._in_mig_mode.add(uuid)
        for number in range(self._ask(handle, "nvmlDeviceGetMaxMigDeviceCount", otherwise=0, read=int)):
            with contextlib.suppress(nvml.NVMLError):  # no device has this number, or another workspace has it
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                self._add(nvml.nvmlDeviceGetUUID(device), device)

    def _open_gpm(self, uuid: str) -> None:
        mig = self._mig.get(uuid)
        if mig is not None and not self._has_whole_instance(uuid):
            self.without_gpm[uuid] = "other MIG devices may share its GPU instance"
            return
        try:
            of = (self._handles[uuid], None) if mig is None else (mig.gpu, mig.instance)
            self._gpm[uuid] = GpmReader(self._nvml, *of)
        except self._nvml.NVMLError as error:
            self.without_gpm[uuid] = str(error)

    def _has_whole_instance(self, uuid: str) -> bool:
        """Return whether a MIG device has all of its GPU instance. GPM's values are those of the instance."""
        slices = self._ask(
            self._handles[uuid],
            "nvmlDeviceGetAttributes",
            otherwise=(0, 1),
            read=lambda found: (found.computeInstanceSliceCount, found.gpuInstanceSliceCount),
        )
        return bool(slices[0] == slices[1])

    @property
    def uuids(self) -> tuple[str, ...]:
        """The observed GPUs."""
        return tuple(self._handles)

    def gpu_of(self, uuid: str) -> str:
        """Return the UUID of a MIG device's GPU, "" for a whole GPU."""
        return self._mig[uuid].gpu_uuid if uuid in self._mig else ""

    def has_gpm(self, uuid: str) -> bool:
        """Return whether GPM observes a GPU."""
        return uuid in self._gpm

    def activity(self, uuid: str) -> float | None:
        """Return the activity of a GPU's busiest engine since the last call in percent, by GPM.

        None for the first call, and without GPM. GPM that failed is not used again. Then the other readings of a whole
        GPU are used. A MIG device has no others.

        Raises:
            GpuError: The MIG device no longer answers.
        """
        nvml, reader = self._nvml, self._gpm.get(uuid)
        if reader is None:
            return None
        try:
            return reader.read()
        except NoValueError as error:
            if uuid in self._mig:
                return None
            self.without_gpm[uuid] = str(error)
        except nvml.NVMLError as error:
            is_refused = isinstance(error, (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission))
            if uuid in self._mig and not is_refused:
                raise GpuError(str(error)) from error
            self.without_gpm[uuid] = str(error)
        self._gpm.pop(uuid).close()
        return None

    def samples(self, uuid: str) -> Samples:
        """Return a GPU's sample buffer, including its encoder and decoder. The buffer of some drivers is always empty.

        A MIG device, and a GPU in MIG mode, has no sample buffer.

        Raises:
            GpuError: The GPU no longer answers.
        """
        nvml, handle = self._nvml, self._handle(uuid)
        if self._is_mig(uuid):
            return []
        try:
            gpu = self._buffer(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NotFound):
            return []
        except nvml.NVMLError as error:
            raise GpuError(str(error)) from error
        engines = []
        for kind in (nvml.NVML_ENC_UTILIZATION_SAMPLES, nvml.NVML_DEC_UTILIZATION_SAMPLES):
            with contextlib.suppress(nvml.NVMLError):
                engines.append(self._buffer(self._handles[uuid], kind))
        return join_engines(gpu, engines)

    def _is_mig(self, uuid: str) -> bool:
        return uuid in self._mig or uuid in self._in_mig_mode

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
        if self._is_mig(uuid):
            return None
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
        return self._ask(self._handles[uuid], ask, otherwise, read, *arguments)

    def _ask(self, handle: Any, ask: str, otherwise: Any, read: Any, *arguments: Any) -> Any:
        try:
            return read(getattr(self._nvml, ask)(handle, *arguments))
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
        for reader in self._gpm.values():
            reader.close()
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
