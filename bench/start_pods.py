"""Click to ready on Kubernetes: a start through gpuspawner compared with plain KubeSpawner, on a real kubelet.

Two real hubs on the cluster of `make cluster`, one with ``configure()``, one without, with the same pod: its image and
JupyterLab, a simulated GPU by the device plugin, CPU and memory with their limits, and the shared memory that training
needs (for any volume the kubelet waits 0.3 s). The service has the product's own times. Starts in pairs, in which each
hub goes first by turns, so that a noisy machine and what a start leaves behind hit both alike. Printed: the medians,
whole and of each part, the ratio of the medians with its 95 % interval by bootstrap, and the first start of each hub,
with nothing warm. Each pair tells what share of this machine's CPU its host gave to others, where it is a virtual one.

The image has JupyterLab as pip alone makes it, as most people's have. IMAGE=workspace takes that of images/workspace,
whose JupyterLab is up in half the time by either spawner, so that less is left to win. PAIRS=120 takes that many.
SERVER=tiny takes Python's web server for JupyterLab: then what is left is the spawners' own.

QUEUE=kueue has both hubs with gpuspawner, the first with Kueue as its scheduler, the other with gpuspawner's own queue:
what admission adds, where GPUs and quota are free.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from urllib3.exceptions import HTTPError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from gpus import simulated  # noqa: E402 - found by the lines above
from kube_hub import KubeHub, eventually  # noqa: E402 - likewise
from kubernetes import watch  # noqa: E402 - likewise
from nodes import TestCluster  # noqa: E402 - found by the lines above
from test_kueue_hub import CATALOG as WITH_KUEUE  # noqa: E402 - likewise
from test_kueue_hub import objects  # noqa: E402 - likewise

from tools.cluster.__main__ import FOLDER  # noqa: E402 - found by the lines above
from tools.cluster.cluster import Cluster  # noqa: E402 - found by the lines above
from tools.cluster.kueue import NAME, Kueue  # noqa: E402 - likewise
from tools.cluster.workspace import ensure_image  # noqa: E402 - found by the lines above

PAIRS = int(os.environ.get("PAIRS", "30"))
TINY = os.environ.get("SERVER") == "tiny"
SLIM = os.environ.get("IMAGE") == "workspace"
KUEUE = os.environ.get("QUEUE") == "kueue"
NAMES = ("Kueue", "own queue") if KUEUE else ("gpuspawner", "KubeSpawner")
EXTRA = """
c.KubeSpawner.cpu_guarantee = c.KubeSpawner.cpu_limit = 1
c.KubeSpawner.mem_guarantee = c.KubeSpawner.mem_limit = "1G"
c.KubeSpawner.volumes = [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}]
c.KubeSpawner.volume_mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
"""
PLAIN_GPU = 'c.KubeSpawner.extra_resource_limits = {"nvidia.com/gpu": "1"}\n'
GPUS = 2
"""GPUs of the node: one for each hub, because no hub should wait for the other."""
POLLS = "c.KubeSpawner.poll_interval = 30\n"
"""KubeSpawner's own, where the tests have a shorter one."""
COMMAND = 'c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]\n'
DRAWS = 10_000
REST_SECONDS = 1.0
"""After a stop: the hub tidies up behind its answer."""
PARTS = ("hub and lease", "scheduling", "container", "the server's own start", "proxy")


class PlainHub(KubeHub):
    """The same hub without gpuspawner."""

    def config(self) -> str:
        text, _, _ = super().config().partition("from gpuspawner.spawner import configure")
        lines = text.replace('"custom:gpu:admin", ', "").splitlines(keepends=True)
        return "".join(line for line in lines if ".gpu_" not in line)


class KueueHub(KubeHub):
    """A hub whose GPUs Kueue gives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalog.write_text(self.catalog.read_text() + WITH_KUEUE)
        listed = {"apiVersion": "v1", "kind": "List", "items": objects(self.namespace)}
        self.cluster.own.kubectl("apply", "-f", "-", given=json.dumps(listed))


@contextmanager
def queues(own: Cluster) -> Iterator[None]:
    """Have Kueue on the cluster where starts go through it."""
    if KUEUE:
        Kueue(own).start()
    yield
    if KUEUE:
        own.stop_process(NAME)


class Steps(threading.Thread):
    """Notes when the pods of a namespace are first seen made, placed and running, by the clock of this machine."""

    def __init__(self, cluster: TestCluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self._list, self._namespace = cluster.core.list_namespaced_pod, namespace
        self.seen: dict[str, float] = {}
        self.start()

    def run(self) -> None:
        with suppress(HTTPError):  # the cluster's end
            for event in watch.Watch().stream(self._list, self._namespace):
                self._note(event["object"])

    def _note(self, pod: Any) -> None:
        reached = {"made"} | ({"placed"} if pod.spec.node_name else set())
        if any(container.state.running for container in pod.status.container_statuses or ()):
            reached.add("running")
        for step in reached:
            self.seen.setdefault(step, time.time())


def offer_bench(hub: KubeHub, *, gpu: bool = False) -> None:
    """Give a hub the template that is started."""
    kind = "extends: lab, default: {gpu: a100, count: 1," if gpu else "extends: cpu, default: {"
    bench = f"  bench: {{{kind} cpu: 1, memory: 1GiB}}}}\n"
    hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{bench}policies:\n"))


def answered(hub: KubeHub) -> float:
    """When the hub heard the last server answer, by its log."""
    *_, at = re.finditer(r"\[I (\S+ \S+) .* took [0-9.]+ seconds to start", hub.log.read_text())
    return datetime.fromisoformat(at[1]).timestamp()


def click_to_ready(hub: KubeHub, steps: Steps) -> tuple[float, ...]:
    """Return the seconds of each of PARTS."""
    steps.seen.clear()
    begin = time.time()
    response = hub.begin("alice", **({"template": "bench"} if not isinstance(hub, PlainHub) else {}))
    assert response.status_code in {201, 202}, response.text
    eventually(lambda: (server := hub.server("alice")) is not None and server["ready"], 120)
    ready = time.time()
    times = (begin, steps.seen["made"], steps.seen["placed"], steps.seen["running"], answered(hub), ready)
    stopping = hub.stop("alice")
    assert stopping.status_code in {202, 204}, stopping.text
    eventually(lambda: hub.server("alice") is None and hub.pod("alice") is None, 60)
    if not isinstance(hub, PlainHub):
        eventually(lambda: not hub.workspaces(), 60, "the lease has ended: nobody starts again this soon")
    time.sleep(REST_SECONDS)
    return tuple(after - before for before, after in pairwise(times))


def ratio(pairs: list[tuple[float, ...]]) -> float:
    ours, plain = zip(*pairs, strict=True)
    return statistics.median(ours) / statistics.median(plain)


def medians(starts: list[tuple[float, ...]]) -> str:
    parts = (
        f"{name} {statistics.median(part):.2f}" for name, part in zip(PARTS, zip(*starts, strict=True), strict=True)
    )
    return ", ".join(parts)


def cpu_ticks() -> list[int]:
    """Return the machine's CPU time so far, that of others on its host first; proc_stat(5)."""
    *own, stolen = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return [stolen, *own]


def taken_since(before: list[int]) -> str:
    """Tell the share of the machine's CPU that its host gave to others since ``before``, of `cpu_ticks`."""
    stolen, *ticks = (after - at for after, at in zip(cpu_ticks(), before, strict=True))
    return f"{100 * stolen / sum((stolen, *ticks)):.0f} % of the CPU went to others"


def timed_pair(title: str, hubs: list[KubeHub], steps: list[Steps], first: int) -> list[tuple[float, ...]]:
    """Start by each hub, number ``first`` first; tell and return the seconds of each of PARTS, in the hubs' order."""
    before = cpu_ticks()
    found = {number: click_to_ready(hubs[number], steps[number]) for number in (first, 1 - first)}
    pair = [found[number] for number in sorted(found)]
    one, other = map(sum, pair)
    print(f"{title}: {NAMES[0]} {one:.2f} s, {NAMES[1]} {other:.2f} s; {taken_since(before)}", flush=True)
    return pair


def tell(first: list[tuple[float, ...]], starts: list[list[tuple[float, ...]]], before: list[int]) -> None:
    """Print the figures of the first start of each hub, and of all pairs after it."""
    pairs = [tuple(map(sum, pair)) for pair in starts]
    drawn = sorted(ratio(random.choices(pairs, k=PAIRS)) for _ in range(DRAWS))
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    server = (
        "Python's web server" if TINY else "JupyterLab of images/workspace" if SLIM else "JupyterLab as pip makes it"
    )
    print(
        f"click to {server} ready, medians of {PAIRS} pairs: {NAMES[0]} {one:.2f} s, {NAMES[1]} {other:.2f} s; "
        f"{taken_since(before)}"
    )
    for name, of_one in zip(NAMES, zip(*starts, strict=True), strict=True):
        print(f"  {name}, seconds: {medians(list(of_one))}")
    cold = [sum(parts) for parts in first]
    print(f"the first start of each, with nothing warm: {cold[0]:.1f} s and {cold[1]:.1f} s")
    print(
        f"ratio of the medians {ratio(pairs):.2f}, 95 % between {drawn[DRAWS // 40]:.2f} and {drawn[-DRAWS // 40]:.2f}"
    )


def main() -> None:
    own = Cluster.load(FOLDER)
    if own is None or not own.runs:
        print("no cluster runs: `make cluster` starts one")
        return
    if not SLIM:
        os.environ["GPUSPAWNER_TEST_IMAGE"] = own.give_image(ensure_image(own.folder, slim=False))
    cluster = TestCluster(own.kubeconfig, own)
    before = cpu_ticks()
    hubs: list[KubeHub] = []
    steps: list[Steps] = []
    with (
        queues(own),
        simulated(cluster, GPUS),
        cluster.namespace() as one,
        cluster.namespace() as two,
        tempfile.TemporaryDirectory() as folder,
    ):
        kinds: tuple[type[KubeHub], ...] = (KueueHub, KubeHub) if KUEUE else (KubeHub, PlainHub)
        for kind, namespace in zip(kinds, (one, two), strict=True):
            place = Path(folder) / namespace
            place.mkdir()
            # The API answers when the server is ready: no polling blurs the figure.
            extra = POLLS + (EXTRA + PLAIN_GPU if kind is PlainHub else "") + (COMMAND if TINY else "")
            hub = kind(place, cluster=cluster, namespace=namespace, extra=extra, slow_spawn_timeout=120, times={})
            offer_bench(hub, gpu=True)
            hubs.append(hub)
            steps.append(Steps(cluster, namespace))
        try:
            for hub in hubs:
                hub.start()
                hub.add_user("alice")
            first = timed_pair("nothing warm", hubs, steps, 0)
            starts = [timed_pair(f"{pair} of {PAIRS}", hubs, steps, pair % 2) for pair in range(1, PAIRS + 1)]
        finally:
            for hub in hubs:
                hub.close()
    cluster.api.close()
    tell(first, starts, before)


if __name__ == "__main__":
    main()
