"""Click to ready on a node without the image: pulled from Debian's registry, compared with plain KubeSpawner.

Each start has a cluster of its own, just made, on a disk just made, with the hub and the pod of bench/start_pods.py.
The registry is on the same machine: a network's time for the bytes, which are told, comes on top. Each start tells what
share of this machine's CPU its host gave to others, where it is a virtual one: the pull has much to unpack.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from kube_hub import KubeHub  # noqa: E402 - found by the lines above
from nodes import TestCluster  # noqa: E402 - likewise
from registry import OPEN, push, registry  # noqa: E402 - likewise
from start_pods import (  # noqa: E402 - likewise
    EXTRA,
    PlainHub,
    Steps,
    click_to_ready,
    cpu_ticks,
    medians,
    offer_bench,
    taken_since,
)

from tools.cluster.cluster import Cluster  # noqa: E402 - likewise
from tools.cluster.workspace import ensure_image  # noqa: E402 - likewise

PAIRS = int(os.environ.get("PAIRS", "4"))
PULL = 'c.KubeSpawner.image_pull_policy = "IfNotPresent"\nc.KubeSpawner.start_timeout = 300\n'
DISK_BYTES = 16 * 2**30


@contextmanager
def new_disk() -> Iterator[Path]:
    """Give the folder of a file system of its own, in a file.

    ext4 keeps off the inodes that were deleted in the last minutes. Where they are tens of thousands, as of the cluster
    before, the next files are made ten times as slowly: that is no node which never had the image.
    """
    with tempfile.TemporaryDirectory() as place:
        disk, folder = Path(place) / "disk", Path(place) / "mounted"
        folder.mkdir()
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
        subprocess.run(["mount", "-o", "loop", disk, folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


def cold(kind: type[KubeHub], images: Path) -> tuple[float, ...]:
    """Return the seconds of each part of the first start on a new cluster and a new disk."""
    with new_disk() as disk:
        return first_start(kind, images, disk / "cluster")


def first_start(kind: type[KubeHub], images: Path, folder: Path) -> tuple[float, ...]:
    """Return the seconds of each part of the first start on a cluster that is made in ``folder``, and ended."""
    make = [sys.executable, "-m", "tools.cluster", "--folder", str(folder)]
    subprocess.run([*make, "start"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    try:
        own = Cluster.load(folder)
        assert own is not None
        cluster = TestCluster(own.kubeconfig, own)
        with registry(own, images), cluster.namespace() as namespace, tempfile.TemporaryDirectory() as place:
            if not (images / "pushed").exists():
                _, archive = ensure_image(images)
                push(own, archive, "workspace")
                (images / "pushed").write_text(str(archive.stat().st_size))
                archive.unlink()
            extra = PULL + (EXTRA if kind is PlainHub else "")
            hub = kind(Path(place), cluster=cluster, namespace=namespace, extra=extra, slow_spawn_timeout=1)
            offer_bench(hub)
            try:
                hub.start()
                hub.add_user("alice")
                return click_to_ready(hub, Steps(cluster, namespace))
            finally:
                hub.close()
    finally:
        subprocess.run([*make, "stop"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    os.environ["GPUSPAWNER_TEST_IMAGE"] = f"{OPEN}/workspace:1"
    found: dict[type[KubeHub], list[tuple[float, ...]]] = {KubeHub: [], PlainHub: []}
    with tempfile.TemporaryDirectory() as images:
        for pair in range(PAIRS):
            for kind in sorted(found, key=lambda kind: (kind is PlainHub) != pair % 2):
                before = cpu_ticks()
                found[kind].append(cold(kind, Path(images)))
                took = f"{sum(found[kind][-1]):.1f} s; {taken_since(before)}"
                print(f"{pair + 1} of {PAIRS}, {kind.__name__}: {took}", flush=True)
        size_mib = int((Path(images) / "pushed").read_text()) / 2**20
    print(f"click to JupyterLab ready on a node that pulls {size_mib:.0f} MiB, medians of {PAIRS} pairs:")
    for kind, name in ((KubeHub, "gpuspawner"), (PlainHub, "KubeSpawner")):
        total = statistics.median(map(sum, found[kind]))
        print(f"  {name} {total:.1f} s: {medians(found[kind])}")


if __name__ == "__main__":
    main()
