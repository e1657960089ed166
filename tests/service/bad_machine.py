"""The service's parts over the local backend: real processes, real probes, a real database. Only the hub and the clock
are fakes, so that half an hour takes a second.

Each workspace has an ``nvidia-smi`` of its own, which is the stand-in's until a bad day gives it another.
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
"""Minutes of the clock within which the machine must have recovered. A run ends earlier once it has."""


class BadMachine(World):
    """A machine with simulated GPUs, for days on which things go wrong. Its database may lie on a disk of its own."""

    well = WELL
    command = ("sleep", "600")
    """The command of each workspace."""

    def __init__(self, folder, *, disk=None, gpus=1, policy=None, **settings):
        self.hub_id = f"hub-{uuid.uuid4().hex}"  # /proc shows the workspaces of other tests too
        self.folder, self.processes, self.environments = folder, {}, {}
        policy = {**POLICY, **(policy or {})}
        super().__init__((disk or folder) / "service.sqlite", gpus=gpus, policy=policy, templates=SIXTEEN, **settings)

    def make_backend(self, gpus):
        return LocalBackend(self.catalog.gpus.values(), {"a100": gpus}, self.folder, readings=1, pause_seconds=0.0)

    async def create(self, lease):
        """Take the grant, and start the workspace's process as the spawner does."""
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
        """From now on the workspace's nvidia-smi is this shell script."""
        folder = self._tools(lease)
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / "new"
        new.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        new.chmod(0o755)
        new.rename(folder / "nvidia-smi")

    def lives(self, lease):
        return self.processes[lease.id].poll() is None

    async def until(self, condition):
        """Let minutes pass until it is so."""
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
