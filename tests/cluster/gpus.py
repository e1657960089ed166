"""Simulated GPUs on the real node: device plugin, devices' health, and the labels that GPU Feature Discovery sets.

Run with a number, it gives the cluster of `make cluster` so many, and leaves them there.
"""

import contextlib
import fcntl
import json
import sys
import uuid

import device_plugin
import mig_smi
from nodes import ROOT, TestCluster, wait_for

from gpuspawner.backends.local.simulated import MIB, SimulatedGpu, create
from tools.cluster.__main__ import FOLDER
from tools.cluster.cluster import Cluster
from tools.cluster.settings import NODE

PROCESS = "device-plugin"
# Run by the shell that every image has; Python is the workspace's own.
NVIDIA_SMI = f"""\
#!/bin/sh
[ -z "$GPUSPAWNER_SIMULATED_MIG" ] || exec python3 -I -S {device_plugin.PACKAGE}/mig_smi.py "$@"
exec python3 -I -S {device_plugin.PACKAGE}/gpuspawner/backends/local/standin/run.py "$@"
"""


class Gpus:
    """The node's simulated GPUs, all of one kind.

    Args:
        cluster: one that `make cluster` started.
        count: how many boards.
        product: the model as ``nvidia-smi`` names it.
        memory_mib: of each board.
        replicas: by how many containers each board may be shared in time; 1: by one.
        mig: a profile such as "1g.10gb" into which each board is cut; "": whole boards.
        mig_devices: how many of that profile each board holds.
        mig_memory_mib: of each of them.
    """

    def __init__(self, cluster: TestCluster, count=4, product="NVIDIA A100-SXM4-80GB", memory_mib=81_920, *,
                 compute=(8, 0), replicas=1, mig="", mig_devices=7, mig_memory_mib=9_728):  # fmt: skip
        self.cluster = cluster
        self.folder = cluster.own.folder / "gpus"
        self.resource = f"nvidia.com/mig-{mig}" if mig else "nvidia.com/gpu"
        self.gpus = [
            SimulatedGpu(f"GPU-{uuid.uuid4()}", product, memory_mib * MIB, ".".join(map(str, compute)))
            for _ in range(count)
        ]
        # NVIDIA's plugin marks the shares of a board so too.
        self.devices = [
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

    def start(self):
        """Give the node its GPUs, and wait until the kubelet offers them: instead of those that it may have had."""
        self.lock = (self.cluster.own.folder / "gpus.lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        if PROCESS in Cluster.load(self.cluster.own.folder).processes:
            self.cluster.own.stop_process(PROCESS)
        create(self.folder / "devices", self.gpus)
        tool = self.folder / "nvidia-smi"
        tool.write_text(NVIDIA_SMI)
        tool.chmod(0o755)
        self._write()
        command = [sys.executable, device_plugin.__file__, str(self.folder / "settings.json")]
        self.cluster.own.start_process(PROCESS, command)
        self._label(self.labels)
        self.wait_for_allocatable(len(self.devices))

    def stop(self):
        """Take them away again."""
        self.cluster.own.stop_process(PROCESS)
        self._label(dict.fromkeys(self.labels))
        self.wait_for_allocatable(0)
        self.lock.close()

    def set_health(self, device_id, *, healthy):
        """Let a device fail, or mend it."""
        for device in self.devices:
            if device["id"] == device_id:
                device["healthy"] = healthy
        self._write()

    def wait_for_allocatable(self, number):
        """Wait until the node offers so many."""

        def offered():
            node = self.cluster.core.read_node(NODE)
            return int((node.status.allocatable or {}).get(self.resource, 0)) == number

        wait_for(offered, f"{number} {self.resource} allocatable")

    def _write(self):
        settings = {
            "resources": {self.resource: self.devices},
            "gpus": str(self.folder / "devices"),
            "mounts": {
                "/usr/bin/nvidia-smi": str(self.folder / "nvidia-smi"),
                f"{device_plugin.PACKAGE}/gpuspawner": str(ROOT / "gpuspawner"),
                f"{device_plugin.PACKAGE}/mig_smi.py": mig_smi.__file__,
            },
        }
        partial = self.folder / "settings.partial"
        partial.write_text(json.dumps(settings))
        partial.rename(self.folder / "settings.json")

    def _label(self, labels):
        self.cluster.core.patch_node(NODE, {"metadata": {"labels": labels}})


@contextlib.contextmanager
def simulated(cluster, *arguments, **options):
    """Give the node simulated GPUs, as `Gpus` takes them, and take them away at the end."""
    gpus = Gpus(cluster, *arguments, **options)
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.stop()


if __name__ == "__main__":
    own = Cluster.load(FOLDER)
    assert own, "no cluster runs: `make cluster` starts one"
    Gpus(TestCluster(own.kubeconfig, own), int(sys.argv[1])).start()
