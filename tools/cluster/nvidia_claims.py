"""The node's GPUs that pods claim, by the node part of NVIDIA's own DRA driver on NVIDIA's simulated driver."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tools.cluster.cluster import Cluster
from tools.cluster.node_claims import NodeClaims
from tools.cluster.nvidia_gpus import UNCORRECTABLE_XID
from tools.cluster.settings import NODE
from tools.nvidia import SimulatedDriver, find_files

CLAIM_PROGRAMS = ("nvml-mock-ctl", "gpu-kubelet-plugin", "nvidia-cdi-hook")


class NvidiaClaims(NodeClaims):
    """The node's claimed GPUs, all of one profile.

    Args:
        cluster: one that `make cluster` started. The kubelet gives no extended resource by claims on a node that had a
            device plugin for it.
        count: how many GPUs, up to those of the profile.
        profile: the machine to simulate, for example "a100".

    Raises:
        StepError: NVIDIA's programs are not there; says how to get them.
    """

    def __init__(self, cluster: Cluster, count: int = 4, profile: str = "a100") -> None:
        folder = Path(tempfile.mkdtemp(prefix="nvidia-claims-", dir=cluster.folder))
        folder.chmod(0o755)
        self.driver = SimulatedDriver.on_node(find_files(programs=CLAIM_PROGRAMS), folder, profile, count)
        super().__init__(cluster, self.driver.uuids)

    def stop(self) -> None:
        """Take the GPUs away, with their driver root: they can't be started again."""
        super().stop()
        shutil.rmtree(self.driver.folder)

    def taint(self, number: int) -> None:
        """Let a GPU fail by an uncorrectable memory error: the driver taints it."""
        self.driver.fail("ecc_uncorrectable", number, UNCORRECTABLE_XID)

    def mend(self, number: int) -> None:
        """Make the GPU work again. The driver is restarted, because it never removes a taint."""
        self.driver.reset(number)
        self.start_driver()

    def _command(self) -> list[str]:
        root = self.driver.folder
        variables = {
            "NODE_NAME": NODE,
            "NAMESPACE": "default",
            "KUBECONFIG": self.cluster.kubeconfig,
            "IMAGE_NAME": "none",
            "NVIDIA_DRIVER_ROOT": root,
            "DRIVER_ROOT_CTR_PATH": root,
            "CDI_ROOT": "/var/run/cdi",
            "NVIDIA_CDI_HOOK_PATH": root / "hook" / "nvidia-cdi-hook",
        }
        program = self.driver.files / "bin" / "gpu-kubelet-plugin"
        environment = [f"{name}={value}" for name, value in variables.items()]
        return ["/usr/bin/env", *environment, str(program), "--feature-gates=NVMLDeviceHealthCheck=true"]
