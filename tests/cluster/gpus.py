"""Simulated GPUs of the node, for as long as a test needs them."""

import contextlib

from tools.cluster.gpus import Gpus


@contextlib.contextmanager
def simulated(cluster, *arguments, **options):
    """Give the node simulated GPUs, as `Gpus` takes them, and take them away at the end."""
    gpus = Gpus(cluster.own, *arguments, **options)
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.stop()
