"""The node's GPUs by NVIDIA's own device plugin and GPU Feature Discovery, on NVIDIA's simulated driver."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.cluster.cluster import Cluster
from tools.cluster.node_gpus import NodeClaims, NodeGpus
from tools.cluster.settings import NODE
from tools.nvidia import SimulatedDriver, find_files, write_wrapper

NODE_PROGRAMS = ("nvml-mock-ctl", "nvidia-device-plugin", "gpu-feature-discovery", "nvidia-cdi-hook")
UNCORRECTABLE_XID = 48
"""The Xid that the driver reports for an uncorrectable memory error. The device plugin marks this GPU unhealthy."""


class NvidiaGpus(NodeGpus):
    """The node's GPUs, all of one profile.

    Containers get device files, ``nvidia-smi`` and the library by the Container Device Interface, as on a real node.

    Args:
        cluster: one that `make cluster` started.
        count: how many GPUs, up to those of the profile.
        profile: the machine to simulate, for example "a100".
        replicas: by how many containers each GPU may be shared in time; 1: by one.
        renamed: whether shared GPUs are offered as "nvidia.com/gpu.shared".
        python: as `NodeGpus` takes it.

    Raises:
        StepError: NVIDIA's programs are not there, or the profile has fewer GPUs; says what to do.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int = 4,
        profile: str = "a100",
        *,
        replicas: int = 1,
        renamed: bool = False,
        python: str | Path = sys.executable,
    ) -> None:
        files = find_files(programs=NODE_PROGRAMS)
        self.profile = profile
        self.count = count
        folder = Path(tempfile.mkdtemp(prefix="nvidia-", dir=cluster.folder))
        folder.chmod(0o755)
        self.driver = SimulatedDriver.on_node(files, folder, profile, count)
        tool = self.driver.programs / "nvidia-smi"
        super().__init__(cluster, self.driver.uuids, _resource(renamed=renamed), count * replicas, tool, python)
        self.settings = _settings(replicas, renamed=renamed)

    @property
    def words(self) -> str:
        """Description of the GPUs for people."""
        return f"{len(self.uuids)} {self.profile.upper()} of NVIDIA's simulated driver, by NVIDIA's device plugin"

    def start(self) -> None:
        """Make the driver root if it is not there yet, and give the node its GPUs. Raises as `NodeGpus` does."""
        if not self.driver.configuration.exists():
            SimulatedDriver.on_node(self.driver.files, self.driver.folder, self.profile, self.count)
        write_wrapper(self.control, self.driver.files / "bin" / "nvml-mock-ctl", self.driver.variables)
        super().start()

    def stop(self) -> None:
        """Take the GPUs away, with their driver root."""
        super().stop()
        shutil.rmtree(self.driver.folder)

    @property
    def control(self) -> Path:
        """NVIDIA's program that changes the state of these GPUs."""
        return self.cluster.folder / "nvml-mock-ctl"

    def set_health(self, uuid: str, *, healthy: bool) -> None:
        """Let a GPU fail by an uncorrectable memory error, or mend it and restart the plugin: it takes no GPU back."""
        if not healthy:
            self.driver.fail("ecc_uncorrectable", self.uuids.index(uuid), UNCORRECTABLE_XID)
            return
        self.driver.reset(self.uuids.index(uuid))
        self.start_plugin()

    def set_utilization(self, uuid: str, percent: int) -> None:
        """Make a GPU busy to the given percentage; 0 makes it idle."""
        self.driver.set_utilization(percent, self.uuids.index(uuid))

    def set_sharing(self, replicas: int, *, renamed: bool = False) -> None:
        """Share each GPU from now on, as an administrator does who changes the device plugin's file."""
        self.settings = _settings(replicas, renamed=renamed)
        self.resource, self.number = _resource(renamed=renamed), self.count * replicas
        self.resources.add(self.resource)
        self.start_plugin()
        self.label()
        self.wait_for_number(self.number)

    @property
    def _settings_file(self) -> Path:
        return self.driver.folder / "sharing.json"

    def _command(self) -> list[str]:
        root = self.driver.folder
        self._settings_file.write_text(json.dumps(self.settings))
        return [
            str(self.driver.files / "bin" / "nvidia-device-plugin"),
            f"--driver-root={root}",
            f"--driver-root-ctr-path={root}",
            f"--dev-root={root}",
            "--device-discovery-strategy=nvml",
            "--device-list-strategy=cdi-cri",
            f"--nvidia-cdi-hook-path={root / 'hook' / 'nvidia-cdi-hook'}",
            f"--config-file={self._settings_file}",
        ]

    def _read_labels(self) -> dict[str, str]:
        """Return the labels that GPU Feature Discovery finds."""
        file = self.driver.folder / "labels"
        environment = [f"NODE_NAME={NODE}", f"LD_LIBRARY_PATH={self.driver.libraries}"]
        command = [
            "env",
            *environment,
            str(self.driver.files / "bin" / "gpu-feature-discovery"),
            "--oneshot",
            "--no-timestamp",
            "--use-node-feature-api=false",
            f"--output-file={file}",
            "--device-discovery-strategy=nvml",
            f"--config-file={self._settings_file}",
        ]
        log = self.cluster.log("gpu-feature-discovery")
        self.cluster.namespaces.run('log=$1; shift; "$@" >>"$log" 2>&1', str(log), *command)
        return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def _settings(replicas: int, *, renamed: bool) -> dict[str, Any]:
    """Return the content of the device plugin's file."""
    shared = {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}], "renameByDefault": renamed}
    return {"version": "v1", **({"sharing": {"timeSlicing": shared}} if replicas > 1 else {})}


def _resource(*, renamed: bool) -> str:
    return "nvidia.com/gpu.shared" if renamed else "nvidia.com/gpu"


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
