"""Our stand-in for the node's GPUs that pods claim: a DRA driver and its ResourceSlices.

It serves what NVIDIA's driver can't do without hardware: parts of a GPU (MIG) and shares of one. It also serves
machines without NVIDIA's simulated driver. Names, attributes and taints are those of NVIDIA's driver
(kubernetes-sigs/dra-driver-nvidia-gpu, August 2026).
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuspawner.backends.local.records import MIB, SimulatedGpu
from tools.cluster.cluster import Cluster
from tools.cluster.node_claims import API, DRIVER, Json, NodeClaims
from tools.cluster.settings import NODE
from tools.cluster.standin_gpus import make_devices, write_settings
from tools.install import ROOT

MIG_MEMORY_MIB = {"1g.10gb": 9_728, "3g.40gb": 40_192}
MULTIPROCESSORS, OF_SLICE = 98, 14


@dataclass
class Board:
    """One GPU: ``parts`` are MIG devices that may be made of it, as (profile, first memory slice, how many slices).

    ``shares`` is by how many claims it may be shared; 0: by one alone.
    """

    product: str = "NVIDIA A100-SXM4-80GB"
    memory_mib: int = 81_920
    parts: Sequence[tuple[str, int, int]] = ()
    shares: int = 0
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
