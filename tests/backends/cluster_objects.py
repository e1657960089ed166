"""Nodes and pods as an API server gives them, each with what a test is about."""

import itertools
import json

from gpuspawner.backends.kubernetes.fleet import gpus_of_node
from gpuspawner.core.gpus.fleet import Fleet

_uids = itertools.count(1)

A100 = {
    "kubernetes.io/hostname": "gpu-1",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": "dgx-a100",
    "nvidia.com/cuda.driver.major": "580",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.machine": "DGXA100-920-23687-2530-000",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "single",
}
"""As GPU Feature Discovery labels a whole A100 node."""
SHARED = {
    **A100,
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.replicas": "2",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
MIG_SINGLE = {
    **A100,
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "nvidia.com/gpu.memory": "9728",
    "nvidia.com/gpu.count": "7",
}
MIG_MIXED = {
    **A100,
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.count": "7",
    "nvidia.com/mig-1g.10gb.memory": "9728",
    "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "nvidia.com/mig-1g.10gb.replicas": "1",
}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "1"}


def a_node(name="gpu-1", labels=A100, gpus=None, *, healthy=None, taints=(), cordoned=False, ready=True, version=1):
    """A node with these devices, by resource; ``healthy`` are those of them that are allocatable."""
    gpus = {"nvidia.com/gpu": 8} if gpus is None else gpus
    taints = [{"key": key, "effect": effect, "value": value} for key, value, effect in taints]
    spec = {"podCIDR": "10.244.0.0/24", **({"taints": taints} if taints else {})}
    if cordoned:
        spec["unschedulable"] = True
    plain = {"cpu": "128", "memory": "1056Gi", "pods": "110", "hugepages-1Gi": "0"}
    counts = {resource: str(count) for resource, count in gpus.items()}
    left = {resource: str(count) for resource, count in (healthy or {}).items()}
    node = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {**labels, "kubernetes.io/hostname": name},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": spec,
        "status": {
            "capacity": {**plain, **counts},
            "allocatable": {**plain, **counts, **left},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True" if ready else "Unknown"},
            ],
            "images": [{"names": [f"registry.example.org/{number}"], "sizeBytes": 1} for number in range(50)],
        },
    }
    return json.loads(json.dumps(node))


def a_container(name="notebook", gpus=None, **more):
    quantities = {resource: str(count) for resource, count in (gpus or {}).items()}
    limits = {"cpu": "2", "memory": "8Gi", **quantities}
    return {"name": name, "image": "registry.example.org/ml:1", "resources": {"limits": limits}, **more}


def a_pod(
    name="train-0",
    gpus=None,
    node="gpu-1",
    *,
    namespace="default",
    labels=None,
    annotations=None,
    phase="Running",
    deleting=False,
    init=(),
    containers=None,
    conditions=(),
    created="2026-11-21T14:00:00Z",
):
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{next(_uids)}",
        "resourceVersion": "1",
        "creationTimestamp": created,
        "labels": {"app": name, **(labels or {})},
        "annotations": annotations or {},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    }
    if deleting:
        metadata |= {"deletionTimestamp": "2026-11-21T15:00:00Z", "deletionGracePeriodSeconds": 30}
    spec = {"containers": containers or [a_container(gpus={"nvidia.com/gpu": 1} if gpus is None else gpus)]}
    if init:
        spec["initContainers"] = list(init)
    if node:
        spec["nodeName"] = node
    status = {"phase": phase, "conditions": list(conditions)}
    return json.loads(json.dumps({"metadata": metadata, "spec": spec, "status": status}))


def a_workspace(
    name="jupyter-alice", lease="a" * 32, attempt=1, hub="h" * 32, gpus=None, node="gpu-1", document=None, **more
):
    """A pod of ours: what it carries of its lease is on it."""
    labels = {"gpuspawner.io/hub": hub, "gpuspawner.io/lease": lease, "gpuspawner.io/attempt": str(attempt)}
    annotations = {
        "gpuspawner.io/lease-document": json.dumps(document or {"slots": []}),
        "gpuspawner.io/lease-signature": "0f",
    }
    return a_pod(name, gpus, node, labels=labels, annotations=annotations, namespace="jhub", **more)


def unschedulable(message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", since="2026-11-21T14:00:01Z"):
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": since,
    }


def fleet_of(nodes, pods, kinds, hub, tolerations):
    """All GPUs of these nodes, by one look."""
    by_node = {}
    for pod in pods:
        by_node.setdefault(pod.node, []).append(pod)
    gpus = (gpu for node in nodes for gpu in gpus_of_node(node, by_node.get(node.name, ()), kinds, hub, tolerations))
    return Fleet(tuple(gpus), complete=True)
