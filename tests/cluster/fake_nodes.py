"""Nodes that exist only in the API server, by KWOK, in addition to the real node: for tests of scale.

A pod runs there as soon as it is bound, and does nothing. Each node has a taint, so that no pod comes by chance.
"""

import contextlib

from kubernetes import client
from nodes import wait_for

from tools.cluster.build import ensure_component
from tools.cluster.pki import Authority
from tools.cluster.recipes import KWOK

PROCESS = "kwok"
PORT = 10247
MARK = {"kwok.x-k8s.io/node": "fake"}
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
TOLERATION = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.present": "true",
}


@contextlib.contextmanager
def fake_nodes(cluster, count, gpus=8, labels=LABELS):
    """Give the cluster ``count`` nodes with ``gpus`` GPUs each, named fake-0 and on. Remove them at the end."""
    own = cluster.own
    programs = ensure_component(KWOK)
    stages = own.folder / "kwok.yaml"
    stages.write_text("\n---\n".join(path.read_text() for path in sorted(programs.parent.glob("*.yaml"))))
    names = [f"fake-{number}" for number in range(count)]
    own.start_process(PROCESS, [str(programs / "kwok"), *_arguments(own, stages)])
    try:
        for name in names:
            cluster.core.create_node(_node(name, gpus, labels))
        wait_for(lambda: count == len(_schedulable(cluster)), f"{count} fake nodes are ready", seconds=60 + count)
        yield names
    finally:
        for name in names:
            with contextlib.suppress(client.ApiException):
                cluster.core.delete_node(name)
        own.stop_process(PROCESS)


def _arguments(own, stages):
    authority = Authority(own.folder / "pki")
    if not (own.folder / "pki" / "kwok.crt").exists():
        authority.issue("kwok", "/CN=kwok", (f"IP:{own.address}",))
    return [
        f"--kubeconfig={own.kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={'='.join(*MARK.items())}",
        f"--node-ip={own.address}",
        f"--node-port={PORT}",
        f"--server-address={own.address}:{PORT}",
        f"--tls-cert-file={authority.path('kwok')}",
        f"--tls-private-key-file={authority.path('kwok', 'key')}",
    ]


def _node(name, gpus, labels):
    has = {"cpu": "64", "memory": "512Gi", "pods": "200", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "annotations": MARK, "labels": {**labels, "nvidia.com/gpu.count": str(gpus)}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": has, "capacity": has},
    }


def _schedulable(cluster):
    """Return the fake nodes that are ready and bear no taint but their own."""
    return [
        node.metadata.name
        for node in cluster.core.list_node().items
        if MARK.items() <= (node.metadata.annotations or {}).items()
        and [taint.key for taint in node.spec.taints] == [TAINT["key"]]
        and any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])
    ]
