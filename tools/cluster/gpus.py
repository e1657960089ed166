"""Choose what serves the node's GPUs: NVIDIA's own programs if they are there, else our stand-in.

`python -m tools.cluster.gpus 4` gives the cluster of `make cluster` four GPUs and leaves them there. It runs with a
Python that has grpcio and protobuf.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.__main__ import FOLDER
from tools.cluster.cluster import Cluster
from tools.cluster.node_gpus import NodeClaims, NodeGpus
from tools.cluster.nvidia_gpus import CLAIM_PROGRAMS, NODE_PROGRAMS, NvidiaClaims, NvidiaGpus
from tools.cluster.standin_gpus import Board, StandinClaims, StandinGpus
from tools.nvidia import ensure_nvidia_smi, find_files, most_gpus
from tools.progress import StepError, say


def node_gpus(
    cluster: Cluster, count: int = 4, profile: str = "a100", *, replicas: int = 1, python: str | Path = sys.executable
) -> NodeGpus:
    """Return GPUs for the node: by NVIDIA's own programs, or by our stand-in, which says why.

    The stand-in is an A100 whatever the profile.
    """
    if why := why_not_nvidia(count, profile):
        say(f"The node's GPUs are our own simulation. {why}")
        return StandinGpus(cluster, count, replicas=replicas, python=python)
    return NvidiaGpus(cluster, count, profile, replicas=replicas, python=python)


def node_claims(cluster: Cluster, count: int, profile: str, product: str, memory_mib: int) -> NodeClaims:
    """Return GPUs that pods claim: by NVIDIA's own driver, or by our stand-in, which says why."""
    if why := why_not_nvidia(count, profile, CLAIM_PROGRAMS):
        say(f"The claimed GPUs are our own simulation. {why}")
        return StandinClaims(cluster, [Board(product, memory_mib) for _ in range(count)])
    return NvidiaClaims(cluster, count, profile)


def why_not_nvidia(count: int = 1, profile: str = "a100", programs: Sequence[str] = NODE_PROGRAMS) -> str:
    """Return in a sentence why NVIDIA's own programs can't serve ``count`` GPUs; "" if they can.

    Raises:
        StepError: there is no such profile.
    """
    try:
        files = find_files(programs=programs)
        ensure_nvidia_smi(files, "bookworm")
    except StepError as error:
        return str(error)
    most = most_gpus(files, profile)
    return f"NVIDIA's simulated {profile} has {most} GPUs." if count > most else ""


def main() -> int:
    """Give the node GPUs, and say which; 0 when done."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster.gpus", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=4, help="how many GPUs; default: 4")
    parser.add_argument("--profile", default="a100", help="which machine NVIDIA's driver simulates; default: a100")
    parser.add_argument("--replicas", type=int, default=1, help="by how many pods each GPU may be shared; default: 1")
    arguments = parser.parse_args()
    own = Cluster.load(FOLDER)
    if own is None or not own.runs:
        say("No cluster runs: `make cluster` starts one.")
        return 1
    try:
        gpus = node_gpus(own, arguments.count, arguments.profile, replicas=arguments.replicas)
        gpus.start()
    except StepError as error:
        say(str(error))
        return 1
    say(f"The node has {gpus.words}.")
    if isinstance(gpus, NvidiaGpus):
        say(f"Their state is changed by {gpus.control}, for example: util --gpu 0 64")
    return 0


if __name__ == "__main__":
    sys.exit(main())
