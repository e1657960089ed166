"""GPUs of the node for as long as a test needs them, by NVIDIA's own programs or by our stand-in."""

import contextlib
import re

from tools.cluster.gpus import node_gpus
from tools.cluster.standin_gpus import StandinGpus

HOLD = "exec 3<\"$(find /dev/nvidia[0-9]* -name 'nvidia[0-9]' -type c -o -name 'GPU-*' | sort | head -n 1)\""
"""Shell: open the first GPU's device file, as a program that uses CUDA does."""


@contextlib.contextmanager
def simulated(cluster, count=4, *, mig="", mig_devices=7, **options):
    """Give the node GPUs, as `node_gpus` takes them, and take them away at the end.

    NVIDIA's simulated driver has no MIG devices, so the stand-in serves those.
    """
    if mig:
        gpus = StandinGpus(cluster.own, count, mig=mig, mig_devices=mig_devices)
    else:
        gpus = node_gpus(cluster.own, count, **options)
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.stop()


def uuids_in(cluster, namespace, pod):
    """Return the UUIDs of the GPUs that a pod sees."""
    code, listed, said = cluster.run_in(namespace, pod, "/usr/bin/nvidia-smi", "-L")
    assert code == 0, said
    return re.findall(r"UUID: (GPU-[^)]+)\)", listed)
