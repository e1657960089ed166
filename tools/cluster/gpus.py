"""Simulated GPUs on the real node: device plugin, devices' health, and the labels that GPU Feature Discovery sets.

`python -m tools.cluster.gpus 4` gives the cluster of `make cluster` so many, and leaves them there. Its Python has
grpcio and protobuf, in which the kubelet's device interface is spoken.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuspawner.backends.local.records import MIB, SimulatedGpu
from gpuspawner.backends.local.simulated import create
from tools.cluster.__main__ import FOLDER
from tools.cluster.cluster import ASKED_SECONDS, Cluster
from tools.cluster.settings import NODE
from tools.install import ROOT
from tools.progress import StepError, say

PROCESS = "device-plugin"
OFFERED_SECONDS = 90
"""The longest that a kubelet on a busy machine takes to count its devices again."""
DEVICES = "/dev/nvidia-simulated"
"""Where a container finds the files of its simulated GPUs: the probe's pattern of GPU devices matches them."""
PACKAGE = "/opt/nvidia-simulated"
"""Where a container finds the stand-in."""
HERE = Path(__file__).parent
# Run by the shell that every image has; Python is the workspace's own.
NVIDIA_SMI = f"""\
#!/bin/sh
[ -z "$GPUSPAWNER_SIMULATED_MIG" ] || exec python3 -I -S {PACKAGE}/mig_smi.py "$@"
exec python3 -I -S {PACKAGE}/gpuspawner/backends/local/standin/run.py "$@"
"""


def make_devices(folder: Path, gpus: Sequence[SimulatedGpu]) -> None:
    """Make what containers are given of simulated GPUs: their files, and the stand-in."""
    create(folder / "devices", gpus)
    tool = folder / "nvidia-smi"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)


def write_settings(folder: Path, **told: Any) -> None:
    """Write at once what a device plugin or a driver reads: this, and where containers find what they are given."""
    mounts = {
        "/usr/bin/nvidia-smi": folder / "nvidia-smi",
        f"{PACKAGE}/gpuspawner": ROOT / "gpuspawner",
        f"{PACKAGE}/mig_smi.py": HERE / "mig_smi.py",
    }
    where = {"gpus": str(folder / "devices"), "files": DEVICES, "mounts": {k: str(v) for k, v in mounts.items()}}
    partial = folder / "settings.partial"
    partial.write_text(json.dumps({**told, **where}))
    partial.rename(folder / "settings.json")


class Gpus:
    """The node's simulated GPUs, all of one kind.

    Args:
        cluster: one that `make cluster` started.
        count: how many boards.
        product: the model as ``nvidia-smi`` names it.
        memory_mib: of each board.
        compute: its compute capability.
        replicas: by how many containers each board may be shared in time; 1: by one.
        mig: a profile such as "1g.10gb" into which each board is cut; "": whole boards.
        mig_devices: how many of that profile each board holds.
        mig_memory_mib: of each of them.
        python: the one that runs the device plugin.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int = 4,
        product: str = "NVIDIA A100-SXM4-80GB",
        memory_mib: int = 81_920,
        *,
        compute: tuple[int, int] = (8, 0),
        replicas: int = 1,
        mig: str = "",
        mig_devices: int = 7,
        mig_memory_mib: int = 9_728,
        python: str | Path = sys.executable,
    ) -> None:
        self.cluster = cluster
        self.python = str(python)
        self.folder = cluster.folder / "gpus"
        self.refuses = False
        self.resource = f"nvidia.com/mig-{mig}" if mig else "nvidia.com/gpu"
        self.gpus = [
            SimulatedGpu(f"GPU-{uuid.uuid4()}", product, memory_mib * MIB, ".".join(map(str, compute)))
            for _ in range(count)
        ]
        # NVIDIA's plugin marks the shares of a board so too.
        self.devices: list[dict[str, Any]] = [
            {
                "id": f"MIG-{uuid.uuid4()}" if mig else f"{gpu.uuid}::{share}" if replicas > 1 else gpu.uuid,
                "board": gpu.uuid,
                "mig": mig,
                "healthy": True,
            }
            for gpu in self.gpus
            for share in range(mig_devices if mig else replicas)
        ]
        self.labels = {
            "nvidia.com/gpu.count": str(count),
            "nvidia.com/gpu.product": product.replace(" ", "-") + ("-SHARED" if replicas > 1 else ""),
            "nvidia.com/gpu.memory": str(memory_mib),
            "nvidia.com/gpu.family": "ampere",
            "nvidia.com/gpu.compute.major": str(compute[0]),
            "nvidia.com/gpu.compute.minor": str(compute[1]),
            "nvidia.com/gpu.replicas": str(replicas),
            "nvidia.com/gpu.sharing-strategy": "time-slicing" if replicas > 1 else "none",
            "nvidia.com/gpu.machine": "simulated",
            "nvidia.com/mig.capable": "true",
            "nvidia.com/gpu.present": "true",
        }
        if mig:
            self.labels["nvidia.com/mig.strategy"] = "mixed"
            self.labels[f"{self.resource}.count"] = str(len(self.devices))
            self.labels[f"{self.resource}.memory"] = str(mig_memory_mib)
            self.labels[f"{self.resource}.product"] = f"{product.replace(' ', '-')}-MIG-{mig}"

    def start(self) -> None:
        """Give the node its GPUs, and wait until the kubelet offers them: instead of those that it may have had.

        Whoever else gave it some is waited for until they are taken away.

        Raises:
            StepError: the kubelet does not offer them in time, with its log.
        """
        self.lock = (self.cluster.folder / "gpus.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("the node's GPUs are in use by another run: waiting for its end ... ", end="")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self._end_plugin()
        make_devices(self.folder, self.gpus)
        self._write()
        command = [self.python, str(HERE / "device_plugin.py"), str(self.folder / "settings.json")]
        self.cluster.start_process(PROCESS, command)
        self._label(self.labels)
        self.wait_for_number(len(self.devices))

    def stop(self) -> None:
        """Take them away again. The kubelet keeps those of a plugin that ended for five minutes, as unhealthy ones."""
        self._write(devices=())
        self.wait_for_number(0, "capacity")
        self._end_plugin()
        self._label(dict.fromkeys(self.labels))
        self.lock.close()

    def set_health(self, device_id: str, *, healthy: bool) -> None:
        """Let a device fail, or mend it."""
        for device in self.devices:
            if device["id"] == device_id:
                device["healthy"] = healthy
        self._write()

    def set_refusing(self, *, refuses: bool) -> None:
        """Let the node throw out each pod that it is given to run, as one does that lost a race for a device."""
        self.refuses = refuses
        self._write()

    def wait_for_number(self, number: int, of: str = "allocatable") -> None:
        """Wait until the node offers so many; with "capacity" until it has so many, healthy or not.

        Raises:
            StepError: it does not in time, with the kubelet's log.
        """
        name = self.resource.replace(".", "\\.")
        asked = ("get", "node", NODE, f"--output=jsonpath={{.status.{of}.{name}}}")
        deadline = time.monotonic() + OFFERED_SECONDS
        while (found := self.cluster.kubectl(*asked) or "0") != str(number):
            if time.monotonic() > deadline:
                message = f"After {OFFERED_SECONDS} s the node offers {found} {self.resource}, not {number}."
                raise StepError(message, self.cluster.log("kubelet"))
            time.sleep(ASKED_SECONDS)

    def _end_plugin(self) -> None:
        known = Cluster.load(self.cluster.folder)
        if known and PROCESS in known.processes:
            self.cluster.stop_process(PROCESS)

    def _write(self, devices: Sequence[Mapping[str, Any]] | None = None) -> None:
        resources = {self.resource: self.devices if devices is None else devices}
        write_settings(self.folder, resources=resources, refuses=self.refuses)

    def _label(self, labels: Mapping[str, str | None]) -> None:
        patch = json.dumps({"metadata": {"labels": labels}})
        self.cluster.kubectl("patch", "node", NODE, "--type=merge", f"--patch={patch}")


if __name__ == "__main__":
    own = Cluster.load(FOLDER)
    if own is None or not own.runs:
        sys.exit("No cluster runs: `make cluster` starts one.")
    Gpus(own, int(sys.argv[1])).start()
