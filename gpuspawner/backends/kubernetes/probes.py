"""The probe of a workspace, run in its pod by exec: one exec carries all of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
from collections.abc import AsyncIterator, Awaitable, Iterable
from weakref import WeakValueDictionary

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.connection import ClusterSettings
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.backends.probes.script import script
from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.gpus.vendors import NVIDIA, Vendor, vendor_of

MAX_OUTPUT_BYTES = 1024 * 1024
"""More output than this is a fault: 16 GPUs and 1,000 processes print a tenth of it."""


class _Slots:
    """Places for probes: so many in all, and on each node."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._in_all = asyncio.Semaphore(settings.probes_at_once)
        self._per_node = settings.probes_per_node
        # Nodes come and go: what nobody holds or waits for goes with the last who did.
        self._on_node: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def one_on(self, node: str) -> AsyncIterator[None]:
        on_node = self._on_node.setdefault(node, asyncio.Semaphore(self._per_node))
        async with on_node, self._in_all:
            yield


class Prober:
    """Runs probes, bounded in all and on each node.

    A pod whose last probe failed may hang again, until its deadline: those wait for each other alone.
    """

    def __init__(self, api: Api, settings: ClusterSettings) -> None:
        """Run them through ``api``."""
        self._api, self._settings = api, settings
        self._script = script()
        self._slots, self._slow_slots = _Slots(settings), _Slots(settings)
        self._scripts = asyncio.Semaphore(settings.scripts_at_once)
        self._failed: set[str] = set()
        self._probing: set[str] = set()

    async def probe(self, pod: Pod, gpus: int, deadline_seconds: float) -> ProbeResult:
        """Probe a pod over as many GPUs. Never raises: whatever went wrong is a result that says so."""
        if pod.uid in self._probing:
            return ProbeResult(problem="the probe before has not ended yet")
        self._probing.add(pod.uid)
        try:
            async with (self._slow_slots if pod.uid in self._failed else self._slots).one_on(pod.node):
                result = await self._result(pod, gpus, deadline_seconds)
        finally:
            self._probing.discard(pod.uid)
        (self._failed.add if result.problem else self._failed.discard)(pod.uid)
        return result

    async def run_script(self, pod: Pod, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run another script in a pod. Never raises, waits for no probe, and takes no connection from others."""
        async with self._scripts:
            running = self._executed(pod, script, "the script")
            return await self._bounded(running, deadline_seconds, "the script")

    def forget_but(self, pods: Iterable[Pod]) -> None:
        """Forget what is known of any pod that is none of these."""
        if self._failed:
            self._failed &= {pod.uid for pod in pods}

    async def _result(self, pod: Pod, gpus: int, deadline_seconds: float) -> ProbeResult:
        running = self._executed(pod, self._stdin(pod, gpus, deadline_seconds), "the probe")
        return await self._bounded(running, deadline_seconds, "the probe")

    async def _bounded(self, running: Awaitable[ProbeResult], deadline_seconds: float, what: str) -> ProbeResult:
        try:
            return await asyncio.wait_for(running, deadline_seconds)
        except asyncio.TimeoutError:
            return ProbeResult(problem=f"{what} did not end within {deadline_seconds:g} s")
        except ApiRefused as error:
            return ProbeResult(problem=f"the cluster refused {what}: {error}")
        except Unavailable as error:
            return ProbeResult(problem=str(error))

    async def _executed(self, pod: Pod, stdin: bytes, what: str) -> ProbeResult:
        container = self._settings.container
        ended = await self._api.execute(pod.namespace, pod.name, container, ["/bin/sh", "-s"], stdin, MAX_OUTPUT_BYTES)
        if ended.problem:
            return ProbeResult(problem=f"{what} failed: {ended.problem}")
        if ended.code != 0:
            return ProbeResult(problem=f"{what} failed with exit code {ended.code}: {quoted(ended.said.strip())}")
        return ProbeResult(text=ended.output)

    def _stdin(self, pod: Pod, gpus: int, deadline_seconds: float) -> bytes:
        """Return the script with its parameters before it and its end behind: an exec's stdin is never closed.

        Who runs an exec may leave: what it started goes on. So the probe ends itself, with all that it started, once
        nobody waits for it any more: one nvidia-smi that hangs would be joined by another each minute.

        What watches it is ended and waited for: left behind it would be its container's first process's to reap, and
        few images have one that reaps what it did not start. After a day nothing could be started there any more.
        """
        readings, vendor = self._settings.readings, vendor_of_pod(pod)
        parameters = {
            "GPUSPAWNER_PROBE_GPUS": "",
            "GPUSPAWNER_PROBE_READINGS": str(readings if gpus else 0),
            "GPUSPAWNER_PROBE_PAUSE": f"{min(self._settings.pause_seconds, deadline_seconds / (2 * readings)):.2f}",
            "GPUSPAWNER_PROBE_DEVICES": self._settings.devices if vendor is NVIDIA else vendor.open_files,
            "GPUSPAWNER_PROBE_VENDOR": vendor.name,
            "GPUSPAWNER_PROBE_CGROUP": "/sys/fs/cgroup",
            "GPUSPAWNER_PROBE_PIDS": "all",
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in parameters.items()]
        seconds = math.ceil(deadline_seconds)
        slept = f"trap 'kill -9 $!; wait $!; exit' TERM; sleep {seconds} & wait $!"
        watch = f"({slept}; kill -9 -$$ || kill -9 $$) </dev/null >/dev/null 2>&1 &"
        before = "\n".join([*lines, watch, "GPUSPAWNER_PROBE_WATCH=$!", ""])
        after = "kill $GPUSPAWNER_PROBE_WATCH\nwait $GPUSPAWNER_PROBE_WATCH 2>/dev/null\nexit 0\n"
        return before.encode() + self._script + b"\n" + after.encode()


def vendor_of_pod(pod: Pod) -> Vendor:
    """Return whose GPUs a pod has: NVIDIA's unless its resources say otherwise."""
    return next(filter(None, map(vendor_of, pod.requests)), NVIDIA)
