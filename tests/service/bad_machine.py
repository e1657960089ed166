"""The service with the local backend, real processes, real probes and a real database. Hub and clock are fakes.

Each workspace has an ``nvidia-smi`` of its own, which a test can replace.
"""

import os
import subprocess
import uuid

from service_world import SECRET, World

from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.lease_documents import lease_variables

POLICY = {"idle": {"below": "5%", "for": "2m", "sample": "60s", "grace": "1m"}}
SIXTEEN = {"sixteen": {"title": "Sixteen", "gpus": {"a100": "1-16"}}}
WELL = f'exec {nvidia.STAND_IN}/nvidia-smi "$@"'
BUSY = 'echo "0, $GPUSPAWNER_GPUS, A100, Disabled, 80, 900, 81920, 300.00"'
STEPS = 60
"""Minutes of the clock within which a condition must be met."""


class BadMachine(World):
    """A machine with simulated GPUs for tests of faults. Its database may be on another disk."""

    well = WELL
    command = ("sleep", "600")
    """The command of each workspace."""

    def __init__(self, folder, *, disk=None, gpus=1, policy=None, **settings):
        self.hub_id = f"hub-{uuid.uuid4().hex}"  # /proc shows the workspaces of other tests too
        folder.mkdir(exist_ok=True)
        self.folder, self.processes, self.environments = folder, {}, {}
        policy = {**POLICY, **(policy or {})}
        super().__init__((disk or folder) / "service.sqlite", gpus=gpus, policy=policy, templates=SIXTEEN, **settings)

    def make_backend(self, gpus):
        return LocalBackend(self.catalog.gpus.values(), {"a100": gpus}, self.folder, readings=1, pause_seconds=0.0)

    async def create(self, lease):
        """Acknowledge the grant, and start the process of the workspace as the spawner does."""
        starting = await self.acknowledge(lease)
        patch = self.backend.patch(starting.slots)
        self.tool(lease, self.well)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUSPAWNER_")}
        environment = {**clean, **patch["environment"], **lease_variables(starting, SECRET)}
        environment["PATH"] = f"{self._tools(lease)}:{os.environ['PATH']}"
        self.environments[lease.id] = environment
        self.processes[lease.id] = subprocess.Popen(self.command, env=environment)
        return starting

    def close(self):
        self.crash()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def tool(self, lease, script):
        """Replace the workspace's nvidia-smi by this shell script."""
        folder = self._tools(lease)
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / "new"
        new.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        new.chmod(0o755)
        new.rename(folder / "nvidia-smi")

    def lives(self, lease):
        return self.processes[lease.id].poll() is None

    async def until(self, condition):
        """Advance the clock by minutes until the condition is met."""
        for _ in range(STEPS):
            if condition():
                return
            await self.go_on(60)
        raise AssertionError(f"it did not come to that in {STEPS} minutes")

    async def until_warned(self, lease):
        await self.until(lambda: self.phase(lease) is Phase.RECLAIMING)

    async def until_ended(self, lease):
        await self.until(lambda: self.phase(lease) is Phase.ENDED)

    def _tools(self, lease):
        return self.folder / "tools" / lease.id
