"""Reports to the probe: the kernels of this Jupyter server, loads of its pages, and the use of its GPUs.

The reports are in a file in memory, found by its name in ``/proc``. The probe has no credential and sends no HTTP
request: it reads ``/proc/PID/fd`` as the workspace's own user. The file has a line of JSON for
:mod:`gpuspawner.backends.probes.activity`, and a second line of the GPU monitor.

The GPU monitor observes GPUs by NVML, so that work of a fraction of a second counts. It has its own thread: a call that
hangs must not block the Jupyter server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tornado.ioloop import PeriodicCallback
from tornado.web import RequestHandler

from gpuspawner.workspace.nvml import PERCENTS, AwayError, GpuError, Health, Nvml, Samples

GPUS = "GPUSPAWNER_GPUS"
"""The UUIDs of this workspace's GPUs, with commas between, on a machine that shows other GPUs too."""
EVERY_SECONDS = 5.0
"""Interval between reports, and between full checks of GPUs. A shorter cell changes its kernel's last activity. The
driver's buffer of samples covers at least 17 s."""
RATES_SECONDS = 0.25
"""Interval between readings of utilization rates. Each covers 1/6 s to 1 s, so a burst of 0.5 s is observed."""
AGAIN_SECONDS = 60.0
"""Retry interval after NVML failed as a whole or for one GPU. A reloaded driver needs a new start of NVML."""
LONGEST_SAMPLE_SECONDS = 2.0
"""The driver takes a sample each 1/6 s to 1 s. A longer time between two samples was not observed."""
NEW_SECONDS = 0.05
"""Minimum time between two different samples: the two clocks are read one after the other."""
LATE_SECONDS = 10.0
"""If the newest sample is older, the driver takes no samples at present."""
STRANGE_SECONDS = 600.0
"""No buffer goes back so far: an older sample has the time of an unknown clock."""


class Source(str, Enum):
    """The source of a GPU's utilization, best first."""

    GPM = "gpm"
    """The activity of its engines by GPM, which misses nothing and has fractions of a percent."""

    SAMPLES = "samples"
    """The driver's sample buffer, which misses nothing."""
    RATES = "rates"
    """Utilization rates, read four times a second, for a driver without a sample buffer."""


@dataclass
class GpuActivity:
    """The activity of one GPU since its observation began. Times are seconds since the machine started.

    Attributes:
        since: No sample was missed since then.
        seen_until: The time of the newest counted sample, or of the first check.
        unseen_seconds: Time that was missed before.
        percents: For each observed utilization the total seconds and the last time.
        without_gpm: Why it has no GPM, or "".
        gpu: The UUID of a MIG device's GPU, or "".
        joules: The used energy, or None if the driver does not report it. A counter that never changes reports none.
        millijoules: The driver's counter at the last check.
        source: The source of the utilization, or None if the driver reports none.
        problem: Why NVML does not answer about it now, or "".
    """

    uuid: str
    since: float
    seen_until: float
    unseen_seconds: float = 0.0
    percents: dict[float, tuple[float, float]] = field(default_factory=dict)
    joules: float | None = None
    millijoules: int | None = None
    source: Source | None = None
    health: Health = field(default_factory=Health)
    problem: str = ""
    without_gpm: str = ""
    gpu: str = ""

    def add_activity(self, percent: float | None, samples: Samples, uptime: float, wall: float) -> None:
        """Count GPM's average over the time since the last call. None: the activity of this time is unknown.

        The highest of the driver's samples counts if it is higher, because counters of GPUs are sometimes stuck at 0.
        Below 1 % the value is rounded up to a tenth, so that the report stays small and any activity is above 0.
        """
        new = [one for at, one in _shift_to_uptime(samples, uptime, wall) if at > self.seen_until and one in PERCENTS]
        seconds = max(0.0, uptime - self.seen_until)
        if percent is None:
            self._miss(seconds, uptime)
            seconds = 0.0
        if new or percent is not None:
            highest = max([percent or 0.0, *new])
            self._count(math.ceil(highest * 10) / 10 if highest < 1 else round(highest), seconds, uptime)
        self.seen_until = uptime

    def add_samples(self, samples: Samples, uptime: float, wall: float) -> None:
        """Count new samples of the driver.

        Args:
            samples: Pairs of the machine's wall clock in microseconds and a utilization in percent. Samples from before
                the first check may show the GPU's last user. After a change of the wall clock older samples are in the
                future or too far in the past. They are missed.
            uptime: The present time in seconds since the machine started.
            wall: The present time by the wall clock in seconds.
        """
        for at, percent in _shift_to_uptime(samples, uptime, wall):
            if at > self.seen_until + NEW_SECONDS:
                self._add(at, percent, min(at, uptime))

    def add_rate(self, percent: int, uptime: float) -> None:
        """Count a utilization rate that was read now."""
        self._add(uptime, percent, uptime)

    def _add(self, at: float, percent: int, last: float) -> None:
        if percent not in PERCENTS:
            return
        seconds = at - self.seen_until
        if seconds > LONGEST_SAMPLE_SECONDS:
            self._miss(seconds, at)
            seconds = 0.0
        self._count(percent, seconds, last)
        self.seen_until = at

    def _miss(self, seconds: float, until: float) -> None:
        self.unseen_seconds += seconds
        self.since = until

    def _count(self, percent: float, seconds: float, last: float) -> None:
        self.percents[percent] = self.percents.get(percent, (0.0, 0.0))[0] + seconds, last

    def add_energy(self, millijoules: int | None) -> None:
        """Count the increase of the driver's energy counter. A lower value is a restarted counter."""
        if millijoules is None:
            return
        before = millijoules if self.millijoules is None else self.millijoules
        grown = millijoules - before if millijoules >= before else millijoules
        if grown:
            self.joules = (self.joules or 0.0) + grown / 1000
        self.millijoules = millijoules

    def to_document(self, uptime: float) -> dict[str, Any]:
        """Return it as in the file."""
        late = bool(self.problem) or self.seen_until < uptime - LATE_SECONDS
        return {
            "uuid": self.uuid,
            "gpu": self.gpu,
            "since": round(uptime if late else min(self.since, uptime), 2),
            "unseen": round(self.unseen_seconds + (uptime - self.seen_until if late else 0.0), 2),
            "percents": [
                [p, round(seconds, 2), round(last, 2)] for p, (seconds, last) in sorted(self.percents.items())
            ],
            "joules": None if self.joules is None else round(self.joules, 1),
            "source": None if self.source is None else self.source.value,
            "health": vars(self.health),
            "problem": self.problem,
        }


def _shift_to_uptime(samples: Samples, uptime: float, wall: float) -> Iterator[tuple[float, int]]:
    """Yield the time since the machine started and the percent of each sample with a plausible time, in order."""
    for at, percent in sorted((stamp / 1e6 - wall + uptime, percent) for stamp, percent in samples):
        if uptime - STRANGE_SECONDS < at <= uptime + NEW_SECONDS:
            yield at, percent


def uptime_seconds() -> float:
    """Return the time since the machine started, by the probe's clock."""
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


class Monitor:
    """Observes the workspace's GPUs in a thread, and keeps the document for the probe's file."""

    def __init__(self, environment: Mapping[str, str], log: logging.Logger) -> None:
        """Observe nothing yet."""
        names = environment.get(GPUS)
        self._wanted = None if names is None else tuple(filter(None, names.split(",")))
        self.log = log
        self._gpus: dict[str, GpuActivity] = {}
        self._document: dict[str, Any] | None = None

    def start(self) -> None:
        """Start unless this workspace is known to have no GPU."""
        if self._wanted != ():
            threading.Thread(target=self._run, name="gpu-monitor", daemon=True).start()

    @property
    def document(self) -> dict[str, Any] | None:
        """The observations until the last check, or None if there can be none."""
        return self._document

    def _run(self) -> None:
        failed = ""
        while True:
            try:
                with contextlib.closing(Nvml(self._wanted)) as nvml:
                    failed = ""
                    self._follow(nvml)
            except AwayError as error:
                if str(error) != failed:
                    self.log.info("GPUs are not observed from inside the workspace (%s)", error)
                failed = str(error)
                time.sleep(AGAIN_SECONDS)
            except Exception:
                self.log.exception("GPUs are not observed from inside the workspace")
                time.sleep(AGAIN_SECONDS)

    def _follow(self, nvml: Nvml) -> None:
        """Check the GPUs repeatedly. Return if a GPU does not answer, so that NVML is restarted."""
        opened = time.monotonic()
        due = opened
        while True:
            now = time.monotonic()
            is_due = now >= due
            if is_due:
                due = now + EVERY_SECONDS
            for uuid in (*nvml.uuids, *nvml.problems):
                self._look(nvml, uuid, is_due=is_due)
            uptime = uptime_seconds()
            gpus = list(self._gpus.values())
            self._document = {"uptime": uptime, "gpus": [gpu.to_document(uptime) for gpu in gpus]}
            # What GPM counts between its last reading and the new start is lost, so restart after a reading.
            if is_due and now - opened > AGAIN_SECONDS and any(gpu.problem for gpu in gpus):
                return
            by_rates = any(gpu.source is Source.RATES for gpu in gpus)
            time.sleep(min(RATES_SECONDS, EVERY_SECONDS) if by_rates else EVERY_SECONDS)

    def _look(self, nvml: Nvml, uuid: str, *, is_due: bool) -> None:
        """Check one GPU: its rates, and if everything ``is_due`` its samples, energy and health too."""
        uptime = uptime_seconds()
        gpu = self._gpus.setdefault(uuid, GpuActivity(uuid, since=uptime, seen_until=uptime, gpu=nvml.gpu_of(uuid)))
        problem, fault, sources = gpu.problem, gpu.health.fault, (gpu.source, gpu.without_gpm)
        try:
            # The samples come first: if they fail, the next value of GPM is of this time too.
            samples = nvml.samples(uuid) if is_due and nvml.has_gpm(uuid) else []
            activity = nvml.activity(uuid) if is_due else None
            if nvml.has_gpm(uuid):
                gpu.source, is_read = Source.GPM, is_due
                if is_due:
                    gpu.add_activity(activity, samples, uptime_seconds(), time.time())
            else:
                is_read = _read_utilization(gpu, nvml, is_due=is_due)
            if is_due:
                gpu.add_energy(nvml.millijoules(uuid))
            if is_read:
                gpu.problem = ""
        except GpuError as error:
            gpu.problem = str(error)
        if is_due and uuid not in nvml.problems:
            gpu.health = nvml.health(uuid, gpu.health)
        gpu.without_gpm = nvml.without_gpm.get(uuid, "")
        if (gpu.source, gpu.without_gpm) != sources and (gpu.source or gpu.gpu):
            why = f" (GPM: {gpu.without_gpm})" if gpu.without_gpm else ""
            self.log.info("GPU %s is %s%s", uuid, _SOURCE_WORDS[gpu.source], why)
        if gpu.problem != problem:
            self.log.warning("GPU %s %s", uuid, f"can't be read: {gpu.problem}" if gpu.problem else "can be read again")
        if gpu.health.fault not in {fault, ""}:
            self.log.warning("GPU %s: %s", uuid, gpu.health.fault)


def _read_utilization(gpu: GpuActivity, nvml: Nvml, *, is_due: bool) -> bool:
    """Count the utilization of a GPU without GPM. Return whether NVML was asked. Raises GpuError."""
    if gpu.source is Source.GPM:
        gpu.source = None
    # A buffer may be empty at first. If it was filled before and is empty now, nothing is observed.
    samples = nvml.samples(gpu.uuid) if is_due else []
    by_rates = not samples and gpu.source is not Source.SAMPLES and (is_due or gpu.source is Source.RATES)
    rate = nvml.rate(gpu.uuid) if by_rates else None
    uptime, wall = uptime_seconds(), time.time()
    if samples:
        gpu.source = Source.SAMPLES
        gpu.add_samples(samples, uptime, wall)
    elif rate is not None:
        gpu.source = Source.RATES
        gpu.add_rate(rate, uptime)
    return is_due or by_rates


_SOURCE_WORDS = {
    Source.GPM: "observed by GPM, which misses nothing",
    Source.SAMPLES: "observed by the driver's sample buffer",
    Source.RATES: "observed by utilization rates, read four times a second: the driver has no sample buffer",
    None: "not observed",
}


NAME = "gpuspawner-kernels"
"""Name of the file: ``/memfd:gpuspawner-kernels (deleted)`` among the server's open files."""
MOST_KERNELS, LONGEST_NAME = 20, 100
"""Limits of the report, which keep the probe small. Of more kernels only the busy or most recent ones are reported."""


class KernelFile:
    """The file. It exists from the start, so that a server without kernels reports this."""

    def __init__(self) -> None:
        """Make the file. Child processes do not inherit its descriptor."""
        self._descriptor = os.memfd_create(NAME)
        self._count = 0

    def write(self, kernels: list[dict[str, Any]], *, opened: bool, monitor: dict[str, Any] | None = None) -> None:
        """Replace the content. ``begin`` and ``end`` are equal unless it is read while it is written.

        The report of the GPU monitor is a second line: older services read only the first.
        """
        self._count += 1
        told = sorted(kernels, key=lambda kernel: (kernel["busy"] is False, kernel["idle_seconds"]))[:MOST_KERNELS]
        reports = [{"uptime": uptime_seconds(), "kernels": told, "opened": opened}, *([monitor] if monitor else [])]
        documents = ({"begin": self._count, "pid": os.getpid(), **one, "end": self._count} for one in reports)
        lines = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in documents)
        os.pwrite(self._descriptor, lines, 0)
        os.ftruncate(self._descriptor, len(lines))


class Watch:
    """Updates the file of one Jupyter server."""

    def __init__(self, server_app: Any) -> None:
        """Write the file for the first time."""
        self._server = server_app
        self._file = KernelFile()
        self._opened = False
        self._file.write([], opened=False)
        self._failed = False
        self._monitor = Monitor(os.environ, server_app.log)
        self._callback = PeriodicCallback(self._look, EVERY_SECONDS * 1000)

    def start(self) -> None:
        """Start the updates in the running loop."""
        settings = self._server.web_app.settings
        inner = settings.get("log_function")

        def logged(handler: RequestHandler) -> None:
            if inner is not None:
                inner(handler)
            self._opened = self._opened or is_page_load(handler)

        settings["log_function"] = logged
        self._callback.start()
        self._monitor.start()

    async def _look(self) -> None:
        monitor = self._monitor.document
        try:
            names, manager = await self._names(), self._server.kernel_manager
            kernels = [self._kernel(kernel_id, names) for kernel_id in manager.list_kernel_ids()]
            self._file.write(kernels, opened=self._opened, monitor=monitor)
            self._failed = False
        except Exception:
            # The probe notices the old file and reports it. The server must not fail because of it.
            if not self._failed:
                self._server.log.exception("The state of the kernels is not reported to the GPU service")
            self._failed = True

    def _kernel(self, kernel_id: str, names: dict[str, str]) -> dict[str, Any]:
        kernel = self._server.kernel_manager.get_kernel(kernel_id)
        state, last = getattr(kernel, "execution_state", None), getattr(kernel, "last_activity", None)
        idle_seconds = 0.0
        if isinstance(last, datetime):
            idle_seconds = max(0.0, (datetime.now(timezone.utc) - last).total_seconds())
        name = names.get(kernel_id) or kernel_id[:8]
        return {
            "name": name[:LONGEST_NAME],
            "busy": state == "busy" if isinstance(state, str) and isinstance(last, datetime) else None,
            "idle_seconds": round(idle_seconds, 1),
        }

    async def _names(self) -> dict[str, str]:
        """Return the notebook of each kernel that has one, without its folders."""
        sessions = await self._server.session_manager.list_sessions()
        return {session["kernel"]["id"]: Path(session["path"]).name for session in sessions}


def is_page_load(handler: RequestHandler) -> bool:
    """Return whether a user opened a page of this server. Periodic requests of pages, hub and proxies do not count.

    A user who is not signed in is sent to the hub first. Browsers mark a navigation by a header. Without that header,
    for example over http beyond localhost, the accepted content types decide.
    """
    request, kind = handler.request, str(handler._headers.get("Content-Type", ""))  # noqa: SLF001 - what it answered
    mode = request.headers.get("Sec-Fetch-Mode")
    navigates = mode == "navigate" if mode else "text/html" in request.headers.get("Accept", "")
    status = handler.get_status()
    # An answer from the browser's cache has no content type.
    answered = status == HTTPStatus.NOT_MODIFIED or (status == HTTPStatus.OK and kind.startswith("text/html"))
    return request.method == "GET" and answered and navigates and handler.current_user is not None


def watch(server_app: Any) -> None:
    """Start to report this server's kernels. Do nothing on a system without such files."""
    if hasattr(os, "memfd_create"):
        server_app.io_loop.add_callback(Watch(server_app).start)
