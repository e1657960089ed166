"""NVIDIA's own programs on the test cluster's node, for tests that nothing else can serve."""

import asyncio
import contextlib
import json
import subprocess

import pytest

from gpuspawner.cli import main
from tools.cluster.gpus import why_not_nvidia
from tools.cluster.nvidia_gpus import NvidiaGpus

ABOUT_GPUS = {"device plugin", "GPU labels", "GPU health", "catalog", "CUDA", "claims"}


@contextlib.contextmanager
def nvidia_gpus(cluster, count=2, profile="a100", **options):
    """Give the node GPUs by NVIDIA's device plugin, or skip the test and say how to get it."""
    if why := why_not_nvidia():
        pytest.skip(why)
    gpus = NvidiaGpus(cluster.own, count, profile, **options)
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.stop()


async def found_by_init(cluster, file, capsys):
    """Write a catalog of the cluster by `gpuspawner server init`; return what it found, and its other sentences."""
    arguments = ["server", "init", str(file), "--force", "--kubernetes", "--kubeconfig", str(cluster.kubeconfig)]
    assert await asyncio.to_thread(main, arguments) == 0
    first, *told = capsys.readouterr().out.splitlines()
    assert await asyncio.to_thread(main, ["server", "check", str(file)]) == 0
    assert "good (" in capsys.readouterr().out
    return first, told


async def found_by_doctor(cluster, namespace, catalog, capsys):
    """Return the findings of `gpuspawner server doctor` on the node's GPUs that are not good, as (check, words)."""
    nobody = ["--hub", "http://127.0.0.1:9/hub/api", "--service", "http://127.0.0.1:9"]
    where = ["--kubernetes", "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace]
    await asyncio.to_thread(main, ["server", "doctor", "--json", *nobody, *where, "--catalog", str(catalog)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [(one["check"], one["words"]) for one in found if one["check"] in ABOUT_GPUS and one["state"] != "good"]


def asked(cluster, namespace, pod, *fields):
    """Return the nvidia-smi values of each GPU that a pod sees."""
    query = ("/usr/bin/nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    code, told, said = cluster.run_in(namespace, pod, *query)
    assert (code, said) == (0, ""), told
    return [line.split(", ") for line in told.splitlines()]


def control(gpus, *arguments):
    """Change the state of the driver as a person would, by NVIDIA's own program."""
    subprocess.run([gpus.control, *arguments], check=True, capture_output=True)
