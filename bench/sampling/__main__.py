"""Sampling by exec at scale: 5,000 workspaces a minute on a real API server, compared with kubectl and client-go.

Nodes and pods are static objects; every node's kubelet is one stand-in, which speaks the kubelet's own exec protocol to
the API server. All of it shares this machine. Needs root and Go; about eight minutes.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from exec_load import HUB, NAMESPACE
from exec_programs import ensure_programs

from gpuspawner.backends.fake import probe_text
from gpuspawner.backends.kubernetes.backend import Prober
from gpuspawner.backends.kubernetes.pods import to_metadata
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.probes.script import END
from tools.cluster.pki import Authority
from tools.cluster.static import fill, static_cluster
from tools.progress import StepError

COUNT = int(os.environ.get("WORKSPACES", "5000"))
SECONDS = float(os.environ.get("MEASURED_SECONDS", "120"))
STEPS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)
"""Where not all probes end well at a rate, the next of these is tried."""
GPUS_A_NODE, PROBE_SECONDS, PORT, KUBECTL = 8, 2.3, 10251, 100
LATE_SECONDS = 60.0
"""A probe that begins later than this has missed its minute."""


def a_node(number: int, address: str) -> dict[str, Any]:
    name = f"node-{number:05}"
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    counts = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS_A_NODE)}
    status = {
        "capacity": counts,
        "allocatable": counts,
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
    }
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def a_pod(number: int) -> dict[str, Any]:
    carries = {"GPUSPAWNER_HUB_ID": HUB, "GPUSPAWNER_LEASE_ID": f"{number:06}", "GPUSPAWNER_ATTEMPT": "1"}
    labels, annotations = to_metadata(carries)
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {
        "nodeName": f"node-{number // GPUS_A_NODE:05}",
        "containers": [{"name": "notebook", "image": "registry.example.org/lab:1", "resources": limits}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    return {"metadata": {"name": pod_name(number), "labels": labels, "annotations": annotations}, "spec": spec}


def pod_name(number: int) -> str:
    return f"jupyter-{number}"


def start_standin(cluster: Any, programs: Path, prints: Path) -> None:
    """Start the simulated kubelet of all nodes at an address that the API server reaches."""
    authority = Authority(cluster.folder / "pki")
    authority.issue("standin", "/CN=standin", (f"IP:{cluster.address}",))
    command = [str(programs / "standin"), f"--address={cluster.address}:{PORT}", f"--prints={prints}"]
    command += [f"--takes={PROBE_SECONDS}s", f"--cert={authority.path('standin')}"]
    cluster.start_process("standin", [*command, f"--key={authority.path('standin', 'key')}"])


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(who: str, found: dict[str, Any]) -> None:
    memory = f", {found['memory_mib']:.0f} MiB" if "memory_mib" in found else ""
    each = 1000 * found["cpu_seconds"] / max(1, found["well"])
    print(
        f"{who}: {found['well'] / found['seconds']:.0f} execs a second, {found['failed']:.0f} failed; "
        f"{each:.1f} ms CPU each, {found['cpu_seconds'] / found['seconds']:.2f} cores{memory}",
        flush=True,
    )


def ours(cluster: Any, count: int, seconds: float, how: str) -> dict[str, Any]:
    others = {name: cpu_of(cluster.processes[name]) for name in ("kube-apiserver", "standin")}
    load = str(Path(__file__).with_name("exec_load.py"))
    command = [sys.executable, load, str(cluster.kubeconfig), str(count), str(seconds), how]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    found["others"] = {name: cpu_of(cluster.processes[name]) - before for name, before in others.items()}
    return found


def highest_rate(cluster: Any) -> int:
    """Sample as many workspaces as this machine carries with none missed; tell each try; return how many."""
    count = COUNT
    for share in STEPS:
        count = int(COUNT * share)
        found = ours(cluster, count, SECONDS, "sampler")
        tell(f"{count:,} workspaces a minute, sampled, judged and stored", found)
        middle, p99, most = found["late_seconds"]
        print(f"  a probe begins late by {middle:.1f} s in the median, {p99:.1f} s at p99, {most:.1f} s at most")
        if not found["failed"] and most < LATE_SECONDS and found["well"] >= 0.95 * count * SECONDS / 60:
            return count
        print(f"  not carried: {'; '.join(found['problems']) or 'too few, or too late'}", flush=True)
    return count


def kubectl(cluster: Any, script: Path) -> dict[str, Any]:
    """Run one ``kubectl exec`` each, some at a time."""

    def run(number: int) -> bool:
        command = [str(cluster.folder / "kubectl"), "exec", "-i", "-n", NAMESPACE, pod_name(number), "-c", "notebook"]
        with script.open() as stdin:
            done = subprocess.run(
                [*command, "--", "/bin/sh", "-s"], check=False, stdin=stdin, capture_output=True, text=True
            )
        return END in done.stdout and done.returncode == 0

    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        well = sum(threads.map(run, range(min(COUNT, KUBECTL))))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "well": well,
        "failed": min(COUNT, KUBECTL) - well,
        "seconds": time.monotonic() - began,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def client_go(cluster: Any, programs: Path, script: Path, count: int) -> dict[str, Any]:
    """Run the same execs by client-go at the same rate."""
    command = [str(programs / "client"), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
    command += [f"--rate={count / 60}", f"--script={script}", f"--marker={END}"]
    pods = "\n".join(pod_name(number) for number in range(min(count, int(count * SECONDS / 120))))
    said = subprocess.run(command, check=True, input=pods, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def main() -> int:
    if os.geteuid() != 0:
        print("not run: a cluster needs root")
        return 0
    try:
        programs = ensure_programs()
    except StepError as error:
        print(f"not run: {error}")
        return 0
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {time.strftime('%F')}")
    with tempfile.TemporaryDirectory() as folder:
        prints, script = Path(folder) / "prints", Path(folder) / "script"
        prints.write_text(probe_text({"GPU-0": 50}).replace("clock 100.00", "clock CLOCK"))
        script.write_bytes(Prober(None, ClusterSettings(NAMESPACE))._stdin(1, 20.0))  # type: ignore[arg-type]  # noqa: SLF001
        with static_cluster() as (cluster, core):
            nodes = (a_node(number, cluster.address) for number in range(-(-COUNT // GPUS_A_NODE)))
            fill(cluster, core, NAMESPACE, nodes, map(a_pod, range(COUNT)))
            start_standin(cluster, programs, prints)
            measure(cluster, programs, script)
    return 0


def measure(cluster: Any, programs: Path, script: Path) -> None:
    count = highest_rate(cluster)
    found = ours(cluster, count, SECONDS / 2, "alone")
    tell(f"the same {count:,} execs alone, without judgement and store", found)
    for name, seconds in found["others"].items():
        print(f"  {name}: {1000 * seconds / max(1, found['well']):.1f} ms CPU each")
    tell(f"{count:,} by client-go", client_go(cluster, programs, script, count))
    tell(f"{min(COUNT, KUBECTL)} by kubectl exec, one process each", kubectl(cluster, script))


if __name__ == "__main__":
    sys.exit(main())
