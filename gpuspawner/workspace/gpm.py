"""GPU performance monitoring (GPM) by NVML: how active the engines of a GPU or a MIG device were over time.

Each value is the average between two samples of the driver's counters. So it misses no work, and it has fractions of a
percent. GPUs of the Hopper generation and newer have it. It needs no privilege and does not disturb profilers.
"""

from __future__ import annotations

import contextlib
from typing import Any

HIGHEST_PERCENT = 110.0
"""A higher value is no percentage. The clocks of two samples may make one a little higher than 100."""
ENGINES = ("GRAPHICS", "NVDEC", "NVENC", "NVJPG", "NVOFA")
"""The engines by the names of their metrics. GRAPHICS also computes. It is the one that each GPU has."""


class NoValueError(Exception):
    """The driver returned no valid value for the time between two samples."""


class GpmReader:
    """Reads the activity of one device. ``instance`` is the GPU instance of a MIG device, None for a whole GPU.

    The handle must be that of the GPU. NVML may fail after GPM calls with the handle of a MIG device.
    """

    def __init__(self, nvml: Any, gpu: Any, instance: int | None = None) -> None:
        """Allocate two samples.

        Raises:
            nvml.NVMLError: The GPU or its driver has no GPM.
        """
        self._nvml, self._gpu, self._instance = nvml, gpu, instance
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._last, self._next = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_last = False
        self._metrics = [id_ for name, id_ in sorted(vars(nvml).items()) if _is_of_engine(name)]

    def read(self) -> float | None:
        """Return the activity of the busiest engine since the last call in percent, None for the first call.

        Calls must be at least 0.1 s apart: the driver renews its counters that often.

        Raises:
            nvml.NVMLError: The driver refuses, or the GPU is lost.
            NoValueError: The activity since the last call is unknown.
        """
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._gpu, self._next)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu, self._instance, self._next)
        self._last, self._next = self._next, self._last
        if not self._has_last:
            self._has_last = True
            return None
        return self._activity(self._next, self._last)

    def _activity(self, begin: Any, end: Any) -> float:
        nvml, request = self._nvml, self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2, request.numMetrics = begin, end, len(self._metrics)
        for metric, id_ in zip(request.metrics, self._metrics, strict=False):
            metric.metricId = id_
        nvml.nvmlGpmMetricsGet(request)
        found: dict[int, float] = {
            metric.metricId: metric.value
            for metric in request.metrics[: len(self._metrics)]
            if metric.nvmlReturn == nvml.NVML_SUCCESS and 0.0 <= metric.value <= HIGHEST_PERCENT  # not NaN
        }
        if nvml.NVML_GPM_METRIC_GRAPHICS_UTIL not in found:
            raise NoValueError("the driver returned no activity")
        return min(100.0, max(found.values()))

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._last, self._next):
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)


def _is_of_engine(name: str) -> bool:
    """Return whether a name of nvidia-ml-py is the utilization of an engine, like ``NVML_GPM_METRIC_NVDEC_0_UTIL``."""
    metric = name.removeprefix("NVML_GPM_METRIC_")
    return metric != name and metric.endswith("_UTIL") and metric.split("_")[0] in ENGINES
