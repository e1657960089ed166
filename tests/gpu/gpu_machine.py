"""A machine with a GPU to test on, and what computes there."""

import asyncio
import functools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bad_machine import BadMachine

from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.errors import Unavailable

LOAD = Path(__file__).with_name("load.py")
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
"""A cold driver takes seconds for each GPU, and torch for its first kernel."""


@functools.cache
def real_gpus():
    """The real GPUs of this machine; none where it has no nvidia-smi, or that shows none."""
    command = nvidia.find()
    try:
        return () if command is None else tuple(asyncio.run(nvidia.listing(command)))
    except Unavailable:
        return ()


class GpuMachine(BadMachine):
    """One service over this machine's GPUs. Its clock is set by hand; what computes, computes in real time."""

    def __init__(self, folder, *, simulated):
        self.simulated, self._loads = simulated, []
        if not simulated:
            self.well = f'exec {nvidia.find()} "$@"'
        super().__init__(folder, gpus=2)

    def make_backend(self, gpus):
        if self.simulated:
            return super().make_backend(gpus)
        kinds = [replace(kind, match="*") for kind in self.catalog.gpus.values() if kind.of is None]
        return LocalBackend(kinds, {}, self.folder, readings=2, pause_seconds=0.5)

    def close(self):
        for load in self._loads:
            load.kill()
            load.communicate()
        super().close()

    def load(self, what, lease=None, gpu=None):
        """Let something compute: ``train``, ``burst``, ``tiny`` or ``rest``. In a workspace, or outside of any; on
        ``gpu``, or on what the workspace was given. Returns once it has begun (a burst: once it is over)."""
        environment = dict(os.environ) if lease is None else dict(self.environments[lease.id])
        if gpu is not None:
            environment |= {"CUDA_VISIBLE_DEVICES": gpu, "LOAD_GPU": gpu, "LOAD_FOLDER": self._simulated_folder()}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, str(LOAD), what]
        load = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._loads.append(load)
        for line in load.stdout:
            if line.strip().endswith("LOAD"):
                return load
        raise AssertionError(f"{command} ended with {load.wait()}")

    def end(self, load):
        load.kill()
        load.communicate()
        self._loads.remove(load)

    async def eventually(self, condition, what):
        """Take samples until it is so: the machine's own time passes, and a minute of the clock with each."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until, what() if callable(what) else what
            await self.go_on(60)

    async def gpus(self):
        """The fleet as it is now, by id."""
        return {gpu.id: gpu for gpu in (await self.backend.fleet()).gpus}

    def _simulated_folder(self):
        return str(self.folder / "simulated-gpus") if self.simulated else ""
