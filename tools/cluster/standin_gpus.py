"""Our stand-in for the node's GPUs: device plugin, devices' health, and the labels that GPU Feature Discovery sets.

It serves what NVIDIA's simulated driver can't: MIG devices, more than eight GPUs, and machines without its folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuspawner.backends.local import simulated
from gpuspawner.backends.local.records import MIB, SimulatedGpu
from tools.cluster.cluster import Cluster
from tools.cluster.node_gpus import API, DRIVER, STANDIN, Json, NodeClaims, NodeGpus
from tools.cluster.settings import NODE
from tools.install import ROOT

DEVICES = "/dev/nvidia0"
"""Where a container finds the files of its simulated GPUs: a folder whose files the probe takes for GPU devices."""
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
    simulated.create(folder / "devices", gpus)
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


class StandinGpus(NodeGpus):
    """The node's GPUs by our stand-in, all of one model.

    Args:
        cluster: one that `make cluster` started.
        count: how many boards.
        product: the model as ``nvidia-smi`` names it.
        memory_mib: of each board.
        compute: its compute capability.
        replicas: by how many containers each board may be shared in time; 1: by one.
        mig: a profile into which each board is cut, for example "1g.10gb"; "": whole boards.
        mig_devices: how many of that profile each board holds.
        mig_memory_mib: of each of them.
        python: as `NodeGpus` takes it.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int = 4,
        product: str = "NVIDIA A100-SXM4-40GB",
        memory_mib: int = 40_960,
        *,
        compute: tuple[int, int] = (8, 0),
        replicas: int = 1,
        mig: str = "",
        mig_devices: int = 7,
        mig_memory_mib: int = 9_728,
        python: str | Path = sys.executable,
    ) -> None:
        self.folder = cluster.folder / "gpus"
        self.gpus = [
            SimulatedGpu(f"GPU-{uuid.uuid4()}", product, memory_mib * MIB, ".".join(map(str, compute)))
            for _ in range(count)
        ]
        resource = f"nvidia.com/mig-{mig}" if mig else "nvidia.com/gpu"
        number = count * (mig_devices if mig else replicas)
        uuids = [gpu.uuid for gpu in self.gpus]
        super().__init__(cluster, uuids, resource, number, self.folder / "nvidia-smi", python)
        self._busy: dict[str, subprocess.Popen[bytes]] = {}
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
        self._found = {
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
            self._found["nvidia.com/mig.strategy"] = "mixed"
            self._found[f"{self.resource}.count"] = str(len(self.devices))
            self._found[f"{self.resource}.memory"] = str(mig_memory_mib)
            self._found[f"{self.resource}.product"] = f"{product.replace(' ', '-')}-MIG-{mig}"

    @property
    def words(self) -> str:
        """Description of the GPUs for people."""
        return f"{len(self.gpus)} {self.gpus[0].name} of our own simulation"

    def stop(self) -> None:
        """Take the GPUs away, with what keeps them busy."""
        for gpu in self.uuids:
            self.set_utilization(gpu, 0)
        super().stop()

    def set_health(self, uuid: str, *, healthy: bool) -> None:
        """Let a GPU fail, or mend it."""
        for device in self.devices:
            if device["board"] == uuid:
                device["healthy"] = healthy
        self._write()

    def set_utilization(self, uuid: str, percent: int) -> None:
        """Make a GPU busy to the given percentage; 0 makes it idle."""
        if before := self._busy.pop(uuid, None):
            before.communicate()  # the end of its input is its sign to end
        if percent:
            arguments = [str(self.folder / "devices"), uuid, str(percent), "40"]
            command = [self.python, "-I", "-S", simulated.__file__, *arguments]
            self._busy[uuid] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _command(self) -> list[str]:
        make_devices(self.folder, self.gpus)
        self._write()
        return [self.python, str(STANDIN), str(self.folder / "settings.json")]

    def _read_labels(self) -> dict[str, str]:
        return self._found

    def _write(self) -> None:
        write_settings(self.folder, resources={self.resource: self.devices})


MIG_MEMORY_MIB = {"1g.10gb": 9_728, "3g.40gb": 40_192}
MULTIPROCESSORS, OF_SLICE = 98, 14


@dataclass
class Board:
    """One GPU: ``parts`` are MIG devices that may be made of it, as (profile, first memory slice, how many slices).

    ``shares`` is by how many claims it may be shared; 0: by one alone. ``numa`` is its NUMA node; None: not known.
    """

    product: str = "NVIDIA A100-SXM4-80GB"
    memory_mib: int = 81_920
    parts: Sequence[tuple[str, int, int]] = ()
    shares: int = 0
    numa: int | None = None
    taints: list[Json] = field(default_factory=list)
    gpu: SimulatedGpu = field(init=False)

    def __post_init__(self) -> None:
        """Make it."""
        self.gpu = SimulatedGpu(f"GPU-{uuid.uuid4()}", self.product, self.memory_mib * MIB, "8.0")


class StandinClaims(NodeClaims):
    """The node's claimed GPUs by our stand-in, each as its board says."""

    def __init__(self, cluster: Cluster, boards: Sequence[Board]) -> None:
        super().__init__(cluster, [board.gpu.uuid for board in boards])
        self.boards = list(boards)
        self.folder = cluster.folder / "claimed-gpus"
        self.generation = 1

    def publish(self) -> None:
        """Tell the cluster of the devices as they are now: a new generation of the pool."""
        self._write()
        before, self.generation = self.generation, self.generation + 1
        counters = [found for number, board in enumerate(self.boards) if (found := _counters(number, board))]
        devices = [device for number, board in enumerate(self.boards) for device in _devices(number, board)]
        parts: list[Json] = [{"devices": devices}, *([{"sharedCounters": counters}] if counters else [])]
        self._apply(*(self._slice(at, part, of=len(parts)) for at, part in enumerate(parts)))
        names = [f"{NODE}-{DRIVER}-{before}-{at}" for at in range(2)]
        self.cluster.kubectl("delete", "resourceslice", "--ignore-not-found", *names)

    def taint(self, number: int) -> None:
        """Let a GPU fail: it is tainted."""
        self.boards[number].taints = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
        self.publish()

    def mend(self, number: int) -> None:
        """Make a failed GPU work again."""
        self.boards[number].taints = []
        self.publish()

    def _slice(self, at: int, part: Json, of: int) -> Json:
        pool = {"name": NODE, "generation": self.generation, "resourceSliceCount": of}
        metadata = {"name": f"{NODE}-{DRIVER}-{self.generation}-{at}"}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, **part}
        return {"apiVersion": API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    def _command(self) -> list[str]:
        make_devices(self.folder, [board.gpu for board in self.boards])
        self._write()
        module = [sys.executable, "-m", "tools.cluster.dra_driver", str(self.folder / "settings.json")]
        return ["/usr/bin/env", f"PYTHONPATH={ROOT}", *module]

    def _is_published(self) -> bool:
        """Publish the devices once the kubelet knows the driver."""
        if "registered: True" not in (self.log.read_text() if self.log.exists() else ""):
            return False
        self.publish()
        return True

    def _write(self) -> None:
        devices = {}
        for number, board in enumerate(self.boards):
            devices[f"gpu-{number}"] = {"board": board.gpu.uuid, "id": board.gpu.uuid, "mig": ""}
            for part in board.parts:
                made = uuid.uuid5(uuid.NAMESPACE_OID, f"{board.gpu.uuid}/{part}")
                devices[_part_name(number, *part)] = {"board": board.gpu.uuid, "id": f"MIG-{made}", "mig": part[0]}
        write_settings(self.folder, driver=DRIVER, kubectl=str(self.cluster.folder / "kubectl"), devices=devices)


def _devices(number: int, board: Board) -> list[Json]:
    common = {
        "productName": {"string": board.product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "driverVersion": {"version": "580.65.6"},
        "cudaDriverVersion": {"version": "13.0.0"},
        **({} if board.numa is None else {"resource.kubernetes.io/numaNode": {"int": board.numa}}),
    }
    whole: Json = {
        "name": f"gpu-{number}",
        "attributes": {**common, "type": {"string": "gpu"}, "uuid": {"string": board.gpu.uuid}},
        "capacity": {"memory": {"value": f"{board.memory_mib}Mi"}},
        **({"taints": board.taints} if board.taints else {}),
    }
    if board.parts:
        whole["consumesCounters"] = [_takes(number, MULTIPROCESSORS, range(8))]
    if board.shares:
        memory = {"min": "0", "max": f"{board.memory_mib}Mi", "step": "1Mi"}
        shares = {"min": "1", "max": str(board.shares), "step": "1"}
        whole["allowMultipleAllocations"] = True
        whole["capacity"]["memory"]["requestPolicy"] = {"default": "0", "validRange": memory}
        policy = {"default": "1", "validRange": shares}
        whole["capacity"]["shares"] = {"value": str(board.shares), "requestPolicy": policy}
    own = {**common, "type": {"string": "mig"}, "parentUUID": {"string": board.gpu.uuid}}
    return [whole, *(_part(number, board, own, *part) for part in board.parts)]


def _part(number: int, board: Board, attributes: Json, profile: str, start: int, size: int) -> Json:
    return {
        "name": _part_name(number, profile, start, size),
        "attributes": {**attributes, "profile": {"string": profile}},
        "capacity": {"memory": {"value": f"{MIG_MEMORY_MIB[profile]}Mi"}},
        "consumesCounters": [_takes(number, OF_SLICE * int(profile[0]), range(start, start + size))],
        **({"taints": board.taints} if board.taints else {}),
    }


def _part_name(number: int, profile: str, start: int, size: int) -> str:
    return f"gpu-{number}-mig-{profile.replace('.', '')}-{start}-{size}"


def _takes(number: int, multiprocessors: int, slices: range) -> Json:
    memory = {f"memory-slice-{at}": {"value": "1"} for at in slices}
    counters = {"multiprocessors": {"value": str(multiprocessors)}, **memory}
    return {"counterSet": f"gpu-{number}-counter-set", "counters": counters}


def _counters(number: int, board: Board) -> Json | None:
    if not board.parts:
        return None
    taken = _takes(number, MULTIPROCESSORS, range(8))
    return {"name": taken["counterSet"], "counters": taken["counters"]}
