"""Follows the workspace's GPUs in a thread of its own: an NVML that hangs must not hold up the Jupyter server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuspawner.workspace.monitor.followed import Followed
from gpuspawner.workspace.monitor.nvml import AwayError, Nvml

GPUS = "GPUSPAWNER_GPUS"
"""Names this workspace's GPUs, UUIDs with commas between, on a machine whose others it sees too."""
EVERY_SECONDS = 5.0
"""Between two looks: the driver's buffer holds 100 samples, of 17 s at least."""
AGAIN_SECONDS = 60.0
"""After NVML failed: as when its container lost its devices, and a driver that is loaded anew."""


def uptime_seconds() -> float:
    """Return the time since the machine started, by the clock that the probe reads too."""
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


class Monitor:
    """Keeps what was seen of the workspace's GPUs, for the file that the probe reads."""

    def __init__(self, environment: Mapping[str, str], log: logging.Logger) -> None:
        """Follow nothing yet."""
        names = environment.get(GPUS)
        self._wanted = None if names is None else tuple(filter(None, names.split(",")))
        self.log = log
        self._gpus: dict[str, Followed] = {}
        self._document: dict[str, Any] | None = None

    def start(self) -> None:
        """Begin, unless this workspace is known to have no GPU."""
        if self._wanted != ():
            threading.Thread(target=self._run, name="gpu-monitor", daemon=True).start()

    def told(self) -> dict[str, Any] | None:
        """Return what was seen up to the last look; None where nothing can be."""
        return self._document

    def _run(self) -> None:
        failed = ""
        while True:
            try:
                nvml = Nvml(self._wanted)
                try:
                    failed = ""
                    self._follow(nvml)
                finally:
                    nvml.close()
            except AwayError as error:
                if str(error) != failed:
                    self.log.info("GPUs are not followed from inside the workspace (%s)", error)
                failed = str(error)
            except Exception:
                self.log.exception("GPUs are not followed from inside the workspace")
            time.sleep(AGAIN_SECONDS)

    def _follow(self, nvml: Nvml) -> None:
        while nvml.uuids:
            for uuid in nvml.uuids:
                samples, millijoules = nvml.samples(uuid), nvml.millijoules(uuid)
                uptime, wall = uptime_seconds(), time.time()
                gpu = self._gpus.setdefault(uuid, Followed(uuid, since=uptime, seen_until=uptime))
                gpu.take(samples, uptime, wall)
                gpu.spend(millijoules)
            self._document = {"uptime": uptime, "gpus": [gpu.told(uptime) for gpu in self._gpus.values()]}
            time.sleep(EVERY_SECONDS)
